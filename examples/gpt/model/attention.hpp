// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Causal multi-head attention without its projections: a part of Block.
/// @source A. Vaswani et al., "Attention Is All You Need", NIPS 2017, section 3.2.

#include <cmath>

#include <stagger/core/tensor.hpp>
#include <stagger/model/context.hpp>

#include "eigen.hpp"

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

namespace detail {
// The part of a matrix that belongs to one sequence and head.
template <class T>
[[nodiscard]] StridedView<T> head_view(T* matrix, Index columns, Index first_column,
                                       AttentionShape const& s, Index i, Index head) {
  return {matrix + i * s.length * columns + first_column + head * s.depth(), s.length, s.depth(),
          Eigen::OuterStride<>(columns)};
}
}  // namespace detail

/// mixed = softmax(q k' / sqrt(depth), causal) v, for each sequence and head.
/// @param qkv    [rows][3 * width] queries, keys, values
/// @param share  [sequences][heads][length][length] out, what each byte takes from those up to it
/// @param mixed  [rows][width] out
template <class T>
void attend(AttentionShape const& s, stagger::Tensor<T>& qkv, stagger::Tensor<T>& share,
            stagger::Tensor<T>& mixed) {
  share.resize({count(s.sequences), count(s.heads), count(s.length), count(s.length)});
  mixed.resize({count(s.rows()), count(s.width)});
  T const scale = static_cast<T>(1 / std::sqrt(static_cast<double>(s.depth())));
  for (Index i = 0; i < s.sequences; ++i)
    for (Index head = 0; head < s.heads; ++head) {
      auto const q = detail::head_view(qkv.data(), 3 * s.width, 0, s, i, head);
      auto const k = detail::head_view(qkv.data(), 3 * s.width, s.width, s, i, head);
      auto const v = detail::head_view(qkv.data(), 3 * s.width, 2 * s.width, s, i, head);
      auto p = view(share.data() + (i * s.heads + head) * s.length * s.length, s.length, s.length);
      p.noalias() = q * k.transpose();
      for (Index t = 0; t < s.length; ++t) {
        auto seen = p.row(t).head(t + 1).array();
        T const largest = seen.maxCoeff();
        seen = ((seen - largest) * scale).exp();
        seen *= T{1} / seen.sum();
        p.row(t).tail(s.length - t - 1).setZero();
      }
      detail::head_view(mixed.data(), s.width, 0, s, i, head).noalias() = p * v;
    }
}

/// Turns queries, keys and values into their gradients.
/// @param dmixed  [rows][width]
/// @param share   as `attend` left it
/// @param qkv     [rows][3 * width] in: as given to `attend`; out: gradients
template <class T>
void attend_backward(stagger::Context& context, AttentionShape const& s, T* dmixed,
                     stagger::Tensor<T> const& share, stagger::Tensor<T>& qkv) {
  T const scale = static_cast<T>(1 / std::sqrt(static_cast<double>(s.depth())));
  auto ds = view(context.scratch<T>(count(s.length * s.length)).data(), s.length, s.length);
  auto dq = view(context.scratch<T>(count(s.length * s.depth())).data(), s.length, s.depth());
  auto dk = view(context.scratch<T>(count(s.length * s.depth())).data(), s.length, s.depth());
  for (Index i = 0; i < s.sequences; ++i)
    for (Index head = 0; head < s.heads; ++head) {
      auto q = detail::head_view(qkv.data(), 3 * s.width, 0, s, i, head);
      auto k = detail::head_view(qkv.data(), 3 * s.width, s.width, s, i, head);
      auto v = detail::head_view(qkv.data(), 3 * s.width, 2 * s.width, s, i, head);
      auto const dm = detail::head_view(dmixed, s.width, 0, s, i, head);
      auto const p =
          view(share.data() + (i * s.heads + head) * s.length * s.length, s.length, s.length);
      ds.noalias() = dm * v.transpose();
      v.noalias() = p.transpose() * dm;
      for (Index t = 0; t < s.length; ++t) {  // masked entries have p = 0, so ds = 0
        auto const shares = p.row(t).array();
        auto slopes = ds.row(t).array();
        slopes = shares * (slopes - (shares * slopes).sum()) * scale;
      }
      dq.noalias() = ds * k;
      dk.noalias() = ds.transpose() * q;
      q = dq;
      k = dk;
    }
}

}  // namespace gpt
