// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Random initial values that are the same with every compiler and standard library.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include <stagger/model/parameter.hpp>

namespace layers {

/// Splitmix64: a counter through a mixing function.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() noexcept {
    std::uint64_t x = state_ += 0x9e3779b97f4a7c15U;
    x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31U);
  }

  /// Uniform in [0, 1).
  double uniform() noexcept { return static_cast<double>(next() >> 11U) * 0x1p-53; }

  /// Uniform in [0, n).
  /// @pre n >= 1
  std::size_t below(std::size_t n) noexcept {
    return static_cast<std::size_t>(uniform() * static_cast<double>(n));
  }

  /// Standard normal (Box and Muller).
  double normal() noexcept {
    double const radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(6.283185307179586 * uniform());
  }

  /// The state, from which another `Random` continues.
  [[nodiscard]] std::uint64_t state() const noexcept { return state_; }
  /// Advances by as many calls of next().
  void skip(std::uint64_t calls) noexcept { state_ += calls * 0x9e3779b97f4a7c15U; }

 private:
  std::uint64_t state_;
};

/// Independent random streams from one seed, one for each purpose.
[[nodiscard]] inline Random stream(std::uint64_t seed, std::uint64_t purpose) {
  return Random(Random(seed ^ (0xd1342543de82ef95U * (purpose + 1))).next());
}

/// `size` normal values of the given deviation, generated only where and when the engine stores
/// them.
template <class T>
[[nodiscard]] stagger::Parameter<T> normal_parameter(std::string name, Random& random,
                                                     std::size_t size, double deviation) {
  std::uint64_t const state = random.state();
  random.skip(2 * size);
  return {std::move(name), size,
          [](std::span<T> values, std::uint64_t from, double scale) {
            Random draws(from);
            for (T& value : values) value = static_cast<T>(scale * draws.normal());
          },
          state, deviation};
}

}  // namespace layers
