// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Seven small layers, each of another kind, the data they train on, and schedules made by
/// a function.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/core/random.hpp>
#include <stagger/core/tensor.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/partition/even.hpp>
#include <stagger/schedule/proof/verify.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/train/pipeline.hpp>

#include "sanitized.hpp"

namespace small_model {

namespace sg = stagger;
using sg::schedule::Action;
using sg::schedule::Kind;
using sg::schedule::Table;

inline constexpr std::size_t width = 4;
inline constexpr std::size_t classes = 5;
inline constexpr std::size_t most_rows = 5;

/// A number in [-1, 1) that depends on its names alone.
inline float number(std::uint64_t seed, std::uint64_t a, std::uint64_t b = 0) {
  return static_cast<float>(static_cast<double>(sg::random_bits(seed, {a, b}) >> 11U) * 0x1p-52 -
                            1);
}

inline std::vector<float> numbers(std::uint64_t seed, std::size_t count) {
  std::vector<float> result;
  for (std::size_t i = 0; i < count; ++i) result.push_back(number(seed, i));
  return result;
}

using Tokens = sg::Tensor<std::int32_t>;  // [rows]
using Matrix = sg::Tensor<float>;         // [rows][width]

/// The same numbers in a type of another shape, without bytes() and without an allocation.
struct Panel {
  std::size_t rows = 0;
  std::array<float, most_rows * width> values{};
};

/// Tokens in, no gradient for them: only a first layer can be like this.
struct Embedding {
  using Input = Tokens;
  using Output = Matrix;
  sg::Parameter<> table = sg::Parameter<>("table", numbers(1, classes* width)).matrix(classes);
  auto parameters() { return std::tie(table); }
  void forward(sg::Context& context, Tokens const& x, Matrix& y, sg::NothingSaved&) {
    auto const w = context[table];
    y.resize({x.size(), width});
    for (std::size_t r = 0; r < x.size(); ++r)
      for (std::size_t c = 0; c < width; ++c)
        y[r * width + c] = w[static_cast<std::size_t>(x[r]) * width + c];
  }
  void backward_weight(sg::Context& context, Tokens const& x, Matrix const& dy, sg::NothingSaved&) {
    auto const dw = context.gradient(table);
    for (std::size_t r = 0; r < x.size(); ++r)
      for (std::size_t c = 0; c < width; ++c)
        dw[static_cast<std::size_t>(x[r]) * width + c] += dy[r * width + c];
  }
};

/// Two parameters, one of them a double, and a backward in two halves.
struct Dense {
  using Input = Matrix;
  using Output = Matrix;
  sg::Parameter<> weight;
  sg::Parameter<double> bias;
  explicit Dense(std::uint64_t seed = 2)
      : weight(sg::Parameter<>("weight", numbers(seed, width * width)).matrix(width)),
        bias("bias", std::vector<double>(width, 0.1), false) {}
  auto parameters() { return std::tie(weight, bias); }
  void forward(sg::Context& context, Matrix const& x, Matrix& y, sg::NothingSaved&) {
    auto const w = context[weight];
    auto const b = context[bias];
    y.resize_like(x);
    for (std::size_t r = 0; r < x.extent(0); ++r)
      for (std::size_t c = 0; c < width; ++c) {
        float sum = static_cast<float>(b[c]);
        for (std::size_t k = 0; k < width; ++k) sum += x[r * width + k] * w[k * width + c];
        y[r * width + c] = sum;
      }
  }
  void backward_input(sg::Context& context, Matrix const& x, Matrix const& dy, Matrix& dx,
                      sg::NothingSaved&) {
    auto const w = context[weight];
    dx.resize_like(x);
    for (std::size_t r = 0; r < x.extent(0); ++r)
      for (std::size_t k = 0; k < width; ++k) {
        float sum = 0;
        for (std::size_t c = 0; c < width; ++c) sum += dy[r * width + c] * w[k * width + c];
        dx[r * width + k] = sum;
      }
  }
  void backward_weight(sg::Context& context, Matrix const& x, Matrix const& dy, sg::NothingSaved&) {
    auto const dw = context.gradient(weight);
    auto const db = context.gradient(bias);
    for (std::size_t r = 0; r < x.extent(0); ++r)
      for (std::size_t c = 0; c < width; ++c) {
        db[c] += static_cast<double>(dy[r * width + c]);
        for (std::size_t k = 0; k < width; ++k)
          dw[k * width + c] += x[r * width + k] * dy[r * width + c];
      }
  }
};

/// y = tanh(a x + b): its backward does not split, and it keeps its output.
struct Curve {
  using Input = Matrix;
  using Output = Matrix;
  struct Saved {
    Matrix y;
    [[nodiscard]] std::uint64_t bytes() const { return y.bytes(); }
  };
  sg::Parameter<> slope{"slope", numbers(3, width)};
  auto parameters() { return std::tie(slope); }
  void forward(sg::Context& context, Matrix const& x, Matrix& y, Saved& saved) {
    auto const a = context[slope];
    y.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = std::tanh((1 + a[i % width]) * x[i]);
    saved.y = y;
  }
  void backward(sg::Context& context, Matrix const& x, Matrix const& dy, Matrix& dx, Saved& saved) {
    auto const a = context[slope];
    auto const da = context.gradient(slope);
    dx.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      float const inner = dy[i] * (1 - saved.y[i] * saved.y[i]);
      dx[i] = inner * (1 + a[i % width]);
      da[i % width] += inner * x[i];
    }
  }
};

