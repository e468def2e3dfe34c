// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The few functions of <cmath> that every pipeline needs. libstdc++'s own header also
///         contains the special functions, which would take a pipeline longer to compile than any
///         other header.

#include <stagger/core/requirements.hpp>

namespace stagger::detail::math {

[[nodiscard]] inline float sqrt(float x) noexcept { return __builtin_sqrtf(x); }
[[nodiscard]] inline double sqrt(double x) noexcept { return __builtin_sqrt(x); }
[[nodiscard]] inline long double sqrt(long double x) noexcept { return __builtin_sqrtl(x); }
[[nodiscard]] inline double pow(double x, double y) noexcept { return __builtin_pow(x, y); }
[[nodiscard]] inline double exp(double x) noexcept { return __builtin_exp(x); }
[[nodiscard]] inline double log(double x) noexcept { return __builtin_log(x); }
[[nodiscard]] inline bool isfinite(double x) noexcept { return __builtin_isfinite(x); }
[[nodiscard]] inline double fmax(double x, double y) noexcept { return __builtin_fmax(x, y); }

/// Whether a value is finite and not negative; usable in constant expressions, unlike isfinite.
[[nodiscard]] constexpr bool finite_and_not_negative(double x) noexcept {
  return x >= 0 && x <= __DBL_MAX__;
}

}  // namespace stagger::detail::math
