// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A cost line from measured times.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <stagger/collective/alpha_beta.hpp>
#include <stagger/core/algorithm.hpp>
#include <stagger/core/error.hpp>

namespace stagger::collective {

/// One measured operation. Give the median of several runs.
struct Sample {
  std::uint64_t bytes = 0;
  double seconds = 0;
};

/// A fitted line and its residuals.
struct LineFit {
  CostLine line{};
  std::vector<double> residuals{};  ///< per sample: (line - measured) / measured
  double worst = 0;                 ///< largest absolute residual
  bool clamped = false;             ///< the start-up came out negative and was set to zero

  /// A residual above 15 % means that no single line describes the samples, most often because the
  /// implementation changes its algorithm with the size.
  [[nodiscard]] constexpr bool affine() const noexcept { return worst <= 0.15; }
};

namespace detail {

inline void require_samples(std::span<Sample const> samples) {
  for (std::size_t i = 0; i < samples.size(); ++i) {
    double const t = samples[i].seconds;
    if (t > 0 && t <= std::numeric_limits<double>::max()) continue;
    raise(Errc::bad_data, "sample ", i, " took ", t,
          " s; a measured time is finite and above zero");
  }
  auto const differs = [&](Sample const& s) { return s.bytes != samples.front().bytes; };
  if (std::none_of(samples.begin(), samples.end(), differs)) {
    raise(Errc::bad_data, "a line needs samples of at least two sizes, there are ", samples.size(),
          " samples of ", (samples.empty() ? "no size" : "one size"), "; measure more sizes");
  }
}

[[nodiscard]] inline LineFit judged(CostLine line, std::span<Sample const> samples) {
  if (!(line.per_byte_s > 0)) {
    raise(Errc::bad_data, "the samples give ", line.per_byte_s * 1e9,
          " ns per byte; larger messages must take longer: measure "
          "larger ones, or on an idle machine");
  }
  LineFit fit;
  fit.line = line;
  for (auto const& s : samples) {
    double const at = line.startup_s + line.per_byte_s * static_cast<double>(s.bytes);
    fit.residuals.push_back((at - s.seconds) / s.seconds);
    fit.worst = std::max({fit.worst, fit.residuals.back(), -fit.residuals.back()});
  }
  return fit;
}

}  // namespace detail

/// The time per byte that fits best for a known start-up. Weights are those of fit_line.
/// @throws Error  Errc::bad_data as fit_line
[[nodiscard]] inline LineFit fit_per_byte(std::span<Sample const> samples, double startup_s) {
  detail::require_cost("the start-up", startup_s);
  detail::require_samples(samples);
  double xx = 0;
  double xy = 0;
  for (auto const& s : samples) {
    double const x = static_cast<double>(s.bytes) / s.seconds;
    xx += x * x;
    xy += x * (s.seconds - startup_s) / s.seconds;
  }
  return detail::judged({startup_s, xy / xx}, samples);
}

/// Least squares of the relative error: weights 1 / time², as otherwise the largest message would
/// hide the start-up.
/// @throws Error  Errc::bad_data for a time that is not above zero, fewer than two sizes, or
///                samples that do not get slower with size
[[nodiscard]] inline LineFit fit_line(std::span<Sample const> samples) {
  detail::require_samples(samples);
  double w = 0;
  double mean_x = 0;
  double mean_t = 0;
  for (auto const& s : samples) {
    double const weight = 1 / (s.seconds * s.seconds);
    w += weight;
    mean_x += weight * static_cast<double>(s.bytes);
    mean_t += weight * s.seconds;
  }
  mean_x /= w;
  mean_t /= w;
  double xx = 0;
  double xt = 0;
  for (auto const& s : samples) {
    double const weight = 1 / (s.seconds * s.seconds);
    double const x = static_cast<double>(s.bytes) - mean_x;
    xx += weight * x * x;
    xt += weight * x * (s.seconds - mean_t);
  }
  double const slope = xt / xx;
  double const startup = mean_t - slope * mean_x;
  if (startup >= 0) return detail::judged({startup, slope}, samples);
  LineFit fit = fit_per_byte(samples, 0);
  fit.clamped = true;
  return fit;
}

/// The line of fit_line; if the samples do not determine a start-up, one through the origin.
[[nodiscard]] inline CostLine line_through(std::span<Sample const> samples) {
  try {
    return fit_line(samples).line;
  } catch (Error const&) {  // all of one size, too short to measure, or nothing but noise
    double seconds = 0;
    double bytes = 0;
    for (auto const& s : samples) {
      seconds += s.seconds;
      bytes += static_cast<double>(s.bytes);
    }
    return {0, seconds / bytes};
  }
}

}  // namespace stagger::collective
