// SPDX-License-Identifier: Apache-2.0
#include "attention.hpp"

#include <cmath>

#include "layers/products.hpp"

namespace gpt {

namespace {
// The block of a matrix that belongs to one sequence and head.
template <class T>
[[nodiscard]] MatrixView<T> head_view(T* matrix, Index columns, Index first_column,
                                      AttentionShape const& s, Index i, Index head) {
  return {matrix + i * s.length * columns + first_column + head * s.depth(), s.length, s.depth(),
          Eigen::OuterStride<>(columns)};
}
}  // namespace

template <class T>
void attend(AttentionShape const& s, stagger::Tensor<T>& qkv, stagger::Tensor<T>& share,
            stagger::Tensor<T>& mixed) {
  share.resize({count(s.sequences), count(s.heads), count(s.length), count(s.length)});
  mixed.resize({count(s.rows()), count(s.width)});
  T const scale = static_cast<T>(1 / std::sqrt(static_cast<double>(s.depth())));
  for (Index i = 0; i < s.sequences; ++i)
    for (Index head = 0; head < s.heads; ++head) {
      auto const q = head_view(qkv.data(), 3 * s.width, 0, s, i, head);
      auto const k = head_view(qkv.data(), 3 * s.width, s.width, s, i, head);
      auto const v = head_view(qkv.data(), 3 * s.width, 2 * s.width, s, i, head);
      auto p = view(share.data() + (i * s.heads + head) * s.length * s.length, s.length, s.length);
      multiply(q, transposed(k), p);
      for (Index t = 0; t < s.length; ++t) {
        auto seen = p.row(t).head(t + 1).array();
        T const largest = seen.maxCoeff();
        seen = ((seen - largest) * scale).exp();
        seen *= T{1} / seen.sum();
        p.row(t).tail(s.length - t - 1).setZero();
      }
      multiply(p, v, head_view(mixed.data(), s.width, 0, s, i, head));
    }
}

template <class T>
void attend_backward(stagger::Context& context, AttentionShape const& s, T* dmixed,
                     stagger::Tensor<T> const& share, stagger::Tensor<T>& qkv) {
  T const scale = static_cast<T>(1 / std::sqrt(static_cast<double>(s.depth())));
  auto ds = view(context.scratch<T>(count(s.length * s.length)).data(), s.length, s.length);
  auto dq = view(context.scratch<T>(count(s.length * s.depth())).data(), s.length, s.depth());
  auto dk = view(context.scratch<T>(count(s.length * s.depth())).data(), s.length, s.depth());
  for (Index i = 0; i < s.sequences; ++i)
    for (Index head = 0; head < s.heads; ++head) {
      auto q = head_view(qkv.data(), 3 * s.width, 0, s, i, head);
      auto k = head_view(qkv.data(), 3 * s.width, s.width, s, i, head);
      auto v = head_view(qkv.data(), 3 * s.width, 2 * s.width, s, i, head);
      auto const dm = head_view(dmixed, s.width, 0, s, i, head);
      auto const p =
          view(share.data() + (i * s.heads + head) * s.length * s.length, s.length, s.length);
      multiply(dm, transposed(v), ds);
      multiply(transposed(p), dm, v);
      for (Index t = 0; t < s.length; ++t) {  // masked entries have p = 0, so ds = 0
        auto const shares = p.row(t).array();
        auto slopes = ds.row(t).array();
        slopes = shares * (slopes - (shares * slopes).sum()) * scale;
      }
      multiply(ds, k, dq);
      multiply(transposed(ds), q, dk);
      q = dq;
      k = dk;
    }
}

template void attend(AttentionShape const&, stagger::Tensor<float>&, stagger::Tensor<float>&,
                     stagger::Tensor<float>&);
template void attend(AttentionShape const&, stagger::Tensor<double>&, stagger::Tensor<double>&,
                     stagger::Tensor<double>&);
template void attend_backward(stagger::Context&, AttentionShape const&, float*,
                              stagger::Tensor<float> const&, stagger::Tensor<float>&);
template void attend_backward(stagger::Context&, AttentionShape const&, double*,
                              stagger::Tensor<double> const&, stagger::Tensor<double>&);

}  // namespace gpt
