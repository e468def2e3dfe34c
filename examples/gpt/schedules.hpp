// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The schedules that this program offers, and in which order they add gradients.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <stagger/schedule/named.hpp>

namespace gpt {

/// In which order a schedule adds the gradients of the microbatches, on every stage.
enum class Adds { rising, falling, otherwise };

/// A schedule of the library, or the order of a plan, for steps of so many microbatches. Any other
/// count is for prediction, which no schedule refuses: the forwards of the same stages.
struct Schedule {
  using policy_tag = stagger::ScheduleTag;
  static constexpr bool flushes = true;
  static constexpr bool proven = true;

  stagger::schedule::Named order;
  int microbatches = 1;
  std::vector<int> warm_up{};  ///< of a plan's stages; empty: no plan

  [[nodiscard]] int chunks() const { return order.chunks(); }

  /// @throws Error  with Errc::bad_configuration for a shape that the schedule cannot serve
  [[nodiscard]] stagger::schedule::Table table(stagger::Shape shape) const;

  /// @param chunks  0: as many as are usual
  /// @throws Error  with Errc::bad_configuration naming the known schedules
  [[nodiscard]] static Schedule named(std::string_view name, std::int64_t chunks,
                                      std::int64_t microbatches);
};

/// The names of all that keep microbatches whole, stages single, and flush; separated by commas.
[[nodiscard]] std::string schedule_names();

[[nodiscard]] Adds adds(stagger::schedule::Table const& table);

}  // namespace gpt
