// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   DAPPLE's planner: cuts, replicas and devices with the shortest estimated iteration.
/// @source Fan et al., "DAPPLE", PPoPP 2021, section 4.

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/core/list.hpp>
#include <stagger/placement/fill.hpp>
#include <stagger/plan/baselines.hpp>
#include <stagger/plan/evaluate.hpp>
#include <stagger/plan/infeasible.hpp>
#include <stagger/plan/plan.hpp>
#include <stagger/plan/workload.hpp>

namespace stagger::plan {

namespace detail {

/// A finished draft and its estimate.
struct Found {
  double seconds = 0;
  Draft draft{};
  long long order = 0;  ///< of discovery: breaks ties
};

/// The boundaries at which stages may end: all of them, or in a long model the cheapest in each of
/// 160 intervals of equal work.
[[nodiscard]] inline List<int> boundaries(Workload const& w) {
  constexpr int most = 160;
  int const N = w.layers();
  List<int> cuts;
  auto const seconds = layer_seconds(w);
  double all = 0, sum = 0;
  for (double const s : seconds) all += s;
  int stretch = -1, l = 0;
  for (double const s : seconds) {
    sum += s;
    if (++l == N) break;
    int const now = N - 1 <= most ? l
                    : all > 0     ? std::min(most - 1, static_cast<int>(sum / all * most))
                                  : l * most / N;
    if (now != stretch)
      cuts.push_back(l);
    else if (w.boundary_bytes(l, 1) < w.boundary_bytes(cuts.back(), 1))
      cuts.back() = l;
    stretch = now;
  }
  return cuts;
}

/// The search: the last stage of a partial plan is cut in two, and its front part is put on devices
/// that one of the three fills chooses. For each number of layers and set of devices in front of
/// the last stage, the best partial plans are kept.
class DappleSearch {
 public:
  /// @param short_warm_up  whether memory for one microbatch is sufficient for a stage
  DappleSearch(Workload const& w, Form form, long long budget, int microbatch, bool recompute,
               bool short_warm_up)
      : w_(w),
        form_(form),
        microbatch_(microbatch > 0 ? microbatch : w.microbatch()),
        recompute_(recompute),
        short_warm_up_(short_warm_up),
        cuts_(boundaries(w)) {
    double const L = static_cast<double>(cuts_.size());
    double const each = L * L / 2 * static_cast<double>(w.devices().size()) * 1.5;
    double const most = static_cast<double>(budget);
    keep_ = static_cast<std::size_t>(std::max(1.0, std::min(most, most / each)));  // one layer: all
  }

  /// The best plans for each number of stages, best first; empty if none fits.
  [[nodiscard]] std::vector<Found> run() {
    open_.resize(cuts_.size());
    consider_whole();
    expand(-1, -1);
    for (int at = 0; at < static_cast<int>(cuts_.size()); ++at) {
      for (int const partial : chosen(open_[at])) expand(at, partial);
      open_[at].clear();
    }
    std::vector<Found> all;
    for (auto& of_stages : best_)
      for (auto& f : of_stages) all.push_back(std::move(f));
    std::sort(all.begin(), all.end(), [](Found const& a, Found const& b) {
      return a.seconds != b.seconds ? a.seconds < b.seconds : a.order < b.order;
    });
    return all;
  }

  [[nodiscard]] long long evaluated() const noexcept { return evaluated_; }
  [[nodiscard]] Shortage const& shortage() const noexcept { return shortage_; }

 private:
  /// A stage before the last one, linked to the stages before it.
  struct Partial {
    double seconds = 0;  ///< estimate, with all other layers on all other devices
    int before = -1;     ///< in partials_
    int first = 0, end = 0;
    Group group{};
    Wire wire{};  ///< from the stage before
    std::vector<int> devices{};
    std::vector<int> taken{};  ///< [nodes] including this stage
  };
  using Open = std::map<std::vector<int>, std::vector<int>>;  // devices taken -> plans

