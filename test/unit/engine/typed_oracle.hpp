// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Training by plain typed loops: no program, no slots, no erased types. What a pipeline is
/// held against.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "small_model.hpp"

namespace small_model {

/// In which order a layer's gradients are added, [layers][owners][microbatches]: each owner adds
/// its own, then the owners' sums are added. Empty: one owner, rising.
struct Orders {
  using Order = std::vector<std::vector<int>>;
  std::vector<Order> gradient;  ///< of B or I: layers whose backward is one function add then
  std::vector<Order> weight;    ///< of B or W: the others
};

/// The orders in a table, for stages that begin at `first_layer`.
inline Orders orders_of(Table const& table, std::vector<int> const& first_layer) {
  Orders orders;
  orders.gradient.resize(layers);
  orders.weight.resize(layers);
  for (int r = 0; r < table.ranks(); ++r) {
    for (Action const& a : table.row(r)) {
      auto const s = static_cast<std::size_t>(a.stage);
      int const end = s + 1 < first_layer.size() ? first_layer[s + 1] : layers;
      for (int l = first_layer[s]; l < end; ++l) {
        auto const add = [&](Orders::Order& order) {
          order.resize(static_cast<std::size_t>(table.ranks()));
          order[static_cast<std::size_t>(r)].push_back(a.microbatch * table.slices + a.slice);
        };
        if (sg::schedule::gives_input_gradient(a.kind))
          add(orders.gradient[static_cast<std::size_t>(l)]);
        if (sg::schedule::ends_flight(a.kind)) add(orders.weight[static_cast<std::size_t>(l)]);
      }
    }
  }
  return orders;
}

/// One parameter with everything that belongs to it.
template <class T> struct OracleParameter {
  std::vector<T> value, gradient, first, second;
  bool decays = true;
};

template <class Optimizer, class... L> class Oracle {
 public:
  Oracle(Optimizer optimizer, std::optional<double> clip_norm, std::uint64_t seed, L... layer)
      : optimizer_(optimizer), clip_norm_(clip_norm), seed_(seed), layers_(std::move(layer)...) {
    each([&](auto index) {
      auto& l = std::get<index()>(layers_);
      if constexpr (requires { l.parameters(); })
        std::apply([&](auto&... p) { (adopt<index()>(p), ...); }, l.parameters());
    });
  }

  sg::Metrics step(Batch const& batch, Orders const& orders = {}) {
    sg::Metrics metrics;
    std::size_t const M = batch.inputs.size();
    for (auto const& target : batch.targets) metrics.terms += static_cast<double>(target.size());
    context_.begin_step(steps_, seed_, true);
    std::tuple<std::vector<typename L::Output>...> y;
    std::tuple<std::vector<typename L::Output>...> dy;
    std::tuple<std::vector<sg::SavedOf<L>>...> saved;
    each([&](auto index) {
      std::get<index()>(y).resize(M);
      std::get<index()>(dy).resize(M);
      std::get<index()>(saved).resize(M);
      for (std::size_t m = 0; m < M; ++m) {
        begin<index()>(m);
        std::get<index()>(layers_).forward(context_, input<index()>(batch, y, m),
                                           std::get<index()>(y)[m], std::get<index()>(saved)[m]);
      }
    });
    double sum = 0;
    for (std::size_t m = 0; m < M; ++m)
      sum += Loss{}.value_and_gradient(context_, std::get<count - 1>(y)[m], batch.targets[m],
                                       1 / metrics.terms, std::get<count - 1>(dy)[m]);
    metrics.loss = sum / metrics.terms;
    downwards<count - 1>(batch, y, dy, saved, orders);
    update(metrics);
    return metrics;
  }

  [[nodiscard]] std::vector<std::byte> bits() const {
    std::vector<std::byte> all;
    auto const append = [&](auto const& numbers) {
      auto const* const first = reinterpret_cast<std::byte const*>(numbers.data());
      all.insert(all.end(), first, first + numbers.size() * sizeof(numbers[0]));
    };
    for (auto const& layer : parameters_)
      for (auto const& p : layer) {
        auto const& [f, d] = p;
        for (auto const* block : {&f.value, &f.first, &f.second}) append(*block);
        for (auto const* block : {&d.value, &d.first, &d.second}) append(*block);
      }
    return all;
  }

 protected:
  static constexpr std::size_t count = sizeof...(L);
  using Either =
      std::pair<OracleParameter<float>, OracleParameter<double>>;  // one of the two is empty

  template <class Body> static void each(Body body) {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      (body(std::integral_constant<std::size_t, I>{}), ...);
    }
    (std::index_sequence_for<L...>{});
  }

