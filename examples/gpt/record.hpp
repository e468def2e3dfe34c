// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What a run measured of its last steps, and the report made of it.

#include <cstddef>
#include <string>
#include <vector>

#include <stagger/schedule/table.hpp>
#include <stagger/schedule/timeline.hpp>

namespace gpt {

/// Keeps the timelines of the last steps.
class Record {
 public:
  static constexpr std::size_t kept = 21;

  /// @param wall_s          the whole step took, optimizer included
  /// @param peak_in_flight  [ranks] as the engine counted
  void add(stagger::schedule::Timeline timeline, double wall_s, std::vector<int> peak_in_flight);

  [[nodiscard]] bool empty() const noexcept { return timelines_.empty(); }

  /// Median time of the steps, seconds.
  /// @pre  not empty
  [[nodiscard]] double step_s() const;
  /// The shortest, seconds.
  /// @pre  not empty
  [[nodiscard]] double fastest_s() const;

  /// What the plan allows at the median cost of each stage, beside the step with the middle
  /// makespan.
  [[nodiscard]] std::string table(stagger::schedule::Table const& plan) const;

  /// Writes trace.json and timeline.svg.
  /// @param last_step  number of the last step recorded
  void write(std::string const& folder, stagger::schedule::Table const& plan,
             long long last_step) const;

 private:
  [[nodiscard]] stagger::schedule::Timeline predicted(stagger::schedule::Table const& plan) const;
  [[nodiscard]] stagger::schedule::Timeline const& typical() const;

  std::vector<stagger::schedule::Timeline> timelines_;
  std::vector<double> wall_s_;       // [timelines]
  std::vector<int> peak_in_flight_;  // [ranks] of the last step
};

}  // namespace gpt
