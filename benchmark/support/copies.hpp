// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Vectors of 1 to 64 MiB that threads take from each other, compared with a copy.

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "rows.hpp"

namespace bench {

/// One memcpy on each of several threads at once, from the vector that the neighbouring thread has
/// just written.
class Copies {
 public:
  /// @param bytes  that each thread copies
  Copies(int threads, std::size_t bytes);

  /// Seconds from the start of the first thread to the end of the last.
  double seconds();

 private:
  struct Vectors {
    std::vector<char> from, to;
  };
  std::vector<Vectors> of_;
  std::size_t bytes_;
};

/// Adds the benchmarks `name`/MiB:1 to `name`/MiB:64, and a row for them.
/// @param measure  called with bytes; sets the time, and the counter "of_copy": the copies' time
///                 over it
void add_sizes(std::vector<Row>& rows, std::string const& what, std::string const& name,
               int repetitions, std::function<void(benchmark::State&, std::size_t)> const& measure);

}  // namespace bench
