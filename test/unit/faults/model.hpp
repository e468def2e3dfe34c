// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What a simulation draws: numbers, and the staleness model that its workers follow.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/model/exchange.hpp>
#include <stagger/staleness/asynchronous.hpp>
#include <stagger/staleness/local_sgd.hpp>
#include <stagger/staleness/overlapped_synchronous.hpp>
#include <stagger/staleness/round_robin_synchronous.hpp>
#include <stagger/staleness/stale_synchronous.hpp>
#include <stagger/staleness/wave_synchronous.hpp>

namespace lab {

using stagger::staleness::Adds;
using stagger::staleness::Pushes;

/// The same numbers everywhere, unlike those of standard distributions.
class Random {
 public:
  explicit Random(std::uint64_t seed) : bits_(seed) {}
  [[nodiscard]] std::uint64_t below(std::uint64_t count) { return bits_() % count; }
  [[nodiscard]] int from_to(int first, int last) {
    return first + static_cast<int>(below(static_cast<std::uint64_t>(last - first + 1)));
  }
  [[nodiscard]] bool one_in(std::uint64_t count) { return below(count) == 0; }
  [[nodiscard]] double between(double low, double high) {
    return low + (high - low) * static_cast<double>(below(1U << 20U)) / (1U << 20U);
  }
  template <class T> [[nodiscard]] T const& of(std::vector<T> const& all) {
    return all[below(all.size())];
  }

 private:
  std::mt19937_64 bits_;
};

struct Model {
  std::string name{};
  Adds adds{};
  Pushes pushes{};
  bool streams = false;
  int per_push = 1;
  std::function<int(int)> needs{};
  stagger::detail::LateCalls const* late = nullptr;  // null: no layer is late
  std::shared_ptr<void const> late_policy{};

  template <class M> static Model of(std::string name, M const& model) {
    return {std::move(name),
            model.adds,
            model.pushes,
            !M::synchronous,
            model.minibatches(),
            [model](int m) { return model.needs(m); },
            nullptr,
            nullptr};
  }
  /// Pushes that a worker may have made beyond the slowest.
  [[nodiscard]] std::uint32_t ahead() const {
    int most = 1;
    int needed = 0;
    for (int m = 0; m < 256; ++m) {
      needed = std::max(needed, needs(m));
      most = std::max(most, m / per_push + 1 - needed);
    }
    return static_cast<std::uint32_t>(most);
  }
};

[[nodiscard]] inline Model draw_model(Random& random, std::uint64_t seed) {
  namespace staleness = stagger::staleness;
  using stagger::text;
  Random more(seed ^ 0x9e3779b97f4a7c15U);  // so that seeds of the other models draw what they did
  auto const pushes = more.one_in(2) ? Pushes::changes : Pushes::gradients;
  char const* const pushed = pushes == Pushes::changes ? ", changes" : "";
  int const which = random.from_to(0, 6);
  if (which == 0)
    return {"bsp", Adds::in_worker_order,   Pushes::gradients, false,
            1,     [](int m) { return m; }, nullptr,           nullptr};
  if (which == 1) return Model::of(text("asp", pushed), staleness::Asynchronous{pushes});
  if (which == 2) return Model::of("r2sp", staleness::RoundRobinSynchronous{});
  if (which == 3) {
    int const bound = random.from_to(0, 3);
    bool const exact = pushes == Pushes::changes && more.one_in(2);
    return Model::of(text("ssp(", bound, exact ? ", exact" : "", ")", pushed),
                     staleness::StaleSynchronous{bound, pushes,
                                                 exact ? Adds::in_worker_order : Adds::on_arrival});
  }
  if (which == 4) {
    int const period = random.from_to(1, 3);
    return Model::of(text("local-sgd(", period, ")"), staleness::LocalSgd{period});
  }
  int const in_flight = random.from_to(1, 4);
  int const distance = random.from_to(0, 3);
  auto const adds = which == 5 ? Adds::on_arrival : Adds::in_worker_order;
  return Model::of(text("wsp(", in_flight, ", ", distance, which == 5 ? ")" : ", exact)"),
                   staleness::WaveSynchronous{in_flight, distance, adds});
}

/// With layers that are late, which the server draws anew for each step.
template <class Selection>
[[nodiscard]] Model draw_late_model_of(Random& random, char const* name) {
  namespace osp = stagger::staleness::overlapped;
  using Late = stagger::staleness::OverlappedSynchronous<osp::RandomImportance, Selection,
                                                         osp::ShareLate, osp::NoPrediction>;
  auto const policy = std::make_shared<Late>();
  policy->importance.seed = random.below(1000);
  policy->budget.share = random.one_in(3) ? 0.8 : random.between(0, 0.8);
  Model model = Model::of(stagger::text(name, "(", policy->budget.share, ")"), *policy);
  model.late = stagger::detail::late_calls_of<Late>;
  model.late_policy = policy;
  return model;
}
/// @param splits  whether a layer may be late in part
[[nodiscard]] inline Model draw_late_model(Random& random, bool splits) {
  namespace osp = stagger::staleness::overlapped;
  return splits ? draw_late_model_of<osp::SplitLayer>(random, "osp, split")
                : draw_late_model_of<osp::FirstFit>(random, "osp");
}

constexpr double longest_wait_s = 60;  // of a worker, until something that it waits for comes
constexpr double connection_s = 20;    // for an answer of the server itself

}  // namespace lab
