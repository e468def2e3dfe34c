// SPDX-License-Identifier: Apache-2.0
#include <stagger/collective/in_process.hpp>

#include <cmath>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <stagger/collective/grouping.hpp>

#include "catch.hpp"
#include "collective/ranks.hpp"
#include "sanitized.hpp"

// Data-parallel training with gradients in groups: the weights must be those of one worker on the
// joined batch, and the losses those of any other grouping (J1, R11 of MG-WFBP).

using namespace stagger;
using namespace stagger::collective;

namespace {

constexpr int widths[] = {6, 10, 10, 8, 10, 4};
constexpr int layer_count = 5;
constexpr int joined_batch = 32;

using Values = std::vector<double>;

struct Data {
  std::vector<Values> x, y;
};

Data make_data() {
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  Data d;
  for (int i = 0; i < joined_batch; ++i) {
    Values x(widths[0]), y(widths[layer_count]);
    for (auto& v : x) v = normal(random);
    for (std::size_t k = 0; k < y.size(); ++k) y[k] = std::sin(x[k] + x[k + 1]) * 0.5;
    d.x.push_back(x);
    d.y.push_back(y);
  }
  return d;
}

/// Dense layers with tanh; weights and gradients lie in one buffer in backward order, last layer
/// first.
template <class T> struct Network {
  std::vector<T> weights, gradients;
  std::vector<std::size_t> at;  // of layer l, counted from 1 at the input, at[l - 1]

  Network() : at(layer_count) {
    std::size_t size = 0;
    for (int l = layer_count; l >= 1; --l) {
      at[static_cast<std::size_t>(l - 1)] = size;
      size += count(l);
    }
    std::mt19937 random(3);
    std::normal_distribution<double> normal(0, 0.4);
    for (std::size_t i = 0; i < size; ++i) weights.push_back(static_cast<T>(normal(random)));
    gradients.assign(size, T(0));
  }
  static std::size_t count(int l) {
    return static_cast<std::size_t>((widths[l - 1] + 1) * widths[l]);
  }

  /// Adds the gradient of half the squared error of one sample, calling done(l) never: sums over a
  /// batch.
  T add_gradient(Values const& input, Values const& target) {
    std::vector<std::vector<T>> h(1);
    for (double v : input) h[0].push_back(static_cast<T>(v));
    for (int l = 1; l <= layer_count; ++l) {
      auto const in = static_cast<std::size_t>(widths[l - 1]),
                 out = static_cast<std::size_t>(widths[l]);
      T const* const w = weights.data() + at[static_cast<std::size_t>(l - 1)];
      std::vector<T> next(out);
      for (std::size_t o = 0; o < out; ++o) {
        T s = w[in * out + o];
        for (std::size_t i = 0; i < in; ++i) s += w[i * out + o] * h.back()[i];
        next[o] = l == layer_count ? s : std::tanh(s);
      }
      h.push_back(next);
    }
    T loss = 0;
    std::vector<T> grad;
    for (std::size_t o = 0; o < target.size(); ++o) {
      T const e = h.back()[o] - static_cast<T>(target[o]);
      loss += e * e / 2;
      grad.push_back(e);
    }
    for (int l = layer_count; l >= 1; --l) {
      auto const in = static_cast<std::size_t>(widths[l - 1]),
                 out = static_cast<std::size_t>(widths[l]);
      T const* const w = weights.data() + at[static_cast<std::size_t>(l - 1)];
      T* const g = gradients.data() + at[static_cast<std::size_t>(l - 1)];
      auto const& x = h[static_cast<std::size_t>(l - 1)];
      std::vector<T> below(in);
      for (std::size_t o = 0; o < out; ++o) {
        g[in * out + o] += grad[o];
        for (std::size_t i = 0; i < in; ++i) {
          g[i * out + o] += grad[o] * x[i];
          below[i] += grad[o] * w[i * out + o];
        }
      }
      for (std::size_t i = 0; i < in; ++i) below[i] *= 1 - x[i] * x[i];
      grad = below;
    }
    return loss;
  }
  void step(double rate) {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      weights[i] -= static_cast<T>(rate / joined_batch) * gradients[i];
      gradients[i] = 0;
    }
  }
};

struct Result {
  std::vector<double> losses;
  Values weights;
};

constexpr int steps = 25;

