// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Importance policies: how much it matters that a layer is synchronised at once. The least
///         important layers may be late.
/// @source Chen et al., "OSP", ICPP 2023, section 4.2, equations 1 to 4.

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include <stagger/core/digest.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/random.hpp>
#include <stagger/parameters/late_layers.hpp>

namespace stagger::staleness::overlapped {

/// `score(layer)`: finite, larger for more important layers. Called at the server once for each
/// layer and step, perhaps by several threads at once.
///
/// | member of `layer` | |
/// |---|---|
/// | `each(visit)` | calls visit(gradient, value) for each element, both double: the gradients of the step, summed over workers by their weights, and the values at which they were taken |
/// | `number()`, `step()` | of the layer in the model, and of the step since the workers began, from 0 |
/// | `elements()`, `bytes()` | of its values |
template <class I>
concept Importance = std::copyable<I> && std::equality_comparable<I> &&
                     requires(I const& importance, stagger::detail::ScoredLayer const& layer) {
                       { importance.score(layer) } -> std::same_as<double>;
                     };

/// Instantiated if the concept does not hold.
template <class I> struct NotAnImportance {
  static_assert(sizeof(I) == 0,
                "stagger: not an importance of layers: it needs 'double score(auto const& layer) "
                "const', and == by which workers are compared");
};

/// Sum of |gradient * value|: to first order, by how much the loss would change without the weight.
struct ParameterGradientProduct {
  template <class Layer> [[nodiscard]] double score(Layer const& layer) const {
    double sum = 0;
    layer.each([&](double gradient, double value) { sum += std::abs(gradient * value); });
    return sum;
  }
  friend bool operator==(ParameterGradientProduct const&,
                         ParameterGradientProduct const&) = default;
};

/// 2-norm of the gradients.
struct GradientNorm {
  template <class Layer> [[nodiscard]] double score(Layer const& layer) const {
    double sum = 0;
    layer.each([&](double gradient, double) { sum += gradient * gradient; });
    return std::sqrt(sum);
  }
  friend bool operator==(GradientNorm const&, GradientNorm const&) = default;
};

/// A random order in each step, for comparison.
struct RandomImportance {
  std::uint64_t seed = 0;
  template <class Layer> [[nodiscard]] double score(Layer const& layer) const {
    return static_cast<double>(random_bits(seed, {static_cast<std::uint64_t>(layer.step()),
                                                  static_cast<std::uint64_t>(layer.number())}));
  }
  /// The numbers by which workers in other processes are compared.
  [[nodiscard]] auto fields() const { return std::tie(seed); }
  friend bool operator==(RandomImportance const&, RandomImportance const&) = default;
};

/// Fixed scores.
struct FixedImportance {
  std::vector<double> scores;  ///< [layers]
  /// @throws Error  bad_configuration for a layer without a score
  template <class Layer> [[nodiscard]] double score(Layer const& layer) const {
    auto const number = static_cast<std::size_t>(layer.number());
    if (number >= scores.size())
      raise(Errc::bad_configuration, "FixedImportance has ", counted(scores.size(), "score"),
            ", and the model a layer ", number, "; give a score for each layer");
    return scores[number];
  }
  /// The number by which workers in other processes are compared: a digest, exact in a double.
  [[nodiscard]] auto fields() const {
    return std::tuple(stagger::detail::digest(reinterpret_cast<char const*>(scores.data()),
                                              scores.size() * sizeof(double)) >>
                      11U);
  }
  friend bool operator==(FixedImportance const&, FixedImportance const&) = default;
};

/// What a score is divided by.
enum class Normalisation : std::uint8_t {
  sum,          ///< 1, as in the paper: large layers matter more
  per_element,  ///< the number of elements
  per_byte,     ///< bytes of the values
};

}  // namespace stagger::staleness::overlapped
