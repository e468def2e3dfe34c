// SPDX-License-Identifier: Apache-2.0
#include "dense.hpp"

#include <cmath>
#include <cstddef>
#include <vector>

#include <stagger/core/error.hpp>

#include "layers/products.hpp"

namespace vgg {

using layers::count;
using layers::view;

template <class T>
Dense<T>::Dense(Index inputs, Index outputs, std::optional<Dropout> dropout, layers::Random& random)
    : inputs_(inputs),
      outputs_(outputs),
      dropout_(dropout),
      weight_(
          layers::normal_parameter<T>("weight", random, count(inputs * outputs),
                                      std::sqrt((dropout ? 2 : 1) / static_cast<double>(inputs)))),
      bias_("bias", std::vector<T>(count(outputs)), false) {}

template <class T> Dense<T> Dense<T>::part(int member, int members, stagger::SplitBy) const {
  auto const mine = stagger::features_of(member, members, outputs());
  Dense own = *this;
  own.outputs_ = static_cast<Index>(mine.size());
  own.first_output_ = first_output_ + static_cast<Index>(mine.first);
  own.weight_ = weight_.piece({mine.first, mine.size(), outputs(), inputs()});
  own.bias_ = bias_.piece({.first = mine.first, .length = mine.size()});
  return own;
}

template <class T>
void Dense<T>::forward(stagger::Context& context, Input const& x, Output& y, Saved& saved) const {
  std::size_t const rows = x.rows();
  if (x.size() != rows * count(inputs_))
    stagger::raise(stagger::Errc::mismatch, "a dense layer of ", stagger::counted(inputs_, "input"),
                   " was given ", stagger::counted(rows, "example"), " of ", x.size(),
                   " numbers together; give each layer what the one before it returns");
  y.resize({rows, count(outputs_)});
  layers::fill_rows(y.data(), count(rows), context[bias_]);
  layers::add_product(view(x.data(), count(rows), inputs_),
                      view(context[weight_].data(), inputs_, outputs_),
                      view(y.data(), count(rows), outputs_));
  if (!dropout_) return;
  saved.slope.resize_like(y);
  bool const acts = dropout_->acts(context);
  T const kept = acts ? static_cast<T>(1 / (1 - dropout_->rate)) : T{1};
  std::size_t const first = dropout_->first_example(context);
  std::size_t const first_feature = count(first_output_);
  for (std::size_t r = 0, e = 0; r < rows; ++r)
    for (std::size_t feature = 0; feature < count(outputs_); ++feature, ++e) {
      bool const on = y[e] > T{0} && !(acts && dropout_->drops(context.step(), first + r,
                                                               first_feature + feature));
      saved.slope[e] = on ? kept : T{0};
      y[e] *= saved.slope[e];  // a NaN stays one
    }
}

template <class T>
T const* Dense<T>::before_dropout(stagger::Context& context, Output const& dy,
                                  Saved const& saved) const {
  if (!dropout_) return dy.data();
  T* const dz = context.scratch<T>(dy.size()).data();
  for (std::size_t e = 0; e < dy.size(); ++e) dz[e] = dy[e] * saved.slope[e];
  return dz;
}

template <class T>
void Dense<T>::backward_input(stagger::Context& context, Input const& x, Output const& dy,
                              Input& dx, Saved& saved) const {
  Index const rows = count(x.rows());
  dx.resize_like(x);
  layers::multiply(view(before_dropout(context, dy, saved), rows, outputs_),
                   layers::transposed(view(context[weight_].data(), inputs_, outputs_)),
                   view(dx.data(), rows, inputs_));
}

template <class T>
void Dense<T>::backward_weight(stagger::Context& context, Input const& x, Output const& dy,
                               Saved& saved) const {
  Index const rows = count(x.rows());
  T const* const dz = before_dropout(context, dy, saved);
  layers::add_product(layers::transposed(view(x.data(), rows, inputs_)), view(dz, rows, outputs_),
                      view(context.gradient(weight_).data(), inputs_, outputs_));
  layers::add_column_sums(dz, rows, context.gradient(bias_));
}

template class Dense<float>;
template class Dense<double>;

}  // namespace vgg
