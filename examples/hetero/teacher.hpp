// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A small network that learns what another one of its shape answers, by several workers in
///         virtual time: gradients are real, and a run takes less than a second.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <numbers>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/core/random.hpp>
#include <stagger/core/tensor.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/model/loss.hpp>
#include <stagger/partition/cuts.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/train/pipeline.hpp>

namespace teacher {

namespace sg = stagger;
using Rows = sg::Tensor<float>;
using Classes = sg::Tensor<std::int32_t>;
using Batch = sg::Batch<Rows, Classes>;

inline constexpr std::size_t inputs = 16;
inline constexpr std::size_t width = 24;
inline constexpr std::size_t classes = 8;
inline constexpr std::size_t model_bytes =
    sizeof(float) * (inputs * width + 2 * width * width + width * classes + 3 * width + classes);

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

/// Gradient descent whose rate halves every so many steps.
struct HalvingSgd {
  using policy_tag = sg::OptimizerTag;
  static constexpr int states = 0;
  static constexpr bool element_wise = true;
  double rate = 0.1;
  double steps = 1e9;
  template <class T>
  void update(sg::OptimizerView<T> const& v, double scale, std::int64_t step) const noexcept {
    auto const by = static_cast<T>(eta(scale, step));
    for (std::size_t i = 0; i < v.size; ++i) v.next[i] = v.value[i] - by * v.gradient[i];
  }
  template <class T>
  void change(sg::OptimizerView<T> const& v, double scale, std::int64_t step) const noexcept {
    auto const by = static_cast<T>(eta(scale, step));
    for (std::size_t i = 0; i < v.size; ++i) v.next[i] = -by * v.gradient[i];
  }

 private:
  [[nodiscard]] double eta(double scale, std::int64_t step) const noexcept {
    return scale * rate * std::exp2(-std::floor(static_cast<double>(step - 1) / steps));
  }
};

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
  /// Of what is held out, the share that is answered as by the teacher, in points.
  [[nodiscard]] double accuracy(std::vector<std::vector<float>> const& weights) const {
    auto const given = answers(weights, x, training, y.size());
    std::size_t right = 0;
    for (std::size_t i = 0; i < given.size(); ++i)
      if (given[i] == y[training + i]) ++right;
    return 100 * static_cast<double>(right) / static_cast<double>(given.size());
  }
};

/// How a run goes.
struct Settings {
  std::uint64_t seed = 1;
  int workers = 8;
  int batch = 16;  ///< samples of a worker's step
  int epochs = 20;
  int halving_epochs = 10;  ///< after which the rate halves
  int looks = 1;            ///< at the accuracy, in an epoch
  double rate = 0.6;
  bool full = false;              ///< each push moves the weights as far as a step of all workers
  bool pushes_are_steps = false;  ///< of the server's optimizer; else a push of everybody is
  double r = 0;  ///< time for one direction of a whole exchange, relative to a step's computation
  sg::sim::Sharing sharing = sg::sim::Sharing::fair;
  sg::sim::Duplex duplex = sg::sim::Duplex::full;
  double slowest = 1;  ///< how much longer the first worker computes
  double kept = 1;     ///< share of each layer's gradient that is pushed, its largest elements

  static constexpr double computation_s = 3;
  [[nodiscard]] int steps(Task const& task) const {  // of a worker in an epoch
    return static_cast<int>(task.training) / (workers * batch);
  }
  [[nodiscard]] double link() const {
    return r == 0 ? std::numeric_limits<double>::infinity()
                  : static_cast<double>(model_bytes) * workers / (r * computation_s);
  }
};

/// What a run shows, at each look.
struct Look {
  double accuracy = 0;  ///< points
  double time_s = 0;
  int steps = 0;  ///< of each worker
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
    int const in_epoch = step % s_.steps(task_);
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

/// Trains with a staleness model whose workers take steps.
template <class Model>
std::vector<Look> learn(Task const& task, Model const& model, Settings const& s) {
  sg::sim::Clock const clock({.rate = s.link(), .sharing = s.sharing, .duplex = s.duplex});
  sg::collective::ServerOptions options{.workers = s.workers};
  if (s.full) options.weights.assign(static_cast<std::size_t>(s.workers), 1.0);
  sg::collective::ParameterServer const server(options);
  int const epoch = s.steps(task);
  HalvingSgd const optimizer{.rate = s.rate,
                             .steps = static_cast<double>(s.halving_epochs * epoch *
                                                          (s.pushes_are_steps ? s.workers : 1))};
  auto const make = [&](int n) {
    double const time_s = n == 0 ? s.slowest : 1;
    sg::sim::VirtualClock device;
    device.costs = sg::schedule::Costs::uniform(time_s, 2 * time_s, 0);
    device.clock = clock;
    return sg::Pipeline{
        sg::Sequential{Weight<inputs, width>(s.seed, 1000, s.kept), Bias<width>{.kept = s.kept},
                       Weight<width, width>(s.seed, 1001, s.kept), Bias<width>{.kept = s.kept},
                       Weight<width, width>(s.seed, 1002, s.kept), Bias<width>{.kept = s.kept},
                       Weight<width, classes>(s.seed, 1003, s.kept),
                       Bias<classes>{.bends = false, .kept = s.kept}}}
        .with(sg::partition::Cuts{{}}, model, server.worker(n), sg::loss::CrossEntropy<float>{},
              optimizer, std::move(device));
  };
  std::vector<decltype(make(0))> trainers;
  std::vector<Shard> shards;
  for (int n = 0; n < s.workers; ++n) {
    trainers.push_back(make(n));
    shards.emplace_back(task, s, n);
  }
  std::vector<Look> looks;
  std::vector<int> steps(static_cast<std::size_t>(s.workers));
  for (int look = 1; look <= s.epochs * s.looks; ++look) {
    int const until = epoch * look / s.looks;
    std::vector<sg::Steps> all;
    for (std::size_t n = 0; n < trainers.size(); ++n)
      all.emplace_back([&, n](sg::Metrics const*) -> std::optional<sg::Step> {
        if (steps[n] == until) return std::nullopt;
        return trainers[n].step(shards[n].at(steps[n]++));
      });
    static_cast<void>(sg::run_together(std::move(all)));
    double const now_s = clock.now_s();
    std::vector<std::vector<float>> weights;
    for (auto const& parameter : trainers[0].parameters()) {
      auto const values = parameter.template values<float>();
      weights.emplace_back(values.begin(), values.end());
    }
    looks.push_back({task.accuracy(weights), now_s, until});
  }
  return looks;
}

}  // namespace teacher
