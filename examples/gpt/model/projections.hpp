// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Two projections with attention or a GELU between them, as a part of HalfBlock, and as the
///         layer that members of a group share.
/// @source D. Hendrycks, K. Gimpel, "Gaussian Error Linear Units (GELUs)", 2016, section 2 (the
///         tanh form);
///         M. Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using
///         Model Parallelism", 2019, section 3 (how members share them).

#include <cstddef>
#include <cstdint>
#include <tuple>

#include <stagger/core/tensor.hpp>
#include <stagger/model/context.hpp>
#include <stagger/model/split.hpp>

#include "attention.hpp"
#include "norm.hpp"
#include "shared.hpp"

namespace gpt {

/// The sequences of a microbatch.
struct Sequences {
  Index number;
  Index length;
  [[nodiscard]] Index rows() const noexcept { return number * length; }
};
/// @param x  [sequences][length][...]
template <class T> [[nodiscard]] Sequences sequences_of(stagger::Tensor<T> const& x) {
  return {count(x.extent(0)), count(x.extent(1))};
}

/// y = residual + middle(x * first + first_bias) * second + second_bias. The first projection gives
/// queries, keys and values, and `middle` what the heads make of them; in an MLP it is the GELU.
///
/// A member of a group has some heads, or some columns of the GELU. Its y is a term: the residual
/// and the last bias belong to member 0.
template <class T> class Projections {
 public:
  using Input = stagger::Tensor<T>;   ///< [sequences][length][2 width] residual, and x behind it
  using Output = stagger::Tensor<T>;  ///< [sequences][length][width]

  struct Saved {
    stagger::Tensor<T> first;   ///< [rows][3 width] queries, keys, values, or [rows][4 width]
                                ///< derivative of the GELU; later the gradient of first's output
    stagger::Tensor<T> share;   ///< [sequences][heads][length][length] attention weights
    stagger::Tensor<T> middle;  ///< [rows][width] or [rows][4 width]
    [[nodiscard]] std::uint64_t bytes() const noexcept {
      return first.bytes() + share.bytes() + middle.bytes();
    }
  };

  /// @param blocks  of the model, which scales the initial second projection
  /// @pre width is a multiple of heads
  [[nodiscard]] static Projections attention(Index width, Index heads, Index blocks,
                                             Random& random);
  [[nodiscard]] static Projections mlp(Index width, Index blocks, Random& random);

  auto parameters() { return std::tie(first_weight_, first_bias_, second_weight_, second_bias_); }

  // --- as a part of HalfBlock

  /// @param x         [rows][width]
  /// @param residual  [rows][width]
  /// @param y         [rows][width] out
  void forward(stagger::Context& context, Sequences s, Rows<T const> x, Rows<T const> residual,
               T* y, Saved& saved) const;

  /// @param dy  [rows][width]
  /// @param dx  [rows][width] out; that of the residual is dy
  void backward_input(stagger::Context& context, Sequences s, T const* dy, Rows<T> dx,
                      Saved& saved) const;

  void backward_weight(stagger::Context& context, Sequences s, Rows<T const> x, T const* dy,
                       Saved const& saved) const;

  // --- as a layer that members of a group share

  [[nodiscard]] std::size_t inputs() const noexcept { return count(2 * width_); }
  [[nodiscard]] std::size_t outputs() const noexcept { return count(width_); }
  /// Heads, or columns of the GELU.
  [[nodiscard]] std::size_t hidden() const noexcept { return count(heads_ > 0 ? heads_ : middle_); }
  [[nodiscard]] std::size_t operations() const noexcept {
    return count(width_ * (first_columns() + middle_));
  }
  [[nodiscard]] Projections part(int member, int members, stagger::SplitBy by) const;

  void forward(stagger::Context& context, Input const& x, Output& y, Saved& saved) const;
  void backward_input(stagger::Context& context, Input const& x, Output const& dy, Input& dx,
                      Saved& saved) const;
  void backward_weight(stagger::Context& context, Input const& x, Output const& dy,
                       Saved& saved) const;

 private:
  Projections(Index width, Index heads, Index middle, char const* first, char const* second,
              Index blocks, Random& random);

  [[nodiscard]] Index first_columns() const noexcept { return heads_ > 0 ? 3 * middle_ : middle_; }
  [[nodiscard]] AttentionShape shape(Sequences s) const noexcept {
    return {s.number, s.length, heads_, middle_};
  }
  /// Whether the residual and the last bias are its to add.
  [[nodiscard]] bool adds_once() const noexcept { return second_bias_.size() != 0; }

  Index width_;
  Index heads_;                          // 0: a GELU
  Index middle_;                         // columns
  stagger::Parameter<T> first_weight_;   // [width][first_columns()]
  stagger::Parameter<T> first_bias_;     // [first_columns()]
  stagger::Parameter<T> second_weight_;  // [middle][width]
  stagger::Parameter<T> second_bias_;    // [width]
};

}  // namespace gpt
