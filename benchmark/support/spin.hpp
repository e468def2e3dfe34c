// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Work of known duration that neither accesses memory nor reads a clock.

#include <algorithm>
#include <cstdint>

#include <benchmark/benchmark.h>

#include "rows.hpp"

namespace bench {

/// A chain of dependent multiplications.
inline void spin(std::uint64_t rounds) {
  std::uint64_t x = rounds;
  for (; rounds != 0; --rounds) x = x * 6364136223846793005U + 1442695040888963407U;
  benchmark::DoNotOptimize(x);
}

/// Seconds per round of `spin` on an undisturbed core.
[[nodiscard]] inline double calibrate_spin() {
  constexpr std::uint64_t rounds = 100000;
  double best_s = 1e300;
  for (int i = 0; i < 200; ++i) {
    double const start_s = now_s();
    spin(rounds);
    best_s = std::min(best_s, now_s() - start_s);
  }
  return best_s / static_cast<double>(rounds);
}

}  // namespace bench
