// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   LAMB: the steps of Adam, each parameter's as long as a share of the parameter itself.
/// @source Y. You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76
///         minutes", ICLR 2020, algorithm 2.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <stagger/core/math.hpp>
#include <stagger/model/optimizer.hpp>

namespace stagger::optimizer {

/// r = m / (sqrt(s) + epsilon) + weight_decay * value, of the moments without bias;
/// value -= rate * |value| / |r| * r, where the quotient of the norms is 1 if one of them is 0.
struct Lamb {
  using policy_tag = OptimizerTag;
  static constexpr std::string_view name = "Lamb";
  static constexpr int states = 2;
  static constexpr bool element_wise = false;  // norms are those of a whole parameter

  double rate = 1e-2;          ///< per step
  double beta1 = 0.9;          ///< decay of the first moment
  double beta2 = 0.999;        ///< decay of the second moment
  double epsilon = 1e-6;       ///< added to the root of the second moment
  double weight_decay = 0.01;  ///< of parameters to which weight decay applies

  /// @throws Error  bad_configuration for numbers that cannot train
  void check() const {
    detail::require_rate(rate);
    detail::require_decay("beta1", beta1);
    detail::require_decay("beta2", beta2);
    detail::require_epsilon(epsilon);
    detail::require_weight_decay(weight_decay);
  }

  template <class T>
  void update(OptimizerView<T> const& v, double gradient_scale, std::int64_t step) const noexcept {
    advance<true>(v, gradient_scale, step);
  }
  template <class T>
  void change(OptimizerView<T> const& v, double gradient_scale, std::int64_t step) const noexcept {
    advance<false>(v, gradient_scale, step);
  }

 private:
  /// @tparam adds  whether the change is added to the value
  template <bool adds, class T>
  void advance(OptimizerView<T> const& v, double gradient_scale, std::int64_t step) const noexcept {
    double const t = static_cast<double>(step);
    auto const scale = static_cast<T>(gradient_scale);
    auto const b1 = static_cast<T>(beta1);
    auto const b2 = static_cast<T>(beta2);
    auto const first = static_cast<T>(1 / (1 - detail::math::pow(beta1, t)));
    auto const second = static_cast<T>(1 / detail::math::sqrt(1 - detail::math::pow(beta2, t)));
    auto const eps = static_cast<T>(epsilon);
    auto const decays = static_cast<T>(v.decays ? weight_decay : 0);
    T* const wanted = v.work();    // r
    double values = 0, steps = 0;  // sums of squares
    for (std::size_t i = 0; i < v.size; ++i) {
      T const g = v.gradient[i] * scale;
      T const m = b1 * v.state[0][i] + (1 - b1) * g;
      T const s = b2 * v.state[1][i] + (1 - b2) * g * g;
      v.state[0][i] = m;
      v.state[1][i] = s;
      T const r = first * m / (detail::math::sqrt(s) * second + eps) + decays * v.value[i];
      wanted[i] = r;
      values += static_cast<double>(v.value[i]) * static_cast<double>(v.value[i]);
      steps += static_cast<double>(r) * static_cast<double>(r);
    }
    // Where r is tiny, the trust ratio is huge, and only their product has the size of a value.
    double const trust =
        values > 0 && steps > 0 ? detail::math::sqrt(values) / detail::math::sqrt(steps) : 1;
    double const eta = rate * trust;
    for (std::size_t i = 0; i < v.size; ++i) {
      auto const change = static_cast<T>(-eta * static_cast<double>(wanted[i]));
      v.next[i] = adds ? v.value[i] + change : change;
    }
  }
};

}  // namespace stagger::optimizer
