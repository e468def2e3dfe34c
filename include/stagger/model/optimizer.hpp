// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Optimizers: the concept, stochastic gradient descent with momentum, and AdamW.
/// @source I. Loshchilov, F. Hutter, "Decoupled Weight Decay Regularization", ICLR 2019,
/// algorithm 2.

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <stagger/core/math.hpp>
#include <stagger/model/parameter.hpp>

namespace stagger {

/// Marks an optimizer: `using policy_tag = stagger::OptimizerTag;`.
struct OptimizerTag {};

/// One parameter as an optimizer sees it. `next` may be `value` itself.
template <class T> struct OptimizerView {
  T const* value = nullptr;     ///< [size] before the step
  T* next = nullptr;            ///< [size] after the step
  T const* gradient = nullptr;  ///< [size]
  std::array<T*, 2> state{};    ///< [states][size], zero before the first step
  std::size_t size = 0;
  bool decays = true;
};

/// An optimizer declares how many values of state it keeps per parameter value (0 to 2) and updates
/// one parameter at a time, every element independently of the others, so that the bits do not
/// depend on the partition. An optimizer that cannot do that declares `static constexpr bool
/// element_wise = false;`, and is refused if replicas each update a part.
///
/// Processes that take a step together compare its numbers: all members, if all are double or all
/// are float; otherwise those that a member `auto fields() const` returns as a `std::tie`. An
/// optimizer with other members and no `fields()` is refused there.
///
/// `update(view, gradient_scale, step)`: gradients are multiplied by `gradient_scale` (clipping)
/// before use; `step` counts from 1. It must not throw: when it runs, the step is already decided.
///
/// Optional, for workers that push changes to a parameter server: `change(view, gradient_scale,
/// step)` writes to `next` what `update` would add to `value`. Without it, the engine computes
/// `next - value`.
template <class O>
concept OptimizerPolicy = std::copyable<O> && std::same_as<typename O::policy_tag, OptimizerTag> &&
                          requires(O const& optimizer, OptimizerView<float> const& view,
                                   OptimizerView<double> const& view64) {
                            typename std::integral_constant<int, O::states>;
                            requires O::states >= 0 && O::states <= 2;
                            { optimizer.update(view, 1.0, std::int64_t{1}) } noexcept;
                            { optimizer.update(view64, 1.0, std::int64_t{1}) } noexcept;
                          };

namespace optimizer {

/// Stochastic gradient descent; with `momentum` > 0: velocity = momentum * velocity + gradient,
/// value -= rate * velocity.
struct Sgd {
  using policy_tag = OptimizerTag;
  static constexpr int states = 1;

  double rate = 1e-2;       ///< per step
  double momentum = 0;      ///< 0 <= momentum < 1
  double weight_decay = 0;  ///< added to the gradient as weight_decay * value

  template <class T>
  void update(OptimizerView<T> const& v, double gradient_scale, std::int64_t) const noexcept {
    advance<true>(v, gradient_scale);
  }
  template <class T>
  void change(OptimizerView<T> const& v, double gradient_scale, std::int64_t) const noexcept {
    advance<false>(v, gradient_scale);
  }

 private:
  /// @tparam adds  whether the change is added to the value
  template <bool adds, class T>
  void advance(OptimizerView<T> const& v, double gradient_scale) const noexcept {
    auto const scale = static_cast<T>(gradient_scale);
    auto const decay = static_cast<T>(v.decays ? weight_decay : 0);
    auto const mu = static_cast<T>(momentum);
    auto const eta = static_cast<T>(rate);
    for (std::size_t i = 0; i < v.size; ++i) {
      T const gradient = v.gradient[i] * scale + decay * v.value[i];
      T const velocity = mu * v.state[0][i] + gradient;
      v.state[0][i] = velocity;
      v.next[i] = adds ? v.value[i] - eta * velocity : -eta * velocity;
    }
  }
};

/// Adam with decoupled weight decay.
struct AdamW {
  using policy_tag = OptimizerTag;
  static constexpr int states = 2;

  double rate = 1e-3;          ///< per step
  double beta1 = 0.9;          ///< decay of the first moment
  double beta2 = 0.999;        ///< decay of the second moment
  double epsilon = 1e-8;       ///< added to the root of the second moment
  double weight_decay = 0.01;  ///< value -= rate * weight_decay * value

  template <class T>
  void update(OptimizerView<T> const& v, double gradient_scale, std::int64_t step) const noexcept {
    advance(v, gradient_scale, step, 1 - rate * weight_decay, 1);
  }

  template <class T>
  void change(OptimizerView<T> const& v, double gradient_scale, std::int64_t step) const noexcept {
    advance(v, gradient_scale, step, -rate * weight_decay, 0);
  }

 private:
  /// @param decaying  factor of values to which weight decay applies
  /// @param whole     factor of the others
  template <class T>
  void advance(OptimizerView<T> const& v, double gradient_scale, std::int64_t step, double decaying,
               double whole) const noexcept {
    double const t = static_cast<double>(step);
    auto const scale = static_cast<T>(gradient_scale);
    auto const b1 = static_cast<T>(beta1);
    auto const b2 = static_cast<T>(beta2);
    auto const keep = static_cast<T>(v.decays ? decaying : whole);
    auto const eta = static_cast<T>(rate / (1 - detail::math::pow(beta1, t)));
    auto const root = static_cast<T>(1 / detail::math::sqrt(1 - detail::math::pow(beta2, t)));
    auto const eps = static_cast<T>(epsilon);
    for (std::size_t i = 0; i < v.size; ++i) {
      T const gradient = v.gradient[i] * scale;
      T const m = b1 * v.state[0][i] + (1 - b1) * gradient;
      T const s = b2 * v.state[1][i] + (1 - b2) * gradient * gradient;
      v.state[0][i] = m;
      v.state[1][i] = s;
      v.next[i] = keep * v.value[i] - eta * m / (detail::math::sqrt(s) * root + eps);
    }
  }
};

}  // namespace optimizer
}  // namespace stagger
