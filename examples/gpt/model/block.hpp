// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A pre-norm transformer block.
/// @source A. Radford et al., "Language Models are Unsupervised Multitask Learners", 2019,
/// section 2.3;
///         D. Hendrycks, K. Gimpel, "Gaussian Error Linear Units (GELUs)", 2016, section 2 (the
///         tanh form).

#include <cstdint>
#include <tuple>

#include <stagger/core/tensor.hpp>
#include <stagger/model/context.hpp>

#include "attention.hpp"
#include "norm.hpp"
#include "shared.hpp"

namespace gpt {

/// h = x + attention(norm(x));  y = h + mlp(norm(h)).
///
/// `backward_input` overwrites queries, keys, values and the slope of the GELU with gradients, from
/// which `backward_weight` computes all weight gradients.
template <class T> class Block {
 public:
  using Input = stagger::Tensor<T>;  ///< [sequences][length][width]
  using Output = stagger::Tensor<T>;

  struct Saved {
    typename Norm<T>::Saved norm1, norm2;
    stagger::Tensor<T> qkv;     ///< [rows][3 width], later its gradient
    stagger::Tensor<T> share;   ///< [sequences][heads][length][length]
    stagger::Tensor<T> mixed;   ///< [rows][width] output of the heads
    stagger::Tensor<T> dh;      ///< [rows][width] gradient between attention and MLP
    stagger::Tensor<T> hidden;  ///< [rows][4 width] after the GELU
    stagger::Tensor<T> slope;   ///< [rows][4 width] derivative of the GELU, later gradient
    [[nodiscard]] std::uint64_t bytes() const noexcept {
      return norm1.bytes() + norm2.bytes() + qkv.bytes() + share.bytes() + mixed.bytes() +
             dh.bytes() + hidden.bytes() + slope.bytes();
    }
  };

  /// @param layers  number of blocks of the model, which scales the initial output projections
  /// @pre width is a multiple of heads
  Block(Index width, Index heads, Index layers, Random& random);

  auto parameters() {
    return std::tie(norm1_.gain, norm1_.bias, qkv_weight_, qkv_bias_, out_weight_, out_bias_,
                    norm2_.gain, norm2_.bias, up_weight_, up_bias_, down_weight_, down_bias_);
  }

  void forward(stagger::Context& context, Input const& x, Output& y, Saved& saved) const;

  void backward_input(stagger::Context& context, Input const& x, Output const& dy, Input& dx,
                      Saved& saved) const;

  void backward_weight(stagger::Context& context, Input const& x, Output const& dy,
                       Saved& saved) const;

 private:
  [[nodiscard]] AttentionShape shape(Input const& x) const {
    return {count(x.extent(0)), count(x.extent(1)), heads_, width_};
  }

  Index width_;
  Index heads_;
  Norm<T> norm1_;
  stagger::Parameter<T> qkv_weight_;  // [width][3 width]
  stagger::Parameter<T> qkv_bias_;    // [3 width]
  stagger::Parameter<T> out_weight_;  // [width][width]
  stagger::Parameter<T> out_bias_;    // [width]
  Norm<T> norm2_;
  stagger::Parameter<T> up_weight_;    // [width][4 width]
  stagger::Parameter<T> up_bias_;      // [4 width]
  stagger::Parameter<T> down_weight_;  // [4 width][width]
  stagger::Parameter<T> down_bias_;    // [width]
};

}  // namespace gpt
