// SPDX-License-Identifier: Apache-2.0
#include "block.hpp"

#include <cmath>
#include <vector>

#include <stagger/model/parameter.hpp>

#include "layers/products.hpp"

namespace gpt {

namespace {

template <class T>
stagger::Parameter<T> matrix(char const* name, Random& random, Index inputs, Index outputs,
                             Index shrink) {
  return normal_parameter<T>(
      name, random, count(inputs * outputs),
      1 / std::sqrt(static_cast<double>(inputs) * static_cast<double>(shrink)));
}

template <class T> T* scratch(stagger::Context& context, Index rows, Index columns) {
  return context.scratch<T>(count(rows * columns)).data();
}

template <class T>
ConstMatrixView<T> weight(stagger::Context& context, stagger::Parameter<T> const& parameter,
                          Index inputs) {
  return view(context[parameter].data(), inputs, count(parameter.size()) / inputs);
}

// Gradient of weight and bias of output = input * weight + bias.
template <class T>
void add_weight(stagger::Context& context, stagger::Parameter<T> const& weight,
                stagger::Parameter<T> const& bias, T const* input, T const* doutput, Index rows) {
  Index const outputs = count(bias.size());
  Index const inputs = count(weight.size()) / outputs;
  add_product(transposed(view(input, rows, inputs)), view(doutput, rows, outputs),
              view(context.gradient(weight).data(), inputs, outputs));
  add_column_sums(doutput, rows, context.gradient(bias));
}

// hidden = GELU(slope), and slope = the derivative of GELU there.
template <class T>
void gelu(stagger::Context& context, stagger::Tensor<T>& slope, stagger::Tensor<T>& hidden) {
  constexpr T a = static_cast<T>(0.7978845608028654);  // sqrt(2 / pi)
  constexpr T b = static_cast<T>(0.044715);
  Index const columns = count(slope.extent(1));
  auto t = row(scratch<T>(context, 1, columns), columns);
  for (Index r = 0; r < count(slope.extent(0)); ++r) {
    auto u = row(slope.data() + r * columns, columns);
    auto g = row(hidden.data() + r * columns, columns);
    t = (u * (a + (a * b) * u.square())).tanh();
    g = (T{0.5} * u) * (T{1} + t);
    u = T{0.5} * (T{1} + t) + (T{0.5} * u) * (T{1} - t.square()) * (a + (3 * a * b) * u.square());
  }
}

}  // namespace

template <class T>
Block<T>::Block(Index width, Index heads, Index layers, Random& random)
    : width_(width),
      heads_(heads),
      norm1_("norm1", width),
      qkv_weight_(matrix<T>("qkv.weight", random, width, 3 * width, 1)),
      qkv_bias_("qkv.bias", std::vector<T>(count(3 * width)), false),
      out_weight_(matrix<T>("out.weight", random, width, width, 2 * layers)),
      out_bias_("out.bias", std::vector<T>(count(width)), false),
      norm2_("norm2", width),
      up_weight_(matrix<T>("up.weight", random, width, 4 * width, 1)),
      up_bias_("up.bias", std::vector<T>(count(4 * width)), false),
      down_weight_(matrix<T>("down.weight", random, 4 * width, width, 2 * layers)),
      down_bias_("down.bias", std::vector<T>(count(width)), false) {}

template <class T>
void Block<T>::forward(stagger::Context& context, Input const& x, Output& y, Saved& saved) const {
  AttentionShape const s = shape(x);
  Index const rows = s.rows();
  T* const normal = scratch<T>(context, rows, width_);
  T* const h = scratch<T>(context, rows, width_);

  norm1_.forward(context, x.data(), normal, rows, saved.norm1);
  saved.qkv.resize({count(rows), count(3 * width_)});
  fill_rows(saved.qkv.data(), rows, context[qkv_bias_]);
  add_product(view(normal, rows, width_), weight(context, qkv_weight_, width_),
              view(saved.qkv.data(), rows, 3 * width_));
  attend(s, saved.qkv, saved.share, saved.mixed);
  view(h, rows, width_) =
      view(x.data(), rows, width_).rowwise() + row(context[out_bias_].data(), width_).matrix();
  add_product(view(saved.mixed.data(), rows, width_), weight(context, out_weight_, width_),
              view(h, rows, width_));

  norm2_.forward(context, h, normal, rows, saved.norm2);
  saved.slope.resize({count(rows), count(4 * width_)});
  fill_rows(saved.slope.data(), rows, context[up_bias_]);
  add_product(view(normal, rows, width_), weight(context, up_weight_, width_),
              view(saved.slope.data(), rows, 4 * width_));
  saved.hidden.resize_like(saved.slope);
  gelu(context, saved.slope, saved.hidden);
  y.resize_like(x);
  view(y.data(), rows, width_) =
      view(h, rows, width_).rowwise() + row(context[down_bias_].data(), width_).matrix();
  add_product(view(saved.hidden.data(), rows, 4 * width_),
              weight(context, down_weight_, 4 * width_), view(y.data(), rows, width_));
}

template <class T>
void Block<T>::backward_input(stagger::Context& context, Input const& x, Output const& dy,
                              Input& dx, Saved& saved) const {
  AttentionShape const s = shape(x);
  Index const rows = s.rows();
  T* const wide = scratch<T>(context, rows, 4 * width_);
  T* const narrow = scratch<T>(context, rows, width_);

  multiply(view(dy.data(), rows, width_), transposed(weight(context, down_weight_, 4 * width_)),
           view(wide, rows, 4 * width_));
  row(saved.slope.data(), rows * 4 * width_) *= row(wide, rows * 4 * width_);
  multiply(view(saved.slope.data(), rows, 4 * width_),
           transposed(weight(context, up_weight_, width_)), view(narrow, rows, width_));
  saved.dh.resize_like(x);
  norm2_.backward(context, narrow, dy.data(), saved.dh.data(), rows, saved.norm2);

  multiply(view(saved.dh.data(), rows, width_), transposed(weight(context, out_weight_, width_)),
           view(narrow, rows, width_));
  attend_backward(context, s, narrow, saved.share, saved.qkv);
  multiply(view(saved.qkv.data(), rows, 3 * width_),
           transposed(weight(context, qkv_weight_, width_)), view(narrow, rows, width_));
  dx.resize_like(x);
  norm1_.backward(context, narrow, saved.dh.data(), dx.data(), rows, saved.norm1);
}

template <class T>
void Block<T>::backward_weight(stagger::Context& context, Input const& x, Output const& dy,
                               Saved& saved) const {
  Index const rows = shape(x).rows();
  T* const normal = scratch<T>(context, rows, width_);

  add_weight(context, down_weight_, down_bias_, saved.hidden.data(), dy.data(), rows);
  norm2_.output(context, saved.norm2, normal, rows);
  add_weight(context, up_weight_, up_bias_, normal, saved.slope.data(), rows);
  norm2_.add_gradients(context, saved.norm2);

  add_weight(context, out_weight_, out_bias_, saved.mixed.data(), saved.dh.data(), rows);
  norm1_.output(context, saved.norm1, normal, rows);
  add_weight(context, qkv_weight_, qkv_bias_, normal, saved.qkv.data(), rows);
  norm1_.add_gradients(context, saved.norm1);
}

template class Block<float>;
template class Block<double>;

}  // namespace gpt
