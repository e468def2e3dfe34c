// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A small network that learns what another one of its shape answers. A run of several
///         workers takes less than a second.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numbers>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/core/random.hpp>
#include <stagger/core/tensor.hpp>
#include <stagger/train/pipeline.hpp>

#include "learning.hpp"

namespace teacher {

namespace sg = stagger;
using Rows = sg::Tensor<float>;
using Classes = sg::Tensor<std::int32_t>;
using Batch = sg::Batch<Rows, Classes>;
using Settings = learning::Settings;

inline constexpr std::size_t inputs = 16;
inline constexpr std::size_t width = 24;
inline constexpr std::size_t classes = 8;
/// A normal deviate for a seed and the numbers that name it.
inline float normal(std::uint64_t seed, std::uint64_t of, std::uint64_t number) {
  auto const uniform = [&](std::uint64_t which) {
    return (static_cast<double>(sg::random_bits(seed, {of, number, which}) >> 11U) + 0.5) * 0x1p-53;
  };
  return static_cast<float>(std::sqrt(-2 * std::log(uniform(0))) *
                            std::cos(2 * std::numbers::pi * uniform(1)));
}
inline std::vector<float> normals(std::size_t count, std::uint64_t seed, std::uint64_t of,
                                  double deviation) {
  std::vector<float> all(count);
  for (std::size_t i = 0; i < count; ++i)
    all[i] = static_cast<float>(deviation) * normal(seed, of, i);
  return all;
}

/// y = x w, w being [in][out].
template <std::size_t in, std::size_t out>
void multiply(float const* x, std::size_t rows, float const* w, float* y) {
  for (std::size_t r = 0; r < rows; ++r) {
    std::array<float, out> sum{};
    for (std::size_t j = 0; j < in; ++j)
      for (std::size_t o = 0; o < out; ++o) sum[o] += x[r * in + j] * w[j * out + o];
    for (std::size_t o = 0; o < out; ++o) y[r * out + o] = sum[o];
  }
}

/// Keeps that share of the elements, those with the largest magnitude, and makes the others 0.
inline void keep_largest(std::span<float> values, double share) {
  if (share >= 1) return;
  std::vector<float> sorted(values.begin(), values.end());
  for (float& each : sorted) each = std::abs(each);
  auto const count = std::max(1.0, std::ceil(share * static_cast<double>(sorted.size())));
  auto const last = sorted.begin() + static_cast<std::ptrdiff_t>(count) - 1;
  std::nth_element(sorted.begin(), last, sorted.end(), std::greater<>());
  for (float& each : values)
    if (std::abs(each) < *last) each = 0;
}

/// Weights and biases are layers of their own, each of which may be late.
template <std::size_t in, std::size_t out> struct Weight {
  using Input = Rows;
  using Output = Rows;
  struct Saved {};
  sg::Parameter<> weight;
  double kept;
  Weight(std::uint64_t seed, std::uint64_t number, double to_keep)
      : weight("weight", normals(in * out, seed, number, std::sqrt(2.0 / static_cast<double>(in)))),
        kept(to_keep) {}
  auto parameters() { return std::tie(weight); }
  void forward(sg::Context& context, Rows const& x, Rows& y, Saved&) {
    y.resize({x.rows(), out});
    multiply<in, out>(x.data(), x.rows(), context[weight].data(), y.data());
  }
  void backward(sg::Context& context, Rows const& x, Rows const& dy, Rows& dx, Saved&) {
    float const* const w = context[weight].data();
    float* const dw = context.gradient(weight).data();
    for (std::size_t r = 0; r < x.rows(); ++r)
      for (std::size_t j = 0; j < in; ++j)
        for (std::size_t o = 0; o < out; ++o) dw[j * out + o] += x[r * in + j] * dy[r * out + o];
    keep_largest({dw, in * out}, kept);
    std::array<float, in * out> turned;
    for (std::size_t j = 0; j < in; ++j)
      for (std::size_t o = 0; o < out; ++o) turned[o * in + j] = w[j * out + o];
    dx.resize({x.rows(), in});
    multiply<out, in>(dy.data(), x.rows(), turned.data(), dx.data());
  }
};
template <std::size_t size> struct Bias {
  using Input = Rows;
  using Output = Rows;
  struct Saved {
    std::vector<float> slope;
  };
  bool bends = true;  // negative sums become 0
  double kept = 1;
  sg::Parameter<> bias{"bias", std::vector<float>(size)};
  auto parameters() { return std::tie(bias); }
  void forward(sg::Context& context, Rows const& x, Rows& y, Saved& saved) {
    y.resize_like(x);
    saved.slope.resize(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      float const sum = x[i] + context[bias][i % size];
      saved.slope[i] = bends && sum < 0 ? 0.0F : 1.0F;
      y[i] = saved.slope[i] * sum;
    }
  }
  void backward(sg::Context& context, Rows const&, Rows const& dy, Rows& dx, Saved& saved) {
    dx.resize_like(dy);
    for (std::size_t i = 0; i < dy.size(); ++i) {
      dx[i] = saved.slope[i] * dy[i];
      context.gradient(bias)[i % size] += dx[i];
    }
    keep_largest({context.gradient(bias).data(), size}, kept);
  }
};

class Shard;

/// What is learnt: normal inputs, and the class that the teacher gives each.
struct Task {
  std::vector<float> x;  ///< [samples][inputs]
  std::vector<std::int32_t> y;
  std::size_t training = 0;  ///< samples; those behind are held out

