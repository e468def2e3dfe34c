// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What a worker computes with in place of changes that are late.
/// @source Chen et al., "OSP", ICPP 2023, equations 6 and 7. In equation 6 both sums have the
///         superscript of the global gradient; by the text, the second one is local.

#include <stagger/core/requirements.hpp>

#include <concepts>
#include <type_traits>

#include <stagger/core/error.hpp>

namespace stagger::staleness::overlapped {

/// `predict(local, kept)`: the change of one weight to compute with until all workers' gradients of a
/// step are there; `local` is what the worker's own gradient would change, by the optimizer with its
/// state at rest. With `remembers`, `remember(kept, change)` returns what is to be kept of a weight
/// when the change that all workers made is there; `kept` is 0 at first, and takes a copy of the
/// model. A member `check()`, if there is one, throws an Error for numbers that cannot be.
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

/// Chosen where the concept does not hold.
template <class P> struct NotAPrediction {
  static_assert(sizeof(P) == 0,
                "stagger: not a prediction for late layers: it needs 'static constexpr bool "
                "remembers', 'template <class T> T predict(T local, T kept) const', where it "
                "remembers 'T remember(T kept, T change) const', and == by which workers are "
                "compared");
};

/// The worker's own gradient is taken for that of all. For Sgd, -rate * gradient.
struct LocalGradient {
  static constexpr bool remembers = false;
  template <class T> [[nodiscard]] constexpr T predict(T local, T) const noexcept { return local; }
  friend bool operator==(LocalGradient const&, LocalGradient const&) = default;
};

/// A mixture of the worker's own gradient and an exponential mean of what all workers changed. The
/// paper found no gain in it.
struct MeanGradient {
  static constexpr bool remembers = true;
  double alpha = 0.5;  ///< of the mean, 0 to 1; 0: LocalGradient
  double gamma = 0.9;  ///< of the mean so far that is kept, 0 <= gamma < 1

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

/// Late layers stay as they are until their values come.
struct NoPrediction {
  static constexpr bool remembers = false;
  template <class T> [[nodiscard]] constexpr T predict(T, T) const noexcept { return 0; }
  friend bool operator==(NoPrediction const&, NoPrediction const&) = default;
};

}  // namespace stagger::staleness::overlapped
