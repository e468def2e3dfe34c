// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The bodies of the kernels: what a team of threads computes for one row or column, or one
/// thread for one element. A GPU and, in tests, a host with a team of one thread run the same
/// bodies.
/// @source as in ../model: norm.hpp, attention.hpp, projections.hpp, cross_entropy.hpp.

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace gpt::gpu {

/// Numbers are stored as T; arithmetic is in float.
template <class T> constexpr float value(T const& x) { return static_cast<float>(x); }

/// A team of one thread.
struct OneThread {
  [[nodiscard]] constexpr std::size_t lane() const { return 0; }
  [[nodiscard]] constexpr std::size_t lanes() const { return 1; }
  template <class N> [[nodiscard]] constexpr N sum(N x) const { return x; }
  [[nodiscard]] constexpr float largest(float x) const { return x; }
};

/// For a row: y = normal * gain + bias, normal = (x - mean) * scale, scale = 1 / deviation.
template <class T> struct NormForward {
  T const* x;
  float const* gain;
  float const* bias;
  T* y;
  T* normal;
  float* scale;
  std::size_t width;
  template <class Team> constexpr void operator()(Team const& team, std::size_t row) const {
    T const* const from = x + row * width;
    float sum = 0;
    for (std::size_t c = team.lane(); c < width; c += team.lanes()) sum += value(from[c]);
    float const mean = team.sum(sum) / static_cast<float>(width);
    float squares = 0;
    for (std::size_t c = team.lane(); c < width; c += team.lanes())
      squares += (value(from[c]) - mean) * (value(from[c]) - mean);
    float const s = 1 / std::sqrt(team.sum(squares) / static_cast<float>(width) + 1e-5F);
    if (team.lane() == 0) scale[row] = s;
    for (std::size_t c = team.lane(); c < width; c += team.lanes()) {
      float const n = (value(from[c]) - mean) * s;
      normal[row * width + c] = static_cast<T>(n);
      y[row * width + c] = static_cast<T>(n * gain[c] + bias[c]);
    }
  }
};

/// For a row: the y of NormForward, recomputed from what it saved.
template <class T> struct NormOutput {
  T const* normal;
  float const* gain;
  float const* bias;
  T* y;
  std::size_t width;
  template <class Team> constexpr void operator()(Team const& team, std::size_t row) const {
    for (std::size_t c = team.lane(); c < width; c += team.lanes())
      y[row * width + c] = static_cast<T>(value(normal[row * width + c]) * gain[c] + bias[c]);
  }
};

/// For a row: dx = residual + the gradient through the normalisation. @pre dx is not dy
template <class T> struct NormBackward {
  T const* dy;
  T const* residual;  // may be null
  T const* normal;
  float const* scale;
  float const* gain;
  T* dx;
  std::size_t width;
  template <class Team> constexpr void operator()(Team const& team, std::size_t row) const {
    std::size_t const first = row * width;
    float sum = 0;
    float dot = 0;
    for (std::size_t c = team.lane(); c < width; c += team.lanes()) {
      float const d = value(dy[first + c]) * gain[c];
      sum += d;
      dot += d * value(normal[first + c]);
    }
    float const mean = team.sum(sum) / static_cast<float>(width);
    float const slope = team.sum(dot) / static_cast<float>(width);
    for (std::size_t c = team.lane(); c < width; c += team.lanes()) {
      float const d = value(dy[first + c]) * gain[c];
      float const through = (d - mean - value(normal[first + c]) * slope) * scale[row];
      dx[first + c] =
          static_cast<T>(residual == nullptr ? through : value(residual[first + c]) + through);
    }
  }
};

/// For a column: a microbatch's gradients of gain and bias of a normalisation.
template <class T> struct NormGradients {
  T const* dy;
  T const* normal;
  float* gain_gradient;
  float* bias_gradient;
  std::size_t rows;
  std::size_t width;
  template <class Team> constexpr void operator()(Team const& team, std::size_t c) const {
    float gain = 0;
    float bias = 0;
    for (std::size_t r = team.lane(); r < rows; r += team.lanes()) {
      float const d = value(dy[r * width + c]);
      gain += d * value(normal[r * width + c]);
      bias += d;
    }
    gain = team.sum(gain);
    bias = team.sum(bias);
    if (team.lane() != 0) return;
    gain_gradient[c] = gain;
    bias_gradient[c] = bias;
  }
};

/// For a column: sum[c] += the sum of column c of d.
template <class T> struct AddColumn {
  T const* d;
  float* sum;
  std::size_t rows;
  std::size_t width;
  template <class Team> constexpr void operator()(Team const& team, std::size_t c) const {
    float column = 0;
    for (std::size_t r = team.lane(); r < rows; r += team.lanes())
      column += value(d[r * width + c]);
    column = team.sum(column);
    if (team.lane() == 0) sum[c] += column;
  }
};

/// For a row: y = x + bias; x may be null.
template <class T> struct AddBias {
  T const* x;
  float const* bias;
  T* y;
  std::size_t width;
  template <class Team> constexpr void operator()(Team const& team, std::size_t row) const {
    for (std::size_t c = team.lane(); c < width; c += team.lanes())
      y[row * width + c] =
          static_cast<T>(x == nullptr ? bias[c] : value(x[row * width + c]) + bias[c]);
  }
};

/// For a row of one sequence and head: softmax over the entries up to the diagonal, 0 after it.
template <class T> struct CausalSoftmax {
  T* share;  // [rows][length] in: q k' / sqrt(depth)
  std::size_t length;
  template <class Team> constexpr void operator()(Team const& team, std::size_t row) const {
    T* const p = share + row * length;
    std::size_t const seen = row % length + 1;
    float most = -3.4e38F;
    for (std::size_t c = team.lane(); c < seen; c += team.lanes())
      most = value(p[c]) > most ? value(p[c]) : most;
    most = team.largest(most);
    float sum = 0;
    for (std::size_t c = team.lane(); c < seen; c += team.lanes())
      sum += std::exp(value(p[c]) - most);
    float const inverse = 1 / team.sum(sum);
    for (std::size_t c = team.lane(); c < length; c += team.lanes())
      p[c] = static_cast<T>(c < seen ? std::exp(value(p[c]) - most) * inverse : 0.0F);
  }
};

/// For a row: the gradient before the softmax, times `scale`. Masked entries have p = 0.
template <class T> struct SoftmaxBackward {
  T const* share;
  T* slopes;  // [rows][length] in: gradient of the attention weights
  std::size_t length;
  float scale;
  template <class Team> constexpr void operator()(Team const& team, std::size_t row) const {
    T const* const p = share + row * length;
    T* const d = slopes + row * length;
    float dot = 0;
    for (std::size_t c = team.lane(); c < length; c += team.lanes())
      dot += value(p[c]) * value(d[c]);
    dot = team.sum(dot);
    for (std::size_t c = team.lane(); c < length; c += team.lanes())
      d[c] = static_cast<T>(value(p[c]) * (value(d[c]) - dot) * scale);
  }
};

/// For an element: hidden = GELU(slope), and slope = the derivative of GELU there.
template <class T> struct Gelu {
  T* slope;
  T* hidden;
  constexpr void operator()(std::size_t i) const {
    constexpr float a = 0.7978845608028654F;  // sqrt(2 / pi)
    constexpr float b = 0.044715F;
    float const u = value(slope[i]);
    float const t = std::tanh(u * (a + a * b * u * u));
    hidden[i] = static_cast<T>(0.5F * u * (1 + t));
    slope[i] = static_cast<T>(0.5F * (1 + t) + 0.5F * u * (1 - t * t) * (a + 3 * a * b * u * u));
  }
};

/// For an element: to *= by.
template <class T> struct Multiply {
  T* to;
  T const* by;
  constexpr void operator()(std::size_t i) const {
    to[i] = static_cast<T>(value(to[i]) * value(by[i]));
  }
};

/// For an element: to += more.
template <class N> struct Add {
  N* to;
  N const* more;
  constexpr void operator()(std::size_t i) const { to[i] += more[i]; }
};

/// For an element: a conversion to another type.
template <class T> struct Cast {
  float const* from;
  T* to;
  constexpr void operator()(std::size_t i) const { to[i] = static_cast<T>(from[i]); }
};

/// For an element: y = token embedding + position embedding.
template <class T> struct Embed {
  std::uint8_t const* tokens;
  float const* token;
  float const* position;
  T* y;
  std::size_t length;
  std::size_t width;
  constexpr void operator()(std::size_t i) const {
    std::size_t const row = i / width;
    std::size_t const c = i % width;
    y[i] = static_cast<T>(token[tokens[row] * width + c] + position[row % length * width + c]);
  }
};

/// For a token: the gradient of its embedding, summed in the order of rows.
template <class T> struct TokenGradient {
  std::uint8_t const* tokens;
  T const* dy;
  float* gradient;
  std::size_t rows;
  std::size_t width;
  template <class Team> constexpr void operator()(Team const& team, std::size_t token) const {
    for (std::size_t c = team.lane(); c < width; c += team.lanes()) {
      float sum = 0;
      for (std::size_t r = 0; r < rows; ++r)
        if (tokens[r] == token) sum += value(dy[r * width + c]);
      gradient[token * width + c] += sum;
    }
  }
};

/// For an element of the position embedding: its gradient, summed in the order of sequences.
template <class T> struct PositionGradient {
  T const* dy;
  float* gradient;
  std::size_t sequences;
  std::size_t size;  // length * width
  constexpr void operator()(std::size_t i) const {
    float sum = 0;
    for (std::size_t s = 0; s < sequences; ++s) sum += value(dy[s * size + i]);
    gradient[i] += sum;
  }
};

/// For a row of logits: its loss and, unless dy is null, the gradient times `scale`.
template <class T> struct CrossEntropyRow {
  T const* y;
  std::uint8_t const* target;
  double* losses;  // [rows]
  T* dy;           // may be null
  std::size_t classes;
  float scale;
  template <class Team> constexpr void operator()(Team const& team, std::size_t row) const {
    T const* const logits = y + row * classes;
    float most = -3.4e38F;
    for (std::size_t c = team.lane(); c < classes; c += team.lanes())
      most = value(logits[c]) > most ? value(logits[c]) : most;
    most = team.largest(most);
    float sum = 0;
    for (std::size_t c = team.lane(); c < classes; c += team.lanes())
      sum += std::exp(value(logits[c]) - most);
    sum = team.sum(sum);
    if (team.lane() == 0)
      losses[row] = static_cast<double>(std::log(sum)) +
                    static_cast<double>(most - value(logits[target[row]]));
    if (dy == nullptr) return;
    for (std::size_t c = team.lane(); c < classes; c += team.lanes()) {
      float const share = std::exp(value(logits[c]) - most) / sum;
      dy[row * classes + c] = static_cast<T>(scale * (share - (c == target[row] ? 1.0F : 0.0F)));
    }
  }
};

/// For one team: *sum += the sum of `size` numbers.
struct Sum {
  double const* from;
  double* sum;
  std::size_t size;
  template <class Team> constexpr void operator()(Team const& team, std::size_t) const {
    double part = 0;
    for (std::size_t i = team.lane(); i < size; i += team.lanes()) part += from[i];
    part = team.sum(part);
    if (team.lane() == 0) *sum += part;
  }
};

}  // namespace gpt::gpu
