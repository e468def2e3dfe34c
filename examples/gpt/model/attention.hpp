// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Causal multi-head attention without its projections, as a part of Projections.
/// @source A. Vaswani et al., "Attention Is All You Need", NIPS 2017, section 3.2.

#include <stagger/core/tensor.hpp>
#include <stagger/model/context.hpp>

#include "shared.hpp"

namespace gpt {

/// Sizes of one microbatch.
struct AttentionShape {
  Index sequences;
  Index length;
  Index heads;
  Index width;  ///< of all heads together
  [[nodiscard]] Index rows() const noexcept { return sequences * length; }
  [[nodiscard]] Index depth() const noexcept { return width / heads; }
};

/// mixed = softmax(q k' / sqrt(depth), causal) v, for each sequence and head.
/// @param qkv    [rows][3 * width] queries, keys, values
/// @param share  [sequences][heads][length][length] out: attention weights
/// @param mixed  [rows][width] out
template <class T>
void attend(AttentionShape const& s, stagger::Tensor<T>& qkv, stagger::Tensor<T>& share,
            stagger::Tensor<T>& mixed);

/// Replaces queries, keys and values by their gradients.
/// @param dmixed  [rows][width]
/// @param share   from `attend`
/// @param qkv     [rows][3 * width] in: as given to `attend`; out: gradients
template <class T>
void attend_backward(stagger::Context& context, AttentionShape const& s, T* dmixed,
                     stagger::Tensor<T> const& share, stagger::Tensor<T>& qkv);

}  // namespace gpt
