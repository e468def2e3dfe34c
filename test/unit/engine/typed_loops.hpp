// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Training by plain typed loops: no program, no slots, no erased types.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "typed_oracle.hpp"

namespace small_model {

/// One parameter with everything that belongs to it.
template <class T> struct OracleParameter {
  std::vector<T> value, gradient, first, second;
  bool decays = true;
  std::size_t rows = 0;
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
    }(std::index_sequence_for<L...>{});
  }

  template <std::size_t I, class T> void adopt(sg::Parameter<T>& declared) {
    OracleParameter<T> p;
    p.decays = declared.decays();
    p.rows = declared.rows();
    p.value =
        declared.adopt(static_cast<std::uint32_t>(parameters_[I].size()), static_cast<int>(I));
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
    view.rows = p.rows;
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

/// What an oracle of small layers goes through.
/// @param step  takes one step of it: step(oracle, batch)
template <class AnyOracle, class Step>
Course course_of(AnyOracle& oracle, std::vector<Batch> const& batches, Step step) {
  Course course;
  for (auto const& batch : batches) {
    sg::Metrics const metrics = step(oracle, batch);
    course.bits.push_back(oracle.bits());
    course.loss.push_back(metrics.loss);
    course.norm.push_back(metrics.gradient_norm);
  }
  return course;
}

}  // namespace small_model
