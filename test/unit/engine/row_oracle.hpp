// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What a pipeline is held against where replicas of a position take rows of a microbatch.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "typed_oracle.hpp"

namespace row_model {

using namespace small_model;

/// Random by row: the same numbers however many replicas there are.
struct RowDropout {
  using Input = Matrix;
  using Output = Matrix;
  struct Saved {
    std::uint64_t seed = 0;
    std::uint64_t first = 0;
  };
  void forward(sg::Context& context, Matrix const& x, Matrix& y, Saved& saved) {
    saved = {context.training() ? context.random_seed() : 0, context.first_row() * 2};
    y.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] * factor(saved, i);
  }
  void backward_input(sg::Context&, Matrix const&, Matrix const& dy, Matrix& dx, Saved& saved) {
    dx.resize_like(dy);
    for (std::size_t i = 0; i < dy.size(); ++i) dx[i] = dy[i] * factor(saved, i);
  }
  static float factor(Saved const& saved, std::size_t i) {
    if (saved.seed == 0) return 1;
    return sg::random_bits(saved.seed, {saved.first + i / width, i % width}) % 2 == 0 ? 0.5F : 1.5F;
  }
};

inline auto model() {
  return sg::Sequential{Embedding{}, Dense{}, Curve{}, RowDropout{}, Dense{5}, Curve{}, Dense{7}};
}

/// Microbatches of rows of two tokens each: inner values have two rows for one of the input.
inline Batch batch(int step, int microbatches, std::size_t least, bool uneven) {
  Batch result;
  for (int m = 0; m < microbatches; ++m) {
    auto const seed = static_cast<std::uint64_t>(step * 100 + m);
    std::size_t const rows = least + (uneven ? sg::random_bits(5, {seed}) % 4 : 0);
    Tokens x({rows, 2});
    Tokens t({rows, 2});
    for (std::size_t r = 0; r < rows * 2; ++r) {
      x[r] = static_cast<std::int32_t>(sg::random_bits(6, {seed, r}) % classes);
      t[r] = static_cast<std::int32_t>(sg::random_bits(7, {seed, r}) % width);
    }
    result.inputs.push_back(std::move(x));
    result.targets.push_back(std::move(t));
  }
  return result;
}

using Weights = std::vector<std::vector<std::size_t>>;  // [positions][replicas]

/// First row of replica k; of the one behind the last, the number of rows.
std::size_t border(std::vector<std::size_t> const& weights, std::size_t rows, std::size_t k);

/// Rows [first, last) of the microbatch, one element after the other.
template <class T>
sg::Tensor<T> cut(sg::Tensor<T> const& value, std::size_t rows, std::size_t first,
                  std::size_t last) {
  sg::Tensor<T> part;
  std::size_t const times = value.extent(0) / rows;
  if (value.extent(1) == 0)
    part.resize({times * (last - first)});
  else
    part.resize({times * (last - first), value.extent(1)});
  for (std::size_t i = 0; i < part.size(); ++i) part[i] = value[value.size() / rows * first + i];
  return part;
}

/// An optimizer with two states, its type erased, so that the loops are compiled once.
struct AnyOptimizer {
  template <class T>
  using Update = std::function<void(sg::OptimizerView<T> const&, double, std::int64_t)>;
  static constexpr int states = 2;
  Update<float> of_floats;
  Update<double> of_doubles;

  template <class O> static AnyOptimizer of(O const& rule) {
    auto const update = [rule](auto const& view, double scale, std::int64_t step) {
      rule.update(view, scale, step);
    };
    return {update, update};
  }
  void update(sg::OptimizerView<float> const& view, double scale, std::int64_t step) const {
    of_floats(view, scale, step);
  }
  void update(sg::OptimizerView<double> const& view, double scale, std::int64_t step) const {
    of_doubles(view, scale, step);
  }
};

/// The course of the model by typed loops.
/// @param orders   of positions
/// @param weights  of their replicas: the rows of each
Course expected_course(std::vector<Batch> const& batches, bool clips, Orders const& orders,
                       Weights const& weights,
                       AnyOptimizer const& update = AnyOptimizer::of(optimizer()));

template <class Device>
auto pipeline(Device device, std::vector<int> cuts, Made schedule, sg::Options options) {
  options.seed = run_seed;
  return sg::Pipeline{model()}.with(sg::partition::Cuts{std::move(cuts)}, std::move(schedule),
                                    Loss{}, optimizer(), std::move(device), options);
}

Trainer pipeline(sg::host::Threads device, std::vector<int> cuts, Made schedule,
                 sg::Options options);
Trainer pipeline(sg::sim::VirtualClock device, std::vector<int> cuts, Made schedule,
                 sg::Options options);

}  // namespace row_model
