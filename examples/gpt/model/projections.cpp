// SPDX-License-Identifier: Apache-2.0
#include "projections.hpp"

#include <cmath>
#include <string>
#include <type_traits>
#include <utility>
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

template <class T> auto view(Rows<T> matrix, Index rows, Index columns) {
  using View = std::conditional_t<std::is_const_v<T>, ConstMatrixView<std::remove_const_t<T>>,
                                  MatrixView<std::remove_const_t<T>>>;
  return View(matrix.data, rows, columns, Eigen::OuterStride<>(matrix.stride));
}
using layers::view;

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
void Projections<T>::forward(stagger::Context& context, Sequences s, Rows<T const> x,
                             Rows<T const> residual, T* y, Saved& saved) const {
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
  auto const middle = view(saved.middle.data(), rows, middle_);
  auto const second = weight(context, second_weight_, middle_, width_);
  if (!adds_once()) return multiply(middle, second, view(y, rows, width_));
  view(y, rows, width_) =
      view(residual, rows, width_).rowwise() + row(context[second_bias_].data(), width_).matrix();
  add_product(middle, second, view(y, rows, width_));
}

template <class T>
void Projections<T>::backward_input(stagger::Context& context, Sequences s, T const* dy, Rows<T> dx,
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
void Projections<T>::backward_weight(stagger::Context& context, Sequences s, Rows<T const> x,
                                     T const* dy, Saved const& saved) const {
  Index const rows = s.rows();
  add_weight(context, second_weight_, second_bias_, view(saved.middle.data(), rows, middle_),
             view(dy, rows, width_));
  add_weight(context, first_weight_, first_bias_, view(x, rows, width_),
             view(saved.first.data(), rows, first_columns()));
}

template <class T>
Projections<T> Projections<T>::part(int member, int members, stagger::SplitBy) const {
  auto const mine = stagger::features_of(member, members, hidden());
  std::size_t const each = count(middle_) / hidden();  // columns of a head
  std::size_t const first = mine.first * each;
  std::size_t const length = mine.size() * each;
  // Queries, keys and values have such columns each.
  std::size_t const kinds = count(first_columns() / middle_);
  Projections own = *this;
  own.middle_ = count(length);
  if (heads_ > 0) own.heads_ = count(mine.size());
  own.first_weight_ = first_weight_.piece(
      {.first = first, .length = length, .stride = count(middle_), .runs = kinds * count(width_)});
  own.first_bias_ = first_bias_.piece(
      {.first = first, .length = length, .stride = count(middle_), .runs = kinds});
  own.second_weight_ =
      second_weight_.piece({.first = first * count(width_), .length = length * count(width_)});
  own.second_bias_ = second_bias_.piece({.length = member == 0 ? count(width_) : 0});
  return own;
}

template <class T>
void Projections<T>::forward(stagger::Context& context, Input const& x, Output& y,
                             Saved& saved) const {
  y.resize({x.extent(0), x.extent(1), count(width_)});
  forward(context, sequences_of(x), {x.data() + width_, 2 * width_}, {x.data(), 2 * width_},
          y.data(), saved);
}

template <class T>
void Projections<T>::backward_input(stagger::Context& context, Input const& x, Output const& dy,
                                    Input& dx, Saved& saved) const {
  Sequences const s = sequences_of(x);
  dx.resize_like(x);
  auto dresidual = view(Rows<T>{dx.data(), 2 * width_}, s.rows(), width_);
  if (adds_once())
    dresidual = view(dy.data(), s.rows(), width_);
  else
    dresidual.setZero();
  backward_input(context, s, dy.data(), {dx.data() + width_, 2 * width_}, saved);
}

template <class T>
void Projections<T>::backward_weight(stagger::Context& context, Input const& x, Output const& dy,
                                     Saved& saved) const {
  backward_weight(context, sequences_of(x), {x.data() + width_, 2 * width_}, dy.data(), saved);
}

template class Projections<float>;
template class Projections<double>;

}  // namespace gpt