/// No parameters, another type out than in.
struct Squash {
  using Input = Matrix;
  using Output = Panel;
  void forward(sg::Context&, Matrix const& x, Panel& y, sg::NothingSaved&) {
    y.rows = x.extent(0);
    for (std::size_t i = 0; i < x.size(); ++i) y.values[i] = x[i] / (1 + std::fabs(x[i]));
  }
  void backward_input(sg::Context&, Matrix const& x, Panel const& dy, Matrix& dx,
                      sg::NothingSaved&) {
    dx.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      float const d = 1 + std::fabs(x[i]);
      dx[i] = dy.values[i] / (d * d);
    }
  }
};

/// Random, from the engine's seed alone; off in evaluation.
struct Dropout {
  using Input = Panel;
  using Output = Panel;
  struct Saved {
    std::uint64_t bits = 0;
  };
  void forward(sg::Context& context, Panel const& x, Panel& y, Saved& saved) {
    saved.bits = context.training() ? context.random_seed() : ~std::uint64_t{0};
    y = x;
    for (std::size_t i = 0; i < y.values.size(); ++i) y.values[i] *= factor(saved, i);
  }
  void backward_input(sg::Context&, Panel const&, Panel const& dy, Panel& dx, Saved& saved) {
    dx = dy;
    for (std::size_t i = 0; i < dx.values.size(); ++i) dx.values[i] *= factor(saved, i);
  }
  static float factor(Saved const& saved, std::size_t i) {
    return ((saved.bits >> i) & 1U) != 0 ? 1.25F : 0.75F;
  }
};

/// Rows to unit length, then a gain; works in scratch memory, and has backward whole and in halves.
struct Norm {
  using Input = Panel;
  using Output = Matrix;
  sg::Parameter<> gain{"gain", std::vector<float>(width, 1.0F)};
  auto parameters() { return std::tie(gain); }
  void forward(sg::Context& context, Panel const& x, Matrix& y, sg::NothingSaved&) {
    auto const inverse = inverse_lengths(context, x);
    auto const g = context[gain];
    y.resize({x.rows, width});
    for (std::size_t i = 0; i < y.size(); ++i)
      y[i] = x.values[i] * inverse[i / width] * g[i % width];
  }
  void backward_input(sg::Context& context, Panel const& x, Matrix const& dy, Panel& dx,
                      sg::NothingSaved&) {
    auto const inverse = inverse_lengths(context, x);
    auto const g = context[gain];
    auto const weighted = context.scratch<float>(dy.size());
    for (std::size_t i = 0; i < dy.size(); ++i) weighted[i] = dy[i] * g[i % width];
    dx.rows = x.rows;
    for (std::size_t r = 0; r < x.rows; ++r) {
      float dot = 0;
      for (std::size_t c = 0; c < width; ++c)
        dot += weighted[r * width + c] * x.values[r * width + c];
      for (std::size_t c = 0; c < width; ++c)
        dx.values[r * width + c] =
            inverse[r] *
            (weighted[r * width + c] - x.values[r * width + c] * dot * inverse[r] * inverse[r]);
    }
  }
  void backward_weight(sg::Context& context, Panel const& x, Matrix const& dy, sg::NothingSaved&) {
    auto const inverse = inverse_lengths(context, x);
    auto const dg = context.gradient(gain);
    for (std::size_t i = 0; i < dy.size(); ++i)
      dg[i % width] += dy[i] * (x.values[i] * inverse[i / width]);
  }
  void backward(sg::Context& context, Panel const& x, Matrix const& dy, Panel& dx,
                sg::NothingSaved& saved) {
    backward_weight(context, x, dy, saved);
    backward_input(context, x, dy, dx, saved);
  }
  static std::span<float> inverse_lengths(sg::Context& context, Panel const& x) {
    auto const inverse = context.scratch<float>(x.rows);
    for (std::size_t r = 0; r < x.rows; ++r) {
      float sum = 1e-3F;
      for (std::size_t c = 0; c < width; ++c)
        sum += x.values[r * width + c] * x.values[r * width + c];
      inverse[r] = 1 / std::sqrt(sum);
    }
    return inverse;
  }
};