  [[nodiscard]] std::vector<int> chosen(Open const& open) const {
    std::vector<std::pair<std::size_t, int>> ranked;  // rank among those with the same devices
    for (auto const& [taken, best] : open)
      for (std::size_t i = 0; i < best.size(); ++i) ranked.emplace_back(i, best[i]);
    std::sort(ranked.begin(), ranked.end(), [&](auto const& a, auto const& b) {
      if (a.first != b.first) return a.first < b.first;
      if (seconds(a.second) != seconds(b.second)) return seconds(a.second) < seconds(b.second);
      return a.second < b.second;
    });
    if (ranked.size() > keep_) ranked.resize(keep_);
    std::vector<int> result;
    for (auto const& r : ranked) result.push_back(r.second);
    return result;
  }

  [[nodiscard]] double seconds(int partial) const { return partials_[partial].seconds; }

  bool fits(StageMemory const& m, Group const& g, int i, int stages, int microbatches, int first,
            int end) {
    int const in_flight = short_warm_up_ ? 1 : std::min(stages - i, microbatches);
    if (m.depth(g.capacity_bytes, in_flight) == in_flight) return true;  // as the Evaluator decides
    double const needed = m.bytes(in_flight);
    double const over = needed / std::max(1.0, g.capacity_bytes);
    if (least_over_ == 0 || over < least_over_) {
      least_over_ = over;
      int layer = first;
      for (int l = first; l < end; ++l)
        if (w_.parameter_bytes(l, l + 1) > w_.parameter_bytes(layer, layer + 1)) layer = l;
      shortage_ = {Resource::memory, layer, needed, g.capacity_bytes};
    }
    return false;
  }

  void consider_whole() {
    Group const g = w_.group(w_.devices());
    Flow const f = flow(w_.request().batch, microbatch_, g.replicas);
    if (f.microbatches < 1) {
      if (least_over_ == 0)
        shortage_ = {Resource::samples, -1, static_cast<double>(microbatch_) * g.replicas,
                     static_cast<double>(w_.request().batch)};
      return;
    }
    double const slice = f.slice(g.replicas);
    int const N = w_.layers();
    if (!fits(w_.memory(0, N, slice, recompute_), g, 0, 1, f.microbatches, 0, N)) return;
    if (form_ == Form::printed) return;  // the paper does not consider the plan of one stage
    StageTime t = w_.time(0, N, g.kinds, slice, recompute_);
    for (Gradients const gradients : {Gradients::together, Gradients::overlapped}) {
      bool const overlapped = gradients == Gradients::overlapped;
      t.all_reduce_s = w_.gradients_s(0, N, g, slice, recompute_, overlapped);
      record(latency_of({&t, 1}, f.microbatches, form_).seconds,
             [&] { return Draft{.stages = {{0, N, w_.devices()}}, .gradients = gradients}; });
    }
    evaluated_ += 2;
  }

  /// Cuts the last stage of a partial plan, or of the empty one (-1), in all ways.
  void expand(int at, int partial) {
    placement::Occupancy occupied = w_.free();
    chain_.clear();
    for (int p = partial; p >= 0; p = partials_[p].before) chain_.push_back(p);
    std::reverse(chain_.begin(), chain_.end());
    int begin = 0;
    if (partial >= 0) {
      occupied.taken = partials_[partial].taken;
      begin = partials_[partial].end;
    }
    int const free = occupied.free();
    for (int m = 1; m < free; ++m) {
      std::vector<std::vector<int>> fills{placement::FreshFirst{}.fill(occupied, m)};
      for (auto const& fill : {placement::AppendFirst{}.fill(occupied, m),
                               placement::ScatterFirst{}.fill(occupied, m)})
        if (std::find(fills.begin(), fills.end(), fill) == fills.end()) fills.push_back(fill);
      for (auto const& fill : fills) split(at, partial, begin, occupied, fill);
    }
  }

