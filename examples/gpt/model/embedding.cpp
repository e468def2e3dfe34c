// SPDX-License-Identifier: Apache-2.0
#include "embedding.hpp"

#include <string>

#include <stagger/core/error.hpp>

#include "layers/eigen.hpp"

namespace gpt {

template <class T>
Embedding<T>::Embedding(Index width, Index positions, Random& random)
    : width_(width),
      token_(normal_parameter<T>("token", random, count(classes * width), 0.1)),
      position_(normal_parameter<T>("position", random, count(positions * width), 0.1)) {}

template <class T>
void Embedding<T>::forward(stagger::Context& context, Tokens const& x, Output& y,
                           stagger::NothingSaved&) const {
  Index const length = check(x);
  y.resize({x.extent(0), x.extent(1), count(width_)});
  T const* const token = context[token_].data();
  T const* const position = context[position_].data();
  for (Index i = 0; i < count(x.size()); ++i)
    row(y.data() + i * width_, width_) =
        row(token + x[count(i)] * width_, width_) + row(position + i % length * width_, width_);
}

template <class T>
void Embedding<T>::backward_weight(stagger::Context& context, Tokens const& x, Output const& dy,
                                   stagger::NothingSaved&) const {
  Index const length = check(x);
  T* const token = context.gradient(token_).data();
  T* const position = context.gradient(position_).data();
  for (Index i = 0; i < count(x.size()); ++i) {
    auto const from = row(dy.data() + i * width_, width_);
    row(token + x[count(i)] * width_, width_) += from;
    row(position + i % length * width_, width_) += from;
  }
}

template <class T> Index Embedding<T>::check(Tokens const& x) const {
  Index const length = count(x.extent(1));
  if (length * width_ > count(position_.size()))
    throw stagger::Error(stagger::Errc::mismatch,
                         "a sequence of " + std::to_string(length) +
                             " bytes is longer than the context of " +
                             std::to_string(count(position_.size()) / width_) + "; cut it");
  return length;
}

template class Embedding<float>;
template class Embedding<double>;

}  // namespace gpt