using Loss = sg::loss::CrossEntropy<>;
using Batch = sg::Batch<Tokens, Tokens>;

inline constexpr int layers = 7;

/// The whole model in one piece, for a partitioner.
inline auto model() {
  return sg::Sequential{Embedding{}, Dense{}, Curve{}, Squash{}, Dropout{}, Norm{}, Dense{7}};
}

/// The minibatch of a step. @param uneven  microbatches of 1 to 5 rows, other ones in each step,
/// instead of 3
inline Batch batch(int step, int microbatches, bool uneven) {
  Batch result;
  for (int m = 0; m < microbatches; ++m) {
    auto const seed = static_cast<std::uint64_t>(step * 100 + m);
    std::size_t const rows = uneven ? 1 + sg::random_bits(5, {seed}) % most_rows : 3;
    Tokens x({rows});
    Tokens t({rows});
    for (std::size_t r = 0; r < rows; ++r) {
      x[r] = static_cast<std::int32_t>(sg::random_bits(6, {seed, r}) % classes);
      t[r] = static_cast<std::int32_t>(sg::random_bits(7, {seed, r}) % width);
    }
    result.inputs.push_back(std::move(x));
    result.targets.push_back(std::move(t));
  }
  return result;
}

inline std::vector<Batch> batches(int steps, int microbatches, bool uneven) {
  std::vector<Batch> result;
  for (int s = 0; s < steps; ++s) result.push_back(batch(s, microbatches, uneven));
  return result;
}

/// All parameter values, byte by byte.
template <class Trainer> std::vector<std::byte> bits(Trainer& train) {
  std::vector<std::byte> all;
  for (auto const& state : train.parameters()) {
    all.insert(all.end(), state.value.begin(), state.value.end());
    for (auto const& block : state.state) all.insert(all.end(), block.begin(), block.end());
  }
  return all;
}

/// A schedule that a function makes: all of them in one type, which is compiled once.
struct Made {
  using policy_tag = sg::ScheduleTag;
  static constexpr bool flushes = true;
  std::function<Table(sg::Shape)> make;
  int each = 1;
  [[nodiscard]] int chunks() const { return each; }
  [[nodiscard]] Table table(sg::Shape shape) const { return make(shape); }
};

template <class Policy> Made made(Policy const& policy) {
  return {[policy](sg::Shape shape) { return sg::schedule::table_of(policy, shape); },
          policy.chunks()};
}

/// The same table with I and W in place of B; each W stands `delay` backwards behind its I.
inline Table split(Table const& table, int delay) {
  Table result;
  result.stages = table.stages;
  result.microbatches = table.microbatches;
  for (int r = 0; r < table.ranks(); ++r) {
    result.begin_row();
    std::vector<Action> late;
    std::size_t next = 0;
    for (Action a : table.row(r)) {
      if (a.kind != Kind::backward) {
        result.add(a);
        continue;
      }
      a.kind = Kind::backward_input;
      result.add(a);
      a.kind = Kind::backward_weight;
      late.push_back(a);
      if (late.size() > static_cast<std::size_t>(delay)) result.add(late[next++]);
    }
    while (next < late.size()) result.add(late[next++]);
  }
  return result;
}

/// A policy's table, split.
inline Made split(Made const& policy, int delay) {
  return {[policy, delay](sg::Shape shape) { return split(policy.table(shape), delay); },
          policy.each};
}

}  // namespace small_model
