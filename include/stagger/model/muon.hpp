// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Muon: steps of matrices whose singular values are all nearly 1.
/// @source K. Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024
///         (https://kellerjordan.github.io/posts/muon).

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <tuple>

#include <stagger/core/math.hpp>
#include <stagger/model/optimizer.hpp>

namespace stagger::optimizer {

/// Of a parameter that is a matrix, as `Parameter::matrix` says: velocity = momentum * velocity +
/// gradient; value -= rate * sqrt(max(1, rows / columns)) * O, where O is gradient + momentum *
/// velocity with all singular values brought near 1 by five steps of a Newton-Schulz iteration. Of
/// all others, such as biases: the step of AdamW. Embeddings and the last layer of a model usually
/// do not say that they are matrices.
struct Muon {
  using policy_tag = OptimizerTag;
  static constexpr std::string_view name = "Muon";
  static constexpr int states = 2;  // of a matrix: the velocity, and O
  static constexpr bool element_wise = false;

  double rate = 0.02;       ///< per step, of matrices
  double momentum = 0.95;   ///< 0 <= momentum < 1
  double weight_decay = 0;  ///< value -= rate * weight_decay * value, of matrices
  AdamW others{.rate = 3e-4, .weight_decay = 0};  ///< for all other parameters

  [[nodiscard]] auto fields() const {
    return std::tie(rate, momentum, weight_decay, others.rate, others.beta1, others.beta2,
                    others.epsilon, others.weight_decay);
  }
  /// @throws Error  bad_configuration for numbers that cannot train
  void check() const {
    detail::require_rate(rate);
    detail::require_decay("momentum", momentum);
    detail::require_weight_decay(weight_decay);
    others.check();
  }

  template <class T>
  void update(OptimizerView<T> const& v, double gradient_scale, std::int64_t step) const noexcept {
    if (v.rows == 0) return others.update(v, gradient_scale, step);
    advance(v, gradient_scale, v.decays ? 1 - rate * weight_decay : 1);
  }
  template <class T>
  void change(OptimizerView<T> const& v, double gradient_scale, std::int64_t step) const noexcept {
    if (v.rows == 0) return others.change(v, gradient_scale, step);
    advance(v, gradient_scale, v.decays ? -rate * weight_decay : 0);
  }

 private:
  /// The number of the Newton-Schulz iteration's steps, and x -> a x + b x^3 + c x^5, its effect on
  /// singular values.
  static constexpr int iterations = 5;
  static constexpr double a = 3.4445, b = -4.7750, c = 2.0315;
  static constexpr double least_norm = 1e-7;  // added to the norm by which a matrix is divided

  /// @param kept  share of the values in what is written
  template <class T>
  void advance(OptimizerView<T> const& v, double gradient_scale, double kept) const noexcept {
    std::size_t const rows = v.rows, columns = v.size / v.rows;
    bool const tall = rows > columns;  // then its transpose is brought near an orthogonal matrix
    auto const place = [=](std::size_t row, std::size_t column) {
      return tall ? column * rows + row : row * columns + column;
    };
    T* const x = v.state[1];
    auto const scale = static_cast<T>(gradient_scale);
    auto const mu = static_cast<T>(momentum);
    double squares = 0;
    for (std::size_t row = 0, i = 0; row < rows; ++row)
      for (std::size_t column = 0; column < columns; ++column, ++i) {
        T const g = v.gradient[i] * scale;
        T const velocity = mu * v.state[0][i] + g;
        T const wanted = g + mu * velocity;
        v.state[0][i] = velocity;
        x[place(row, column)] = wanted;
        squares += static_cast<double>(wanted) * static_cast<double>(wanted);
      }
    double const inverse = 1 / (detail::math::sqrt(squares) + least_norm);
    for (std::size_t i = 0; i < v.size; ++i)
      x[i] = static_cast<T>(static_cast<double>(x[i]) * inverse);
    orthogonalise(x, tall ? columns : rows, tall ? rows : columns, v.work());
    double const length =
        tall ? detail::math::sqrt(static_cast<double>(rows) / static_cast<double>(columns)) : 1;
    auto const eta = static_cast<T>(rate * length);
    auto const keep = static_cast<T>(kept);
    for (std::size_t row = 0, i = 0; row < rows; ++row)
      for (std::size_t column = 0; column < columns; ++column, ++i)
        v.next[i] = keep * v.value[i] - eta * x[place(row, column)];
  }