  Task(std::uint64_t seed, std::size_t to_train, std::size_t to_test) : training(to_train) {
    std::size_t const samples = to_train + to_test;
    x = normals(samples * inputs, seed, 100, 1);
    std::vector<std::vector<float>> const weights{
        normals(inputs * width, seed, 0, std::sqrt(2.0 / inputs)),
        normals(width, seed, 1, 0.1),
        normals(width * width, seed, 2, std::sqrt(2.0 / width)),
        normals(width, seed, 3, 0.1),
        normals(width * width, seed, 4, std::sqrt(2.0 / width)),
        normals(width, seed, 5, 0.1),
        normals(width * classes, seed, 6, 1),
        normals(classes, seed, 7, 0.1)};
    y = answers(weights, x, 0, samples);
  }

  /// The class that a network gives each of some samples. @param weights  of its layers, in order
  static std::vector<std::int32_t> answers(std::vector<std::vector<float>> const& weights,
                                           std::vector<float> const& x, std::size_t first,
                                           std::size_t last) {
    std::size_t const rows = last - first;
    std::vector<float> a(x.begin() + static_cast<std::ptrdiff_t>(first * inputs),
                         x.begin() + static_cast<std::ptrdiff_t>(last * inputs));
    std::vector<float> b(rows * width);
    auto const add = [&](std::vector<float>& to, std::vector<float> const& bias, bool bends) {
      for (std::size_t i = 0; i < rows * bias.size(); ++i) {
        to[i] += bias[i % bias.size()];
        if (bends && to[i] < 0) to[i] = 0;
      }
    };
    multiply<inputs, width>(a.data(), rows, weights[0].data(), b.data());
    add(b, weights[1], true);
    a.resize(rows * width);
    multiply<width, width>(b.data(), rows, weights[2].data(), a.data());
    add(a, weights[3], true);
    multiply<width, width>(a.data(), rows, weights[4].data(), b.data());
    add(b, weights[5], true);
    multiply<width, classes>(b.data(), rows, weights[6].data(), a.data());
    add(a, weights[7], false);
    std::vector<std::int32_t> result(rows);
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t c = 1; c < classes; ++c)
        if (a[r * classes + c] > a[r * classes + static_cast<std::size_t>(result[r])])
          result[r] = static_cast<std::int32_t>(c);
    return result;
  }
  [[nodiscard]] static std::size_t bytes() {
    return sizeof(float) *
           (inputs * width + 2 * width * width + width * classes + 3 * width + classes);
  }
  [[nodiscard]] int steps(Settings const& s) const {
    return static_cast<int>(training) / (s.workers * s.batch);
  }
  [[nodiscard]] static auto model(Settings const& s) {
    return sg::Sequential{Weight<inputs, width>(s.seed, 1000, s.kept),
                          Bias<width>{.kept = s.kept},
                          Weight<width, width>(s.seed, 1001, s.kept),
                          Bias<width>{.kept = s.kept},
                          Weight<width, width>(s.seed, 1002, s.kept),
                          Bias<width>{.kept = s.kept},
                          Weight<width, classes>(s.seed, 1003, s.kept),
                          Bias<classes>{.bends = false, .kept = s.kept}};
  }
  [[nodiscard]] Shard shard(Settings const& s, int worker) const;

  /// Of what is held out, the share that is answered as by the teacher, in points.
  template <class Trainer> [[nodiscard]] double accuracy(Trainer& train) const {
    std::vector<std::vector<float>> weights;
    for (auto const& parameter : train.parameters()) {
      auto const values = parameter.template values<float>();
      weights.emplace_back(values.begin(), values.end());
    }
    auto const given = answers(weights, x, training, y.size());
    std::size_t right = 0;
    for (std::size_t i = 0; i < given.size(); ++i)
      if (given[i] == y[training + i]) ++right;
    return 100 * static_cast<double>(right) / static_cast<double>(given.size());
  }
};

/// The samples of each worker are its own, in another order in each epoch.
class Shard {
 public:
  Shard(Task const& task, Settings const& s, int worker) : task_(task), s_(s), worker_(worker) {
    for (std::size_t i = static_cast<std::size_t>(worker); i < task.training;
         i += static_cast<std::size_t>(s.workers))
      order_.push_back(i);
  }
  [[nodiscard]] Batch const& at(int step) {
    int const in_epoch = step % task_.steps(s_);
    if (in_epoch == 0)
      for (std::size_t i = order_.size(); i-- > 1;)
        std::swap(order_[i],
                  order_[sg::random_bits(s_.seed, {static_cast<std::uint64_t>(worker_),
                                                   static_cast<std::uint64_t>(step), i}) %
                         (i + 1)]);
    auto const rows = static_cast<std::size_t>(s_.batch);
    batch_.inputs.resize(1);
    batch_.targets.resize(1);
    batch_.inputs[0].resize({rows, inputs});
    batch_.targets[0].resize({rows});
    for (std::size_t r = 0; r < rows; ++r) {
      std::size_t const sample = order_[static_cast<std::size_t>(in_epoch) * rows + r];
      for (std::size_t i = 0; i < inputs; ++i)
        batch_.inputs[0][r * inputs + i] = task_.x[sample * inputs + i];
      batch_.targets[0][r] = task_.y[sample];
    }
    return batch_;
  }

 private:
  Task const& task_;
  Settings const& s_;
  int worker_;
  std::vector<std::size_t> order_{};
  Batch batch_{};
};

inline Shard Task::shard(Settings const& s, int worker) const { return {*this, s, worker}; }

}  // namespace teacher
