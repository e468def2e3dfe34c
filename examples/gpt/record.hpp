// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Measurements of the last steps of a run, and the report on them.

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

  /// @param wall_s          time of the whole step, optimizer included
  /// @param peak_in_flight  [ranks] as counted by the engine
  void add(stagger::schedule::Timeline timeline, double wall_s, std::vector<int> peak_in_flight);

  [[nodiscard]] bool empty() const noexcept { return timelines_.empty(); }

  /// Median time of the steps, seconds.
  /// @pre  !empty()
  [[nodiscard]] double step_s() const;
  /// Shortest time of the steps, seconds.
  /// @pre  !empty()
  [[nodiscard]] double fastest_s() const;

  /// A table with the makespan of `plan` simulated at the median cost of each stage, beside the
  /// step with the median makespan.
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
