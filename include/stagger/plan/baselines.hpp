// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Baseline plans: one device for each stage, or one stage on all devices.

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <stagger/plan/evaluate.hpp>
#include <stagger/plan/infeasible.hpp>
#include <stagger/plan/plan.hpp>
#include <stagger/plan/workload.hpp>

namespace stagger::plan {

namespace detail {

/// The first layer of each stage after the first, such that the longest stage is as short as
/// possible.
/// @pre 1 <= stages <= seconds.size()
[[nodiscard]] inline std::vector<int> balanced(std::vector<double> const& seconds, int stages) {
  auto const N = seconds.size();
  auto const cut = [&](double limit) {  // into more stages if they would take longer
    std::vector<int> cuts;
    double stage = 0;
    for (std::size_t l = 0; l < N; ++l) {
      bool const must = std::cmp_less(N - l + cuts.size(), stages);  // a layer for each one left
      if (l > 0 && (stage + seconds[l] > limit || must) && !(stage == 0 && !must)) {
        cuts.push_back(static_cast<int>(l));
        stage = 0;
      }
      stage += seconds[l];
    }
    return cuts;
  };
  double low = 0, high = 0;
  for (double const s : seconds) low = std::max(low, s), high += s;
  for (int i = 0; i < 100 && high - low > 1e-12 * high; ++i) {
    double const middle = low + (high - low) / 2;
    (std::cmp_less(cut(middle).size(), stages) ? high : low) = middle;
  }
  return cut(high * (1 + 1e-12));
}

/// The draft of some cuts: devices in order are divided evenly among the stages; if there is a
/// remainder, the first stages get one more.
[[nodiscard]] inline Draft in_order(Workload const& w, std::vector<int> const& cuts) {
  auto const& ids = w.devices();
  std::size_t const S = cuts.size() + 1;
  Draft draft;
  for (std::size_t s = 0, d = 0; s < S; ++s) {
    std::size_t const count = ids.size() / S + (s < ids.size() % S ? 1 : 0);
    auto const begin = ids.begin() + static_cast<std::ptrdiff_t>(d);
    draft.stages.push_back({s == 0 ? 0 : cuts[s - 1],
                            s + 1 == S ? w.layers() : cuts[s],
                            {begin, begin + static_cast<std::ptrdiff_t>(count)}});
    d += count;
  }
  return draft;
}

/// Seconds of each layer's forward and backward on the first device.
[[nodiscard]] inline std::vector<double> layer_seconds(Workload const& w) {
  std::vector<double> seconds;
  for (int l = 0; l < w.layers(); ++l) seconds.push_back(w.time(l, l + 1, 1, 1, false).both_s());
  return seconds;
}

[[nodiscard]] inline Draft straight(Workload const& w) {
  int const G = static_cast<int>(w.devices().size());
  return in_order(w, balanced(layer_seconds(w), G));
}

/// The plan of a draft that depends only on the request; if it does not fit, the error says what
/// would.
/// @param make  Draft(Workload const&)
template <class Make>
[[nodiscard]] Plan only(Workload const& w, Make&& make, std::string const& policy) {
  auto const planned = [&](Workload const& of, Evaluator& evaluator) {
    Draft draft = make(of);
    draft.recompute = of.request().recompute;
    return evaluator(draft, policy);
  };
  Evaluator evaluator(w);
  if (auto plan = planned(w, evaluator)) return *std::move(plan);
  throw infeasible(w, evaluator.shortage(), [&](Request const& r) {
    Workload const other(w.profile(), w.cluster(), r);
    Evaluator again(other);
    return planned(other, again).has_value();
  });
}

}  // namespace detail

/// One device for each stage; layers are divided so that the longest stage is as short as possible.
struct Straight {
  /// @throws Infeasible if there are fewer layers than devices, or if it does not fit
  [[nodiscard]] Plan plan(Workload const& w) const {
    auto const G = static_cast<int>(w.devices().size());
    if (w.layers() < G)
      throw infeasible(
          w, {Resource::layers, -1, static_cast<double>(G), static_cast<double>(w.layers()),
              "leave devices out, or replicate stages"});
    return detail::only(w, &detail::straight, "straight");
  }
};

/// One stage on all devices; gradients are sent while the last backward runs.
struct DataParallel {
  Gradients gradients = Gradients::overlapped;

  /// @throws Infeasible if the model does not fit on each device, or the batch is too small
  [[nodiscard]] Plan plan(Workload const& w) const {
    auto const make = [&](Workload const& of) {
      return Draft{.stages = {{0, of.layers(), of.devices()}}, .gradients = gradients};
    };
    return detail::only(w, make, "data-parallel");
  }
};

}  // namespace stagger::plan