  template <std::size_t I, class T> void adopt(sg::Parameter<T>& declared) {
    OracleParameter<T> p;
    p.decays = declared.decays();
    p.value = declared.adopt(static_cast<std::uint32_t>(parameters_[I].size()));
    p.gradient.resize(p.value.size());
    if (Optimizer::states > 0) p.first.resize(p.value.size());
    if (Optimizer::states > 1) p.second.resize(p.value.size());
    Either either;
    std::get<OracleParameter<T>>(either) = std::move(p);
    parameters_[I].push_back(std::move(either));
  }

  template <std::size_t I> void begin(std::size_t m) {
    views_.clear();
    for (auto& [f, d] : parameters_[I]) {
      if (!f.value.empty())
        views_.push_back({f.value.data(), f.gradient.data(), f.value.size()});
      else
        views_.push_back({d.value.data(), d.gradient.data(), d.value.size()});
    }
    context_.begin_action(views_.data(), static_cast<int>(I), static_cast<int>(m));
  }

  template <std::size_t I, class Y>
  static auto const& input(Batch const& batch, Y const& y, std::size_t m) {
    if constexpr (I == 0)
      return batch.inputs[m];
    else
      return std::get<I - 1>(y)[m];
  }

  static Orders::Order order(std::vector<Orders::Order> const& orders, std::size_t layer,
                             std::size_t M) {
    if (!orders.empty()) return orders[layer];
    std::vector<int> rising;
    for (std::size_t m = 0; m < M; ++m) rising.push_back(static_cast<int>(m));
    return {rising};
  }

  /// Calls `add(m)` owner by owner; what the second and later owners add is summed apart first.
  template <std::size_t I, class Add> void owner_by_owner(Orders::Order const& order, Add add) {
    bool first = true;
    for (auto const& owner : order) {
      if (owner.empty()) continue;
      std::vector<std::vector<double>> before;  // float fits in double
      for (auto& [f, d] : parameters_[I]) {
        before.emplace_back(f.gradient.begin(), f.gradient.end());
        if (f.gradient.empty()) before.back().assign(d.gradient.begin(), d.gradient.end());
        std::fill(f.gradient.begin(), f.gradient.end(), 0.0F);
        std::fill(d.gradient.begin(), d.gradient.end(), 0.0);
      }
      for (int const m : owner) add(static_cast<std::size_t>(m));
      std::size_t p = 0;
      for (auto& [f, d] : parameters_[I]) {
        auto const& sum = before[p++];
        if (first) continue;
        for (std::size_t i = 0; i < f.gradient.size(); ++i)
          f.gradient[i] = static_cast<float>(sum[i]) + f.gradient[i];
        for (std::size_t i = 0; i < d.gradient.size(); ++i) d.gradient[i] = sum[i] + d.gradient[i];
      }
      first = false;
    }
  }

  template <std::size_t I, class Y, class S>
  void downwards(Batch const& batch, Y const& y, Y& dy, S& saved, Orders const& orders) {
    auto& layer = std::get<I>(layers_);
    using Layer = std::remove_reference_t<decltype(layer)>;
    std::size_t const M = batch.inputs.size();
    typename Layer::Input nowhere;
    auto const dx = [&](std::size_t m) -> typename Layer::Input& {
      if constexpr (I == 0)
        return nowhere;
      else
        return std::get<I - 1>(dy)[m];
    };
    owner_by_owner<I>(order(orders.gradient, I, M), [&](std::size_t m) {
      begin<I>(m);
      if constexpr (sg::HasBackwardInput<Layer>)
        layer.backward_input(context_, input<I>(batch, y, m), std::get<I>(dy)[m], dx(m),
                             std::get<I>(saved)[m]);
      else if constexpr (sg::HasBackward<Layer>)
        layer.backward(context_, input<I>(batch, y, m), std::get<I>(dy)[m], dx(m),
                       std::get<I>(saved)[m]);
    });
    if constexpr (sg::HasBackwardWeight<Layer>) {
      owner_by_owner<I>(order(orders.weight, I, M), [&](std::size_t m) {
        begin<I>(m);
        layer.backward_weight(context_, input<I>(batch, y, m), std::get<I>(dy)[m],
                              std::get<I>(saved)[m]);
      });
    }
    if constexpr (I > 0) downwards<I - 1>(batch, y, dy, saved, orders);
  }

