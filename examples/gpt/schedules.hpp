// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A schedule chosen by name while the program runs: a policy of one's own.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <stagger/schedule/policy.hpp>
#include <stagger/schedule/verify.hpp>

namespace gpt {

/// In which order a schedule adds the gradients of the microbatches, on every stage.
enum class Adds { rising, falling, otherwise };

/// Any synchronous schedule of the library that keeps microbatches whole and stages single.
struct Schedule {
  using policy_tag = stagger::ScheduleTag;
  static constexpr bool flushes = true;

  std::string_view name;       ///< in the library's catalog
  int chunks_per_rank = 1;     ///< stages of a rank
  int microbatches = 1;        ///< of a training step; any other count is for prediction
  std::vector<int> warm_up{};  ///< of a plan's stages: 1f1b with these forwards ahead

  [[nodiscard]] int chunks() const { return chunks_per_rank; }

  /// The order of a plan.
  [[nodiscard]] static Schedule planned(std::vector<int> warm_up, std::int64_t microbatches) {
    return {"1f1b", 1, static_cast<int>(microbatches), std::move(warm_up)};
  }

  /// @throws Error  with Errc::bad_configuration for a shape that the schedule cannot serve
  [[nodiscard]] stagger::schedule::Table table(stagger::Shape shape) const;

  /// @param chunks  0: as many as are usual
  /// @throws Error  with Errc::bad_configuration naming the known schedules
  [[nodiscard]] static Schedule named(std::string_view name, std::int64_t chunks,
                                      std::int64_t microbatches);
};

/// The names of all, separated by commas.
[[nodiscard]] std::string schedule_names();

[[nodiscard]] Adds adds(stagger::schedule::Table const& table);

}  // namespace gpt
