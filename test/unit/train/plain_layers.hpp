// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Equal layers whose forward and backward are plain loops, for oracles that choose the
///         weights themselves.

#include <cmath>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/host/threads.hpp>
#include <stagger/schedule/table.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/train/pipeline.hpp>

namespace plain_layers {

namespace sg = stagger;

inline constexpr std::size_t width = 3;
inline constexpr std::size_t matrix_rows = width + 1;  // of a layer's parameter, which is a matrix
using Numbers = std::vector<float>;

// y = tanh(w x + b), in plain loops that the oracle calls with weights of its own choice.
inline void forward(Numbers const& w, Numbers const& x, Numbers& y) {
  y.assign(width, 0);
  for (std::size_t i = 0; i < width; ++i) {
    float sum = w[width * width + i];
    for (std::size_t j = 0; j < width; ++j) sum += w[i * width + j] * x[j];
    y[i] = std::tanh(sum);
  }
}
inline void backward(Numbers const& w, Numbers const& x, Numbers const& y, Numbers const& dy,
                     Numbers& dx, float* dw) {
  dx.assign(width, 0);
  for (std::size_t i = 0; i < width; ++i) {
    float const g = dy[i] * (1 - y[i] * y[i]);
    for (std::size_t j = 0; j < width; ++j) dx[j] += g * w[i * width + j];
    for (std::size_t j = 0; j < width; ++j) dw[i * width + j] += g * x[j];
    dw[width * width + i] += g;
  }
}

inline Numbers initial(int stage) {
  Numbers w(width * width + width);
  for (std::size_t i = 0; i < w.size(); ++i)
    w[i] = static_cast<float>(std::sin(static_cast<double>(i) * 1.7 + stage));
  return w;
}

struct Layer {
  using Input = Numbers;
  using Output = Numbers;
  struct Saved {
    Numbers y;
  };
  sg::Parameter<> weight;
  int fail_at = -1;
  explicit Layer(int stage)
      : weight(sg::Parameter<>("weight", initial(stage)).matrix(matrix_rows)) {}
  auto parameters() { return std::tie(weight); }
  void forward(sg::Context& context, Input const& x, Output& y, Saved& saved) {
    if (context.training() && context.microbatch() == fail_at)
      throw std::runtime_error("out of ink");
    auto const w = context[weight];
    plain_layers::forward(Numbers(w.begin(), w.end()), x, y);
    saved.y = y;
  }
  void backward(sg::Context& context, Input const& x, Output const& dy, Input& dx, Saved& saved) {
    auto const w = context[weight];
    plain_layers::backward(Numbers(w.begin(), w.end()), x, saved.y, dy, dx,
                           context.gradient(weight).data());
  }
};

struct Loss {
  using policy_tag = sg::LossTag;
  using Target = Numbers;
  double terms(Target const& t) const { return static_cast<double>(t.size()); }
  double value(sg::Context&, Numbers const& y, Target const& t) const {
    double sum = 0;
    for (std::size_t i = 0; i < width; ++i) sum += (y[i] - t[i]) * (y[i] - t[i]);
    return sum;
  }
  double value_and_gradient(sg::Context& context, Numbers const& y, Target const& t, double scale,
                            Numbers& dy) const {
    dy.resize(width);
    for (std::size_t i = 0; i < width; ++i) dy[i] = static_cast<float>(scale) * 2 * (y[i] - t[i]);
    return value(context, y, t);
  }
};

using Batch = sg::Batch<Numbers, Numbers>;
/// @param seed  another one, other numbers
inline Batch data(int count, double seed = 0) {
  Batch batch;
  for (int m = 0; m < count; ++m) {
    Numbers x(width);
    Numbers t(width);
    for (std::size_t i = 0; i < width; ++i) {
      x[i] = static_cast<float>(std::cos(seed + m * 2.3 + static_cast<double>(i)));
      t[i] = static_cast<float>(0.5 * std::sin(seed + m + 3.0 * static_cast<double>(i)));
    }
    batch.inputs.push_back(x);
    batch.targets.push_back(t);
  }
  return batch;
}

/// All values in single precision, one vector for each parameter.
template <class Trainer> std::vector<Numbers> weights(Trainer& train) {
  std::vector<Numbers> result;
  for (auto const& p : train.parameters()) {
    if (p.type != sg::ElementType::f32) continue;
    auto const values = p.template values<float>();
    result.emplace_back(values.begin(), values.end());
  }
  return result;
}
/// Likewise what the optimizer remembers.
template <class Trainer> std::vector<Numbers> states(Trainer& train) {
  std::vector<Numbers> result;
  for (auto const& p : train.parameters())
    for (auto const& state : p.state) {
      Numbers values(state.size() / sizeof(float));
      if (!values.empty()) std::memcpy(values.data(), state.data(), state.size());
      result.push_back(std::move(values));
    }
  return result;
}

/// Updates made at a stage before a microbatch's forward, counted in the table itself.
inline int updates_before(sg::schedule::Table const& table, int stage, int microbatch) {
  int done = 0;
  for (auto const& a : table.row(stage)) {
    if (a.kind == sg::schedule::Kind::forward && a.microbatch == microbatch) return done;
    if (sg::schedule::ends_flight(a.kind)) ++done;
  }
  return -1;
}

/// Calls `check` with host threads and with a virtual clock.
template <class Check> void on_each_device(Check check) {
  for (int const threads : {1, 2, 4}) check(sg::host::Threads{threads});
  check(sg::sim::VirtualClock{.jitter = 0.5, .seed = 11});
}

}  // namespace plain_layers
