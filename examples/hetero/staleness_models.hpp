// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The staleness models by name. A new one is one line here.

#include <span>
#include <string_view>
#include <tuple>
#include <vector>

#include <stagger/staleness/asynchronous.hpp>
#include <stagger/staleness/local_sgd.hpp>
#include <stagger/staleness/overlapped_synchronous.hpp>
#include <stagger/staleness/round_robin_synchronous.hpp>
#include <stagger/staleness/stale_synchronous.hpp>
#include <stagger/staleness/synchronous.hpp>
#include <stagger/staleness/wave_synchronous.hpp>

#include "settings.hpp"

namespace hetero {

namespace staleness = stagger::staleness;

/// What models are made from.
struct Numbers {
  int in_flight = 1;
  int distance = 0;
  int bound = 0;
  int period = 1;
  bool exact = false;
  bool changes = false;
  double late = 0.5;
  bool whole_layers = false;

  /// When the server adds what comes from workers, where a model leaves it open.
  [[nodiscard]] constexpr staleness::Adds adds() const noexcept {
    return exact ? staleness::Adds::in_worker_order : staleness::Adds::on_arrival;
  }
  /// What workers push, where a model leaves it open. In exact order they lay their own on top.
  [[nodiscard]] constexpr staleness::Pushes pushes() const noexcept {
    return changes || exact ? staleness::Pushes::changes : staleness::Pushes::gradients;
  }
};

/// Which flags have a meaning for a model.
struct Takes {
  bool bound = false;
  bool distance = false;
  bool period = false;
  bool exact = false;
  bool pushes = false;
  bool late = false;
};

template <class Make> struct StalenessEntry {
  std::string_view name;
  std::string_view what;
  Takes takes;
  Make make;  ///< a model from Numbers
};
template <class Make> StalenessEntry(char const*, char const*, Takes, Make) -> StalenessEntry<Make>;

[[nodiscard]] inline Numbers numbers_of(Settings const& s) {
  return {.in_flight = static_cast<int>(s.in_flight),
          .distance = static_cast<int>(s.distance),
          .bound = static_cast<int>(s.bound),
          .period = static_cast<int>(s.period),
          .exact = s.exact,
          .changes = s.pushes == "changes",
          .late = s.late,
          .whole_layers = s.whole_layers};
}

/// The layers that fit, and, unless only whole ones are late, a part of the next.
struct Fitting {
  bool whole_layers = false;
  template <class Layer> void pick(std::span<Layer> layers, double budget) const {
    if (whole_layers)
      staleness::overlapped::FirstFit{}.pick(layers, budget);
    else
      staleness::overlapped::SplitLayer{}.pick(layers, budget);
  }
  [[nodiscard]] auto fields() const { return std::tie(whole_layers); }
  friend bool operator==(Fitting const&, Fitting const&) = default;
};

/// OSP, with the layers late that matter least.
[[nodiscard]] inline auto overlapped(Numbers const& n) {
  return staleness::OverlappedSynchronous<staleness::overlapped::ParameterGradientProduct, Fitting,
                                          staleness::overlapped::ShareLate>{
      .selection = {n.whole_layers}, .budget = {n.late}};
}

inline constexpr std::tuple staleness_models{
    StalenessEntry{"bsp", "all workers wait for each other after every step", Takes{},
                   [](Numbers const&) { return staleness::Synchronous{}; }},
    StalenessEntry{"asp", "no worker waits for another", Takes{.pushes = true},
                   [](Numbers const& n) { return staleness::Asynchronous{n.pushes()}; }},
    StalenessEntry{"ssp", "at most --bound steps ahead",
                   Takes{.bound = true, .exact = true, .pushes = true},
                   [](Numbers const& n) {
                     return staleness::StaleSynchronous{n.bound, n.pushes(), n.adds()};
                   }},
    StalenessEntry{"r2sp", "workers push in turn", Takes{},
                   [](Numbers const&) { return staleness::RoundRobinSynchronous{}; }},
    StalenessEntry{"wsp", "HetPipe's waves of --in-flight minibatches, --distance waves ahead",
                   Takes{.distance = true, .exact = true},
                   [](Numbers const& n) {
                     return staleness::WaveSynchronous{
                         .in_flight = n.in_flight, .distance = n.distance, .adds = n.adds()};
                   }},
    StalenessEntry{"osp", "as bsp, but --late of the bytes are exchanged during the next step",
                   Takes{.late = true}, [](Numbers const& n) { return overlapped(n); }},
    StalenessEntry{"local-sgd", "--period steps alone, then the mean", Takes{.period = true},
                   [](Numbers const& n) { return staleness::LocalSgd{.period = n.period}; }},
};

/// Calls `visit(entry)` for each model.
template <class Visit> constexpr void for_each_model(Visit visit) {
  std::apply([&](auto const&... entry) { (visit(entry), ...); }, staleness_models);
}

[[nodiscard]] inline std::vector<std::string_view> names_of_models() {
  std::vector<std::string_view> names;
  for_each_model([&](auto const& entry) { names.push_back(entry.name); });
  return names;
}

/// Calls `visit(entry)` for the model of that name, if there is one.
template <class Visit> void with_model(std::string_view name, Visit visit) {
  for_each_model([&](auto const& entry) {
    if (entry.name == name) visit(entry);
  });
}

}  // namespace hetero
