// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Prediction policies: what a worker computes with in place of late changes.
/// @source Chen et al., "OSP", ICPP 2023, equations 6 and 7. In equation 6 both sums have the
///         superscript of the global gradient; by the text, the second one is local.

#include <stagger/core/requirements.hpp>

#include <concepts>
#include <type_traits>

#include <stagger/core/error.hpp>

namespace stagger::staleness::overlapped {

/// `predict(local, kept)` returns the change of one weight with which the worker computes until all
/// workers' gradients of a step have arrived. `local` is the change by the worker's own gradient,
/// through the optimizer with zero state. If `remembers`, `remember(kept, change)` returns the
/// value to keep for a weight when the change made by all workers has arrived; `kept` is 0 at
/// first, and takes the memory of one copy of the model. An optional member `check()` throws an
/// Error for numbers out of range.
template <class P>
concept Prediction =
    std::copyable<P> && std::equality_comparable<P> && requires(P const& prediction) {
      typename std::bool_constant<P::remembers>;
      { prediction.predict(1.0F, 1.0F) } -> std::same_as<float>;
      { prediction.predict(1.0, 1.0) } -> std::same_as<double>;
    } && (!P::remembers || requires(P const& prediction) {
      { prediction.remember(1.0F, 1.0F) } -> std::same_as<float>;
      { prediction.remember(1.0, 1.0) } -> std::same_as<double>;
    });

/// Instantiated if the concept does not hold.
template <class P> struct NotAPrediction {
  static_assert(sizeof(P) == 0,
                "stagger: not a prediction for late layers: it needs 'static constexpr bool "
                "remembers', 'template <class T> T predict(T local, T kept) const', where it "
                "remembers 'T remember(T kept, T change) const', and == by which workers are "
                "compared");
};

/// The worker's own gradient stands for that of all workers. For Sgd the change is -rate *
/// gradient.
struct LocalGradient {
  static constexpr bool remembers = false;
  template <class T> [[nodiscard]] constexpr T predict(T local, T) const noexcept { return local; }
  friend bool operator==(LocalGradient const&, LocalGradient const&) = default;
};

/// A mixture of the worker's own gradient and an exponential moving average of all workers'
/// changes. The paper found no gain in it.
struct MeanGradient {
  static constexpr bool remembers = true;
  double alpha = 0.5;  ///< weight of the average, 0 to 1; 0: LocalGradient
  double gamma = 0.9;  ///< decay of the average, 0 <= gamma < 1

  template <class T> [[nodiscard]] constexpr T predict(T local, T mean) const noexcept {
    return static_cast<T>(alpha) * mean + static_cast<T>(1 - alpha) * local;
  }
  template <class T> [[nodiscard]] constexpr T remember(T mean, T change) const noexcept {
    return static_cast<T>(gamma) * mean + static_cast<T>(1 - gamma) * change;
  }
  /// @throws Error  bad_configuration
  void check() const {
    if (!(alpha >= 0 && alpha <= 1 && gamma >= 0 && gamma < 1))
      raise(Errc::bad_configuration, "a prediction cannot take ", alpha,
            " of a mean of which it keeps ", gamma, "; let alpha be 0 to 1, gamma 0 to below 1");
  }
  friend bool operator==(MeanGradient const&, MeanGradient const&) = default;
};

/// Late layers keep their values until the new ones arrive.
struct NoPrediction {
  static constexpr bool remembers = false;
  template <class T> [[nodiscard]] constexpr T predict(T, T) const noexcept { return 0; }
  friend bool operator==(NoPrediction const&, NoPrediction const&) = default;
};

}  // namespace stagger::staleness::overlapped