  [[nodiscard]] std::vector<int> ids(placement::Occupancy const& occupied,
                                     std::vector<int> const& fill) const {
    auto result = occupied.devices(fill);
    for (int& id : result) id = w_.devices().data()[id];
    return result;
  }

  void split(int at, int partial, int begin, placement::Occupancy const& occupied,
             std::vector<int> const& fill) {
    Partial next{.before = partial, .first = begin, .devices = ids(occupied, fill)};
    placement::Occupancy with = occupied;
    for (std::size_t n = 0; n < fill.size(); ++n) with.taken[n] += fill[n];
    std::vector<int> all_left(with.size.size());
    for (std::size_t n = 0; n < all_left.size(); ++n) all_left[n] = with.free(n);
    auto const rest = ids(with, all_left);
    next.taken = with.taken;
    next.group = w_.group(next.devices);
    Group const tail = w_.group(rest);
    Wire const to_tail = w_.wire(next.devices, rest);
    int most = std::max(next.group.replicas, tail.replicas);
    for (int const p : chain_) most = std::max(most, partials_[p].group.replicas);
    Flow const f = flow(w_.request().batch, microbatch_, most);
    if (f.microbatches < 1) return;  // further cuts do not change the front stages

    std::size_t const C = chain_.size();
    int const S = static_cast<int>(C) + 2;
    int const N = w_.layers();
    times_.assign(2 * C + 3, StageTime{});
    auto const put = [&](std::size_t i, int first, int end, Group const& g) {
      double const slice = f.slice(g.replicas);
      StageTime& t = times_[2 * i];
      t = w_.time(first, end, g.kinds, slice, recompute_);
      t.all_reduce_s = w_.gradients_s(first, end, g, slice, recompute_, false);
      return fits(w_.memory(first, end, slice, recompute_), g, static_cast<int>(i), S,
                  f.microbatches, first, end);
    };
    auto const send = [&](std::size_t i, Wire const& wire, int layer) {
      double const s = wire.seconds(w_.boundary_bytes(layer, f.microbatch));
      times_[2 * i - 1] = {s, s, 0};
    };
    for (std::size_t i = 0; i < C; ++i) {
      Partial const& p = partials_[chain_[i]];
      if (!put(i, p.first, p.end, p.group)) return;
      if (i > 0) send(i, p.wire, p.first);
    }
    if (C > 0) {
      next.wire = w_.wire(partials_[partial].devices, next.devices);
      send(C, next.wire, begin);
    }
    for (int c = at + 1; c < static_cast<int>(cuts_.size()); ++c) {
      next.end = cuts_[c];
      if (!put(C, begin, next.end, next.group)) break;
      bool const whole = put(C + 1, next.end, N, tail);
      send(C + 1, to_tail, next.end);
      next.seconds = latency_of(times_, f.microbatches, form_).seconds;
      ++evaluated_;
      if (whole) record(next.seconds, [&] { return finish(next, rest); });
      if (rest.size() > 1 && next.end != cuts_.back()) keep(c, next);
    }
  }

  void keep(int c, Partial const& next) {
    auto& best = open_[c][next.taken];
    auto const place = std::upper_bound(best.begin(), best.end(), next.seconds,
                                        [&](double s, int other) { return s < seconds(other); });
    auto const rank = place - best.begin();
    if (best.size() < keep_) {
      best.insert(place, static_cast<int>(partials_.size()));
      partials_.push_back(next);
    } else if (place != best.end()) {  // the worst is dropped; nothing refers to it yet
      int const slot = best.back();
      best.pop_back();
      best.insert(best.begin() + rank, slot);
      partials_[slot] = next;
    }
  }

  [[nodiscard]] Draft finish(Partial const& next, std::vector<int> const& rest) const {
    Draft draft;
    for (int const p : chain_) {
      Partial const& s = partials_[p];
      draft.stages.push_back({s.first, s.end, s.devices});
    }
    draft.stages.push_back({next.first, next.end, next.devices});
    draft.stages.push_back({next.end, w_.layers(), rest});
    return draft;
  }