  /// x = a x + (b A + c A^2) x with A = x x^T, several times. As much memory as x has is enough:
  /// for the lower triangle of A, row by row, and for some columns of x and of b x + c A x.
  /// @param x     [n][m], n <= m
  /// @param work  [n * m]
  template <class T>
  static void orthogonalise(T* x, std::size_t n, std::size_t m, T* work) noexcept {
    constexpr std::size_t few = 4, most_columns = 64;
    std::array<T, few*(few + 1) / 2 + 2 * few> instead;  // of a small matrix, which has no room
    std::size_t const triangle = n * (n + 1) / 2;
    bool const room = n * m >= triangle + 2 * n;
    T* const product = room ? work : instead.data();
    std::size_t at_once = room ? (n * m - triangle) / (2 * n) : 1;
    if (at_once > most_columns) at_once = most_columns;
    T* const some = product + triangle;
    T* const more = some + n * at_once;
    for (int iteration = 0; iteration < iterations; ++iteration) {
      for (std::size_t i = 0, at = 0; i < n; ++i)
        for (std::size_t k = 0; k <= i; ++k) product[at++] = dot(x + i * m, x + k * m, m);
      for (std::size_t first = 0; first < m; first += at_once) {
        std::size_t const columns = m - first < at_once ? m - first : at_once;
        for (std::size_t i = 0; i < n; ++i)
          for (std::size_t j = 0; j < columns; ++j) {
            T& one = x[i * m + first + j];
            some[i * columns + j] = one;
            more[i * columns + j] = static_cast<T>(b) * one;
            one *= static_cast<T>(a);
          }
        add_product(product, n, static_cast<T>(c), some, columns, more, columns);
        add_product(product, n, T{1}, more, columns, x + first, m);
      }
    }
  }

  /// Elements that a loop goes over at once: of a trip count that is a constant, -O2 makes vector
  /// code.
  static constexpr std::size_t lanes = 8;
  template <class Body> static void each(std::size_t size, Body body) noexcept {
    std::size_t j = 0;
    for (; size - j >= lanes; j += lanes)
      for (std::size_t lane = 0; lane < lanes; ++lane) body(j + lane);
    for (; j < size; ++j) body(j);
  }

  /// @param p, q  [size]
  template <class T> [[nodiscard]] static T dot(T const* p, T const* q, std::size_t size) noexcept {
    std::array<T, lanes> sums{};  // which do not depend on each other
    std::size_t i = 0;
    for (; size - i >= lanes; i += lanes)
      for (std::size_t lane = 0; lane < lanes; ++lane) sums[lane] += p[i + lane] * q[i + lane];
    T sum = 0;
    for (; i < size; ++i) sum += p[i] * q[i];
    for (T const one : sums) sum += one;
    return sum;
  }

  /// to += factor * A * from.
  /// @param triangle  of A [n][n], which is symmetric
  /// @param from      [n][columns]
  /// @param to        [n][columns] of rows that begin `stride` apart
  template <class T>
  static void add_product(T const* triangle, std::size_t n, T factor, T const* from,
                          std::size_t columns, T* to, std::size_t stride) noexcept {
    auto const weight = [=](std::size_t i, std::size_t k) {
      return factor * triangle[k <= i ? i * (i + 1) / 2 + k : k * (k + 1) / 2 + i];
    };
    for (std::size_t i = 0; i < n; ++i) {
      T* __restrict const sum = to + i * stride;
      std::size_t k = 0;
      for (; n - k >= 4; k += 4) {  // so that a sum is read and written a quarter as often
        T const w[] = {weight(i, k), weight(i, k + 1), weight(i, k + 2), weight(i, k + 3)};
        T const* const row = from + k * columns;
        each(columns, [&](std::size_t j) {
          sum[j] += w[0] * row[j] + w[1] * row[columns + j] +
                    (w[2] * row[2 * columns + j] + w[3] * row[3 * columns + j]);
        });
      }
      for (; k < n; ++k) {
        T const w = weight(i, k);
        each(columns, [&](std::size_t j) { sum[j] += w * from[k * columns + j]; });
      }
    }
  }
};

}  // namespace stagger::optimizer
