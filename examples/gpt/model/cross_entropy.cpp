// SPDX-License-Identifier: Apache-2.0
#include "cross_entropy.hpp"

#include <cmath>
#include <string>
#include <utility>

#include <stagger/core/error.hpp>

#include "layers/eigen.hpp"

namespace gpt {

namespace {

// Returns the loss of one row and the sum of its exponentials, which it writes to `exponentials`.
template <class T>
std::pair<double, double> one(stagger::Tensor<T> const& y, std::size_t r, Index label,
                              Eigen::Map<Row<T>>& exponentials) {
  auto const logits = row(y.data() + count(r) * classes, classes);
  T const largest = logits.maxCoeff();
  exponentials = (logits - largest).exp();
  auto const total = static_cast<double>(exponentials.sum());
  return {std::log(total) + static_cast<double>(largest) - static_cast<double>(logits[label]),
          total};
}

template <class T> void check(stagger::Tensor<T> const& y, Tokens const& target) {
  if (y.size() != target.size() * count(classes))
    throw stagger::Error(stagger::Errc::mismatch,
                         "the model's output has " + std::to_string(y.size() / count(classes)) +
                             " rows and the target " + std::to_string(target.size()) +
                             "; give each row one byte");
}

}  // namespace

template <class T>
double CrossEntropy<T>::value(stagger::Context& context, stagger::Tensor<T> const& y,
                              Target const& target) const {
  auto exponentials = row(context.scratch<T>(count(classes)).data(), classes);
  check(y, target);
  double sum = 0;
  for (std::size_t r = 0; r < target.size(); ++r) sum += one(y, r, target[r], exponentials).first;
  return sum;
}

template <class T>
double CrossEntropy<T>::value_and_gradient(stagger::Context&, stagger::Tensor<T> const& y,
                                           Target const& target, double scale,
                                           stagger::Tensor<T>& dy) const {
  check(y, target);
  dy.resize_like(y);
  double sum = 0;
  for (std::size_t r = 0; r < target.size(); ++r) {
    auto slope = row(dy.data() + count(r) * classes, classes);
    auto const [loss, exponentials] = one(y, r, target[r], slope);
    slope *= static_cast<T>(scale / exponentials);
    slope[target[r]] -= static_cast<T>(scale);
    sum += loss;
  }
  return sum;
}

template struct CrossEntropy<float>;
template struct CrossEntropy<double>;

}  // namespace gpt