  /// Keeps the best few plans for each number of stages.
  template <class Make> void record(double seconds, Make&& make) {
    constexpr std::size_t few = 6;
    std::size_t const S = chain_.size() + 2;
    if (best_.size() <= S) best_.resize(S + 1);
    auto& best = best_[S];
    if (best.size() >= few && !(seconds < best.back().seconds)) return;
    Found found{seconds, make(), evaluated_};
    found.draft.microbatch = microbatch_;
    found.draft.recompute = recompute_;
    auto const place =
        std::upper_bound(best.begin(), best.end(), seconds,
                         [](double s, Found const& other) { return s < other.seconds; });
    best.insert(place, std::move(found));
    if (best.size() > few) best.pop_back();
  }

  Workload const& w_;
  Form form_;
  int microbatch_;
  bool recompute_, short_warm_up_;
  std::size_t keep_ = 1;  ///< how many partial plans are cut further, for each boundary
  List<int> cuts_;
  List<Open> open_{};  ///< [cuts] partial plans that end at the boundary
  List<Partial> partials_{};
  List<int> chain_{};  ///< the partial plan that is cut further, from its first stage on
  std::vector<StageTime> times_{};
  std::vector<std::vector<Found>> best_{};  ///< [stages]
  long long evaluated_ = 0;
  double least_over_ = 0;
  Shortage shortage_{};
};

}  // namespace detail

/// Minimises the closed estimate over cuts, replicas and the device sets that three fills reach;
/// also considers data parallelism with overlapped gradients, the straight pipeline, and all plans
/// of two stages.
///
/// Memory: stage i of S must hold S - i microbatches; if no plan can, one is sufficient.
/// @complexity  about `budget` evaluations of O(stages); exhaustive for small models and clusters
struct Dapple {
  Form form = Form::corrected;  ///< printed: as in the paper, for comparison
  long long budget = 2'000'000;

  /// @throws Infeasible if nothing fits; names the smallest requirement found
  /// @throws Error       bad_configuration for the printed form with one device or one layer
  [[nodiscard]] Plan plan(Workload const& w) const {
    if (form == Form::printed && (w.layers() < 2 || w.devices().size() < 2))
      raise(Errc::bad_configuration, "the paper's planner cuts a model in two or more, which ",
            counted(w.layers(), "layer"), " on ", counted(w.devices().size(), "device"),
            " cannot be; plan with Form::corrected");
    long long candidates = 0;
    Shortage shortage;
    if (auto found = search(w, candidates, shortage)) return *std::move(found);
    throw infeasible(w, shortage, [&](Request const& r) {
      long long count = 0;
      Shortage other;
      Dapple const quick{form, 100'000};
      return quick.search(Workload(w.profile(), w.cluster(), r), count, other).has_value();
    });
  }

 private:
  [[nodiscard]] std::optional<Plan> search(Workload const& w, long long& candidates,
                                           Shortage& shortage) const {
    char const* const policy = form == Form::printed ? "dapple-printed" : "dapple";
    bool const recompute = w.request().recompute;
    Evaluator evaluator(w);
    std::optional<Plan> best;
    for (bool const short_warm_up : {false, true}) {
      detail::DappleSearch search(w, form, budget, 0, recompute, short_warm_up);
      auto const found = search.run();
      candidates += search.evaluated();
      shortage = search.shortage();
      if (!found.empty()) best = evaluator(found.front().draft, policy, form);
      if (best) break;
    }
    if (form != Form::printed && w.layers() >= static_cast<int>(w.devices().size())) {
      Draft draft = detail::straight(w);
      draft.recompute = recompute;
      auto const straight = evaluator(draft, policy, form);
      ++candidates;
      if (straight && (!best || straight->latency_s < best->latency_s)) best = straight;
    }
    if (best) best->candidates = candidates;
    return best;
  }
};

}  // namespace stagger::plan