template <class T> Result train_alone(Data const& data) {
  Network<T> net;
  Result result;
  for (int s = 0; s < steps; ++s) {
    T loss = 0;
    for (std::size_t i = 0; i < joined_batch; ++i) loss += net.add_gradient(data.x[i], data.y[i]);
    net.step(0.2);
    result.losses.push_back(static_cast<double>(loss));
  }
  result.weights.assign(net.weights.begin(), net.weights.end());
  return result;
}

template <class T>
Result train_together(Data const& data, int workers, std::vector<LayerGroup> const& groups,
                      AllReduce algorithm) {
  std::vector<Result> results(static_cast<std::size_t>(workers));
  collective_test::on_threads(
      workers,
      [&](InProcessCommunicator& c) {
        Network<T> net;
        auto const share = slice(joined_batch, c.rank(), workers);
        auto& result = results[static_cast<std::size_t>(c.rank())];
        for (int s = 0; s < steps; ++s) {
          T loss = 0;
          for (std::size_t i = share.first; i < share.last; ++i)
            loss += net.add_gradient(data.x[i], data.y[i]);
          std::vector<InProcessOperation> ops;
          std::size_t first = 0;
          for (auto const& g : groups) {  // one contiguous span each, no copying
            std::size_t count = 0;
            for (int l = g.highest; l >= g.lowest; --l) count += Network<T>::count(l);
            ops.push_back(c.all_reduce(std::span(net.gradients).subspan(first, count)));
            first += count;
          }
          ops.push_back(c.all_reduce(std::span(&loss, 1)));
          for (auto& op : ops) op.wait(30);
          net.step(0.2);
          result.losses.push_back(static_cast<double>(loss));
        }
        result.weights.assign(net.weights.begin(), net.weights.end());
      },
      false, InProcess{algorithm});
  for (auto const& r : results) REQUIRE(r.weights == results[0].weights);  // to the bit
  return results[0];
}

std::vector<std::vector<LayerGroup>> all_groupings() {
  std::vector<double> const times{4e-3, 3e-3, 1e-3, 2e-3, 1e-3};
  std::vector<std::uint64_t> bytes;
  for (int l = 1; l <= layer_count; ++l) bytes.push_back(4 * Network<float>::count(l));
  Backward const backward{1e-3, times, bytes};
  CostLine const cost{1.5e-3, 2e-6};
  std::vector<std::vector<LayerGroup>> groups;
  for (char const* name : {"layerwise", "single", "greedy", "optimal", "bucket:600"}) {
    groups.push_back(grouping::named(name).groups(backward, cost));
  }
  return groups;
}

}  // namespace

TEMPLATE_TEST_CASE(
    "collective/training: weights equal one worker's on the joined batch for every grouping and "
    "algorithm (J1)",
    "[collective]", float, double) {
  auto const data = make_data();
  auto const alone = train_alone<TestType>(data);
  REQUIRE(alone.losses.back() < alone.losses.front() * 0.8);
  double const tolerance = std::is_same_v<TestType, float> ? 1e-5 : 1e-12;
  int number = 0;
  for (auto const& groups : all_groupings()) {
    for (auto algorithm : {AllReduce::slices, AllReduce::ring, AllReduce::recursive_doubling,
                           AllReduce::halving_doubling, AllReduce::tree}) {
      if (sanitized && number++ % 3 != 0) continue;  // each grouping, each algorithm
      auto const together = train_together<TestType>(data, 4, groups, algorithm);
      double worst = 0;
      for (std::size_t i = 0; i < alone.weights.size(); ++i) {
        double const scale = std::max(std::abs(alone.weights[i]), 0.1);
        worst = std::max(worst, std::abs(alone.weights[i] - together.weights[i]) / scale);
      }
      REQUIRE(worst <= tolerance);
    }
  }
}

TEST_CASE(
    "collective/training: loss curves of all groupings agree at every step (R11), by slices to the "
    "bit",
    "[collective]") {
  auto const data = make_data();
  auto const groupings = all_groupings();
  for (auto algorithm : {AllReduce::slices, AllReduce::ring, AllReduce::tree}) {
    auto const first = train_together<float>(data, 4, groupings[0], algorithm);
    for (auto const& groups : groupings) {
      auto const other = train_together<float>(data, 4, groups, algorithm);
      for (std::size_t s = 0; s < first.losses.size(); ++s) {
        REQUIRE(std::abs(other.losses[s] / first.losses[s] - 1) < 1e-4);
      }
      if (algorithm != AllReduce::ring) REQUIRE(other.weights == first.weights);
    }
  }
}
