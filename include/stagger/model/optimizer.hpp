// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The contract of optimizers, which update parameters; stochastic gradient descent, and
///         AdamW.
/// @source I. Loshchilov, F. Hutter, "Decoupled Weight Decay Regularization", ICLR 2019,
/// algorithm 2.
///
/// | optimizer | take it when |
/// |---|---|
/// | optimizer::Sgd{.rate = 0.1, .momentum = 0.9} | in doubt (the default, without momentum); one value of state |
/// | optimizer::AdamW{.rate = 1e-3} | gradients differ much in size, as in a transformer; two values of state |
/// | optimizer::Lamb{.rate = 1e-2} | minibatches are so large that AdamW needs another rate in each layer; two values of state; <stagger/model/lamb.hpp> |
/// | optimizer::Muon{.rate = 0.02} | most parameters are matrices, and say so; two values of state; <stagger/model/muon.hpp> |
/// | cuda::Enqueued<Rule>{rule} | parameters are on a GPU: the same rules, as kernels |
///
/// | member | when it is asked | |
/// |---|---|---|
/// | `states` | compiling `with` | how many values of state it keeps for each value of a parameter, 0 to 2 |
/// | `element_wise` | once, in `with` | whether it updates every element independently of the others. If so, ranks may each update a part of a parameter; if not, each parameter is updated whole |
/// | `update(view, gradient_scale, step)` | for each parameter to which something was added, or part of one if `element_wise`, once its gradient is complete | writes `next`, and the state |
/// | `change(view, gradient_scale, step)` | likewise, of workers that push changes; optional | writes to `next` what `update` would add to `value`; without it, the engine subtracts |
/// | `fields()` | where processes or workers compare its numbers, and in checkpoints; optional | `std::tie` of all of them; processes need it, and checkpoints to know them, unless all members are double, or all are float |
/// | `name` | in checkpoints; optional | `static constexpr std::string_view`; without it, the name of its type as the compiler writes it. A type that is derived from one with a name needs its own if its state means something else |
/// | `check()` | in `with`, and when a step is asked for; optional | throws for numbers that cannot train |
/// | `enqueues` | compiling `with`; optional | true: `update` enqueues a kernel, as that of cuda::Enqueued |
///
/// Gradients are multiplied by `gradient_scale` (clipping) before use; `step` counts from 1. A
/// member may be changed between steps, through `Trainer::optimizer`.
///
/// The engine promises: state is zero before the first step; the gradient is complete, over all
/// microbatches and replicas; `next` is `value` itself, or does not overlap it. As `update` may run
/// on several threads at once, it is const; as the step is already decided, it cannot throw.
///
/// In examples/14_own_policies.cpp:
/// @code
/// struct SignDescent {
///   using policy_tag = sg::OptimizerTag;
///   static constexpr int states = 0;            // values kept for each value of a parameter
///   static constexpr bool element_wise = true;  // no element depends on another one
///   double rate = 1e-3;
///   template <class T>
///   void update(sg::OptimizerView<T> const& v, double, std::int64_t) const noexcept {
///     for (std::size_t i = 0; i < v.size; ++i) {
///       T const sign = static_cast<T>((v.gradient[i] > 0) - (v.gradient[i] < 0));
///       v.next[i] = v.value[i] - static_cast<T>(rate) * sign;
///     }
///   }
/// };
/// @endcode
/// A type that lacks a member gets "stagger: not an OptimizerPolicy: it needs ...", which names it.

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>

#include <stagger/core/error.hpp>
#include <stagger/core/math.hpp>
#include <stagger/model/parameter.hpp>

