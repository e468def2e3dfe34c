// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A pre-norm transformer block.
/// @source A. Radford et al., "Language Models are Unsupervised Multitask Learners", 2019,
/// section 2.3;
///         D. Hendrycks, K. Gimpel, "Gaussian Error Linear Units (GELUs)", 2016, section 2 (the
///         tanh form).

#include <cmath>
#include <tuple>

#include <stagger/model/context.hpp>

#include "attention.hpp"
#include "initial.hpp"
#include "norm.hpp"

namespace gpt {

/// h = x + attention(norm(x));  y = h + mlp(norm(h)).
///
/// `backward_input` replaces queries, keys, values and the slope of the GELU by the gradients that
/// `backward_weight` multiplies with the inputs of the products; all products of weight gradients
/// are in the latter.
template <class T> class Block {
 public:
  using Input = stagger::Tensor<T>;  ///< [sequences][length][width]
  using Output = stagger::Tensor<T>;

  struct Saved {
    typename Norm<T>::Saved norm1, norm2;
    stagger::Tensor<T> qkv;     ///< [rows][3 width], then its gradient
    stagger::Tensor<T> share;   ///< [sequences][heads][length][length]
    stagger::Tensor<T> mixed;   ///< [rows][width] output of the heads
    stagger::Tensor<T> dh;      ///< [rows][width] gradient between attention and MLP
    stagger::Tensor<T> hidden;  ///< [rows][4 width] after the GELU
    stagger::Tensor<T> slope;   ///< [rows][4 width] of the GELU, then the gradient before it
    [[nodiscard]] std::uint64_t bytes() const noexcept {
      return norm1.bytes() + norm2.bytes() + qkv.bytes() + share.bytes() + mixed.bytes() +
             dh.bytes() + hidden.bytes() + slope.bytes();
    }
  };

  /// @param layers  number of blocks of the model: the more, the smaller each one's first
  /// contribution
  /// @pre width is a multiple of heads
  Block(Index width, Index heads, Index layers, Random& random)
      : width_(width),
        heads_(heads),
        norm1_("norm1", width),
        qkv_weight_(matrix("qkv.weight", random, width, 3 * width, 1)),
        qkv_bias_("qkv.bias", std::vector<T>(count(3 * width)), false),
        out_weight_(matrix("out.weight", random, width, width, 2 * layers)),
        out_bias_("out.bias", std::vector<T>(count(width)), false),
        norm2_("norm2", width),
        up_weight_(matrix("up.weight", random, width, 4 * width, 1)),
        up_bias_("up.bias", std::vector<T>(count(4 * width)), false),
        down_weight_(matrix("down.weight", random, 4 * width, width, 2 * layers)),
        down_bias_("down.bias", std::vector<T>(count(width)), false) {}

  auto parameters() {
    return std::tie(norm1_.gain, norm1_.bias, qkv_weight_, qkv_bias_, out_weight_, out_bias_,
                    norm2_.gain, norm2_.bias, up_weight_, up_bias_, down_weight_, down_bias_);
  }

  void forward(stagger::Context& context, Input const& x, Output& y, Saved& saved) const {
    AttentionShape const s = shape(x);
    Index const rows = s.rows();
    T* const normal = scratch(context, rows, width_);
    T* const h = scratch(context, rows, width_);

    norm1_.forward(context, x.data(), normal, rows, saved.norm1);
    saved.qkv.resize({count(rows), count(3 * width_)});
    fill_rows(saved.qkv.data(), rows, context[qkv_bias_]);
    view(saved.qkv.data(), rows, 3 * width_).noalias() +=
        view(normal, rows, width_) * weight(context, qkv_weight_, width_);
    attend(s, saved.qkv, saved.share, saved.mixed);
    view(h, rows, width_) =
        view(x.data(), rows, width_).rowwise() + row(context[out_bias_].data(), width_).matrix();
    view(h, rows, width_).noalias() +=
        view(saved.mixed.data(), rows, width_) * weight(context, out_weight_, width_);

    norm2_.forward(context, h, normal, rows, saved.norm2);
    saved.slope.resize({count(rows), count(4 * width_)});
    fill_rows(saved.slope.data(), rows, context[up_bias_]);
    view(saved.slope.data(), rows, 4 * width_).noalias() +=
        view(normal, rows, width_) * weight(context, up_weight_, width_);
    saved.hidden.resize_like(saved.slope);
    gelu(context, saved.slope, saved.hidden);
    y.resize_like(x);
    view(y.data(), rows, width_) =
        view(h, rows, width_).rowwise() + row(context[down_bias_].data(), width_).matrix();
    view(y.data(), rows, width_).noalias() +=
        view(saved.hidden.data(), rows, 4 * width_) * weight(context, down_weight_, 4 * width_);
  }

  void backward_input(stagger::Context& context, Input const& x, Output const& dy, Input& dx,
                      Saved& saved) const {
    AttentionShape const s = shape(x);
    Index const rows = s.rows();
    T* const wide = scratch(context, rows, 4 * width_);
    T* const narrow = scratch(context, rows, width_);

    view(wide, rows, 4 * width_).noalias() =
        view(dy.data(), rows, width_) * weight(context, down_weight_, 4 * width_).transpose();
    row(saved.slope.data(), rows * 4 * width_) *= row(wide, rows * 4 * width_);
    view(narrow, rows, width_).noalias() = view(saved.slope.data(), rows, 4 * width_) *
                                           weight(context, up_weight_, width_).transpose();
    saved.dh.resize_like(x);
    norm2_.backward(context, narrow, dy.data(), saved.dh.data(), rows, saved.norm2);

    view(narrow, rows, width_).noalias() =
        view(saved.dh.data(), rows, width_) * weight(context, out_weight_, width_).transpose();
    attend_backward(context, s, narrow, saved.share, saved.qkv);
    view(narrow, rows, width_).noalias() =
        view(saved.qkv.data(), rows, 3 * width_) * weight(context, qkv_weight_, width_).transpose();
    dx.resize_like(x);
    norm1_.backward(context, narrow, saved.dh.data(), dx.data(), rows, saved.norm1);
  }

  void backward_weight(stagger::Context& context, Input const& x, Output const& dy,
                       Saved& saved) const {
    Index const rows = shape(x).rows();
    T* const normal = scratch(context, rows, width_);

    add_product(context, down_weight_, down_bias_, saved.hidden.data(), dy.data(), rows);
    norm2_.output(context, saved.norm2, normal, rows);
    add_product(context, up_weight_, up_bias_, normal, saved.slope.data(), rows);
    norm2_.add_gradients(context, saved.norm2);

    add_product(context, out_weight_, out_bias_, saved.mixed.data(), saved.dh.data(), rows);
    norm1_.output(context, saved.norm1, normal, rows);
    add_product(context, qkv_weight_, qkv_bias_, normal, saved.qkv.data(), rows);
    norm1_.add_gradients(context, saved.norm1);
  }

 private:
  static stagger::Parameter<T> matrix(char const* name, Random& random, Index inputs, Index outputs,
                                      Index shrink) {
    return normal_parameter<T>(
        name, random, count(inputs * outputs),
        1 / std::sqrt(static_cast<double>(inputs) * static_cast<double>(shrink)));
  }

  [[nodiscard]] AttentionShape shape(Input const& x) const {
    return {count(x.extent(0)), count(x.extent(1)), heads_, width_};
  }

  static T* scratch(stagger::Context& context, Index rows, Index columns) {
    return context.scratch<T>(count(rows * columns)).data();
  }

  static ConstMatrixView<T> weight(stagger::Context& context,
                                   stagger::Parameter<T> const& parameter, Index inputs) {
    return view(context[parameter].data(), inputs, count(parameter.size()) / inputs);
  }

  // Gradient of weight and bias of output = input * weight + bias.
  static void add_product(stagger::Context& context, stagger::Parameter<T> const& weight,
                          stagger::Parameter<T> const& bias, T const* input, T const* doutput,
                          Index rows) {
    Index const outputs = count(bias.size());
    Index const inputs = count(weight.size()) / outputs;
    view(context.gradient(weight).data(), inputs, outputs).noalias() +=
        view(input, rows, inputs).transpose() * view(doutput, rows, outputs);
    add_column_sums(doutput, rows, context.gradient(bias));
  }

  // hidden = GELU(slope); slope = its derivative there.
  void gelu(stagger::Context& context, stagger::Tensor<T>& slope,
            stagger::Tensor<T>& hidden) const {
    constexpr T a = static_cast<T>(0.7978845608028654);  // sqrt(2 / pi)
    constexpr T b = static_cast<T>(0.044715);
    Index const columns = 4 * width_;
    auto t = row(scratch(context, 1, columns), columns);
    for (Index r = 0; r < count(slope.extent(0)); ++r) {
      auto u = row(slope.data() + r * columns, columns);
      auto g = row(hidden.data() + r * columns, columns);
      t = (u * (a + (a * b) * u.square())).tanh();
      g = (T{0.5} * u) * (T{1} + t);
      u = T{0.5} * (T{1} + t) + (T{0.5} * u) * (T{1} - t.square()) * (a + (3 * a * b) * u.square());
    }
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
