// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The schedules that this program offers, and the order in which they add gradients.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <stagger/schedule/named.hpp>

namespace gpt {

/// The order in which a schedule adds the gradients of the microbatches, on every stage.
enum class GradientOrder { ascending, descending, mixed };

/// A schedule of the library, or of a plan, for steps of `microbatches` microbatches. For any other
/// number, as predictions have, it has the forward passes only, which every shape allows.
struct Schedule {
  using policy_tag = stagger::ScheduleTag;
  static constexpr bool flushes = true;
  static constexpr bool proven = true;

  stagger::schedule::Named order;
  int microbatches = 1;
  std::vector<int> warm_up{};  ///< [stages] of a plan; empty: no plan

  [[nodiscard]] int chunks() const { return order.chunks(); }

  /// @throws Error  with Errc::bad_configuration for a shape that the schedule does not support
  [[nodiscard]] stagger::schedule::Table table(stagger::Shape shape) const;

  /// @param chunks  0: the schedule's default
  /// @throws Error  with Errc::bad_configuration naming the known schedules
  [[nodiscard]] static Schedule named(std::string_view name, std::int64_t chunks,
                                      std::int64_t microbatches);
};

/// The names of the schedules that flush, do not slice microbatches and have one owner per stage,
/// separated by commas.
[[nodiscard]] std::string schedule_names();

[[nodiscard]] GradientOrder gradient_order(stagger::schedule::Table const& table);

}  // namespace gpt
