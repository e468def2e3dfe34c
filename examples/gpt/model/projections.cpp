// SPDX-License-Identifier: Apache-2.0
#include "projections.hpp"

#include <cmath>
#include <string>
#include <vector>

#include <stagger/model/parameter.hpp>

#include "layers/products.hpp"

namespace gpt {

namespace {

template <class T>
stagger::Parameter<T> matrix(std::string const& name, Random& random, Index inputs, Index outputs,
                             Index shrink) {
  return normal_parameter<T>(
      name + ".weight", random, count(inputs * outputs),
      1 / std::sqrt(static_cast<double>(inputs) * static_cast<double>(shrink)));
}
template <class T> stagger::Parameter<T> zeros(std::string const& name, Index size) {
  return {name + ".bias", std::vector<T>(count(size)), false};
}

template <class T> T* scratch(stagger::Context& context, Index rows, Index columns) {
  return context.scratch<T>(count(rows * columns)).data();
}

template <class T>
ConstMatrixView<T> weight(stagger::Context& context, stagger::Parameter<T> const& parameter,
                          Index inputs, Index outputs) {
  return view(context[parameter].data(), inputs, outputs);
}

// Gradient of weight and bias of output = input * weight + bias.
template <class T>
void add_weight(stagger::Context& context, stagger::Parameter<T> const& weight,
                stagger::Parameter<T> const& bias, ConstMatrixView<T> const& input,
                ConstMatrixView<T> const& doutput) {
  add_product(transposed(input), doutput,
              view(context.gradient(weight).data(), input.cols(), doutput.cols()));
  add_column_sums(doutput.data(), doutput.rows(), context.gradient(bias));
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
Projections<T>::Projections(Index width, Index heads, Index middle, char const* first,
                            char const* second, Index blocks, Random& random)
    : width_(width),
      heads_(heads),
      middle_(middle),
      first_weight_(matrix<T>(first, random, width, first_columns(), 1)),
      first_bias_(zeros<T>(first, first_columns())),
      second_weight_(matrix<T>(second, random, middle, width, 2 * blocks)),
      second_bias_(zeros<T>(second, width)) {}

template <class T>
Projections<T> Projections<T>::attention(Index width, Index heads, Index blocks, Random& random) {
  return Projections(width, heads, width, "qkv", "out", blocks, random);
}
template <class T> Projections<T> Projections<T>::mlp(Index width, Index blocks, Random& random) {
  return Projections(width, 0, 4 * width, "up", "down", blocks, random);
}

template <class T>
void Projections<T>::forward(stagger::Context& context, Sequences s, T const* x, T const* residual,
                             T* y, Saved& saved) const {
  Index const rows = s.rows();
  saved.first.resize({count(rows), count(first_columns())});
  fill_rows(saved.first.data(), rows, context[first_bias_]);
  add_product(view(x, rows, width_), weight(context, first_weight_, width_, first_columns()),
              view(saved.first.data(), rows, first_columns()));
  if (heads_ > 0) {
    attend(shape(s), saved.first, saved.share, saved.middle);
  } else {
    saved.middle.resize_like(saved.first);
    gelu(context, saved.first, saved.middle);
  }
  view(y, rows, width_) =
      view(residual, rows, width_).rowwise() + row(context[second_bias_].data(), width_).matrix();
  add_product(view(saved.middle.data(), rows, middle_),
              weight(context, second_weight_, middle_, width_), view(y, rows, width_));
}

template <class T>
void Projections<T>::backward_input(stagger::Context& context, Sequences s, T const* dy, T* dx,
                                    Saved& saved) const {
  Index const rows = s.rows();
  T* const dmiddle = scratch<T>(context, rows, middle_);
  multiply(view(dy, rows, width_), transposed(weight(context, second_weight_, middle_, width_)),
           view(dmiddle, rows, middle_));
  if (heads_ > 0)
    attend_backward(context, shape(s), dmiddle, saved.share, saved.first);
  else
    row(saved.first.data(), rows * middle_) *= row(dmiddle, rows * middle_);
  multiply(view(std::as_const(saved.first).data(), rows, first_columns()),
           transposed(weight(context, first_weight_, width_, first_columns())),
           view(dx, rows, width_));
}

template <class T>
void Projections<T>::backward_weight(stagger::Context& context, Sequences s, T const* x,
                                     T const* dy, Saved const& saved) const {
  Index const rows = s.rows();
  add_weight(context, second_weight_, second_bias_, view(saved.middle.data(), rows, middle_),
             view(dy, rows, width_));
  add_weight(context, first_weight_, first_bias_, view(x, rows, width_),
             view(saved.first.data(), rows, first_columns()));
}

template class Projections<float>;
template class Projections<double>;

}  // namespace gpt