namespace stagger {

/// Marks an optimizer: `using policy_tag = stagger::OptimizerTag;`.
struct OptimizerTag {};

/// One parameter, or a part of one, as an optimizer sees it. `next` may be `value` itself.
template <class T> struct OptimizerView {
  T const* value = nullptr;     ///< [size] before the step
  T* next = nullptr;            ///< [size] after the step
  T const* gradient = nullptr;  ///< [size]
  std::array<T*, 2> state{};    ///< [states][size], zero before the first step
  std::size_t size = 0;
  bool decays = true;
  /// Of a whole parameter that is a matrix [rows][size / rows], as `Parameter::matrix` says; else 0.
  std::size_t rows = 0;

  /// [size] The memory of the gradient, for an optimizer on the host that has read it and needs
  /// memory: nobody reads the gradient after `update`.
  [[nodiscard]] T* work() const noexcept { return const_cast<T*>(gradient); }
};

template <class O>
concept OptimizerPolicy = std::copyable<O> && std::same_as<typename O::policy_tag, OptimizerTag> &&
                          requires(O const& optimizer, OptimizerView<float> const& view,
                                   OptimizerView<double> const& view64) {
                            typename std::integral_constant<int, O::states>;
                            requires O::states >= 0 && O::states <= 2;
                            typename std::bool_constant<O::element_wise>;
                            { optimizer.update(view, 1.0, std::int64_t{1}) } noexcept;
                            { optimizer.update(view64, 1.0, std::int64_t{1}) } noexcept;
                          };

namespace detail {
/// Whether an optimizer's update is a kernel, which a device enqueues.
template <class O>
inline constexpr bool updates_by_kernel =
    requires { requires std::bool_constant<O::enqueues>::value; };

/// The rule of an optimizer whose update is a kernel, for parameters on the host; void: none.
template <class O> struct HostRule {
  using type = void;
};
template <class O>
  requires requires { typename O::HostRule; }
struct HostRule<O> {
  using type = typename O::HostRule;
};
template <class O> using HostRuleOf = typename HostRule<O>::type;

/// @throws Error  bad_configuration for numbers with which an update is not finite, or grows what it
///                should decay: a rate or a weight decay below 0 or beyond the floats, a decay of
///                moments outside of [0, 1), an epsilon that is no normal float
[[gnu::cold]] inline void require_rate(double rate) {
  if (!(rate >= 0 && rate <= std::numeric_limits<float>::max()))
    raise(Errc::bad_configuration, "a learning rate of ", rate,
          " cannot train; use a finite rate of 0 or more");
}
[[gnu::cold]] inline void require_weight_decay(double decay) {
  if (!(decay >= 0 && decay <= std::numeric_limits<float>::max()))
    raise(Errc::bad_configuration, "an optimizer with weight_decay = ", decay,
          " cannot train; use a finite number of 0 or more");
}
[[gnu::cold]] inline void require_epsilon(double epsilon) {
  if (!(epsilon >= std::numeric_limits<float>::min() &&
        epsilon <= std::numeric_limits<float>::max()))
    raise(Errc::bad_configuration, "an optimizer with epsilon = ", epsilon,
          " cannot train, since an element whose gradient is 0 is divided by it; use a number such "
          "as 1e-8");
}
[[gnu::cold]] inline void require_decay(char const* name, double decay) {
  if (!(decay >= 0 && decay < 1))
    raise(Errc::bad_configuration, "an optimizer with ", name, " = ", decay,
          " cannot train; use at least 0 and less than 1");
}
}  // namespace detail

namespace optimizer {

/// Stochastic gradient descent; with `momentum` > 0: velocity = momentum * velocity + gradient,
/// value -= rate * velocity.
struct Sgd {
  using policy_tag = OptimizerTag;
  static constexpr std::string_view name = "Sgd";
  static constexpr int states = 1;
  static constexpr bool element_wise = true;

  double rate = 1e-2;       ///< per step
  double momentum = 0;      ///< 0 <= momentum < 1
  double weight_decay = 0;  ///< added to the gradient as weight_decay * value

  /// @throws Error  bad_configuration for numbers that cannot train
  void check() const {
    detail::require_rate(rate);
    detail::require_decay("momentum", momentum);
    detail::require_weight_decay(weight_decay);
  }

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
  static constexpr std::string_view name = "AdamW";
  static constexpr int states = 2;
  static constexpr bool element_wise = true;

  double rate = 1e-3;          ///< per step
  double beta1 = 0.9;          ///< decay of the first moment
  double beta2 = 0.999;        ///< decay of the second moment
  double epsilon = 1e-8;       ///< added to the root of the second moment
  double weight_decay = 0.01;  ///< value -= rate * weight_decay * value

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
