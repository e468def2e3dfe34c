// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What is printed and written of a run.

#include <string>

#include "run.hpp"
#include "settings.hpp"

namespace hetero {

/// The loss whose time is reported.
[[nodiscard]] double target_of(Settings const& s);

/// Workers, totals and the loss over time, for people.
[[nodiscard]] std::string table_of(Settings const& s, Run const& run);

/// A line for each minibatch.
[[nodiscard]] std::string csv_of(Run const& run);
/// A process for each worker, and one for the server.
[[nodiscard]] std::string trace_of(Run const& run);
/// The loss over time.
[[nodiscard]] std::string chart_of(Settings const& s, Run const& run);

/// The files that the settings ask for, of which each is there whole or not at all.
class Files {
 public:
  /// Makes sure that they can be written, before anything is computed.
  /// @throws Error  io, naming the one that cannot
  explicit Files(Settings const& s);
  /// @throws Error  likewise
  void write(Run const& run) const;

 private:
  Settings s_;
};

}  // namespace hetero
