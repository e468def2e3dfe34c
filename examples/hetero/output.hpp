// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What is printed and written of a run.

#include <string>
#include <vector>

#include "run.hpp"
#include "settings.hpp"

namespace hetero {

/// One run of several that are compared.
struct Compared {
  std::string name;
  Settings s;
  Run run;
};
/// Workers, totals and the loss over time, for people.
[[nodiscard]] std::string table_of(Settings const& s, Run const& run);

/// A line for each minibatch.
[[nodiscard]] std::string csv_of(Run const& run);
/// A process for each worker, and one for the server.
[[nodiscard]] std::string trace_of(Run const& run);

/// Runs with what they reached, the one that was first at the target first, and those that did not
/// reach it behind.
[[nodiscard]] std::string comparison_of(std::vector<Compared> const& runs);
/// The loss of each over time, a line for each point.
[[nodiscard]] std::string curves_csv_of(std::vector<Compared> const& runs);
/// The loss of each over time.
[[nodiscard]] std::string chart_of(std::vector<Compared> const& runs);

/// The files that the settings ask for, of which each is there whole or not at all.
class Files {
 public:
  /// Makes sure that they can be written, before anything is computed.
  /// @throws Error  io, naming the one that cannot
  explicit Files(Settings const& s);
  /// @throws Error  likewise
  void write(Run const& run) const;
  void write(std::vector<Compared> const& runs) const;

 private:
  Settings s_;
};

}  // namespace hetero
