// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The learning rate over a run.
/// @source I. Loshchilov, F. Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", ICLR
/// 2017, equation 5, without restarts.

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace layers {

/// Linear warm-up to the highest rate, then a cosine that leads from it to a tenth.
/// @param step    steps taken before this one
/// @param warmup  steps until the highest rate is reached
[[nodiscard]] inline double cosine_rate(double highest, std::int64_t step, std::int64_t warmup,
                                        std::int64_t steps) {
  auto const at = static_cast<double>(step);
  auto const rise = static_cast<double>(std::min(warmup, steps));
  if (at < rise) return highest * (at + 1) / rise;
  double const part = (at - rise) / std::max(1.0, static_cast<double>(steps) - rise);
  return highest * (0.55 + 0.45 * std::cos(3.141592653589793 * part));
}

}  // namespace layers