  void update(sg::Metrics& metrics) {
    double scale = 1;
    if (clip_norm_) {
      double sum = 0;
      for (auto const& layer : parameters_)
        for (auto const& [f, d] : layer) {
          double square = 0;
          for (float const g : f.gradient)
            square += static_cast<double>(g) * static_cast<double>(g);
          for (double const g : d.gradient) square += g * g;
          sum += square;
        }
      metrics.gradient_norm = std::sqrt(sum);
      if (metrics.gradient_norm > *clip_norm_) scale = *clip_norm_ / metrics.gradient_norm;
    }
    ++steps_;
    for (auto& layer : parameters_)
      for (auto& [f, d] : layer) {
        step_one(f, scale);
        step_one(d, scale);
      }
  }

  template <class T> void step_one(OracleParameter<T>& p, double scale) {
    if (p.value.empty()) return;
    sg::OptimizerView<T> view;
    view.value = p.value.data();
    view.next = p.value.data();
    view.gradient = p.gradient.data();
    view.state = {p.first.data(), p.second.data()};
    view.size = p.value.size();
    view.decays = p.decays;
    optimizer_.update(view, scale, steps_);
    std::fill(p.gradient.begin(), p.gradient.end(), T{0});
  }

  Optimizer optimizer_;
  std::optional<double> clip_norm_;
  std::uint64_t seed_;
  std::tuple<L...> layers_;
  std::array<std::deque<Either>, count> parameters_;  // never move: the context holds addresses
  std::vector<sg::ParameterView> views_;
  sg::Context context_;
  std::int64_t steps_ = 0;
};

/// Parameters, loss and norm after each step of a run.
struct Course {
  std::vector<std::vector<std::byte>> bits;
  std::vector<double> loss;
  std::vector<double> norm;
};

inline constexpr std::uint64_t run_seed = 42;
inline constexpr double clip = 0.4;  // some steps exceed it, some do not

inline sg::optimizer::AdamW optimizer() { return {.rate = 0.05, .weight_decay = 0.1}; }

/// The course of the whole model by typed loops.
inline Course expected_course(std::vector<Batch> const& batches, bool clips,
                              Orders const& orders = {}) {
  Oracle oracle(optimizer(), clips ? std::optional<double>(clip) : std::nullopt, run_seed,
                Embedding{}, Dense{}, Curve{}, Squash{}, Dropout{}, Norm{}, Dense{7});
  Course course;
  for (auto const& batch : batches) {
    auto const metrics = oracle.step(batch, orders);
    course.bits.push_back(oracle.bits());
    course.loss.push_back(metrics.loss);
    course.norm.push_back(metrics.gradient_norm);
  }
  return course;
}

/// Runs a pipeline over the batches. @return the first step after which it differs from the course,
/// or -1
template <class Trainer>
int first_difference(Trainer& train, std::vector<Batch> const& batches, Course const& course) {
  for (std::size_t s = 0; s < batches.size(); ++s) {
    auto const metrics = sg::run(train.step(batches[s]));
    if (bits(train) != course.bits[s] || metrics.loss != course.loss[s] ||
        metrics.gradient_norm != course.norm[s])
      return static_cast<int>(s);
  }
  return -1;
}

/// First layers of `stages` stages of about equal length, as cuts.
inline std::vector<int> even_cuts(int stages) { return sg::partition::Even{stages}.cuts(layers); }

/// The first layer of each stage, from cuts.
inline std::vector<int> first_layers(std::vector<int> cuts) {
  cuts.insert(cuts.begin(), 0);
  return cuts;
}

/// The whole model on a device, cut, with a schedule.
template <class Device>
auto pipeline(Device device, std::vector<int> cuts, Made schedule, sg::Options options) {
  options.seed = run_seed;
  return sg::Pipeline{model()}.with(sg::partition::Cuts{std::move(cuts)}, std::move(schedule),
                                    Loss{}, optimizer(), std::move(device), options);
}

}  // namespace small_model
