// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Predictions for an existing plan with another profile or cluster.

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include <stagger/collective/alpha_beta.hpp>
#include <stagger/core/error.hpp>
#include <stagger/partition/split_plan.hpp>
#include <stagger/plan/bound.hpp>
#include <stagger/plan/evaluate.hpp>
#include <stagger/plan/latency.hpp>
#include <stagger/plan/plan.hpp>
#include <stagger/plan/simulate.hpp>
#include <stagger/plan/workload.hpp>

namespace stagger::plan {
namespace detail {

/// The costs of a stage whose layers groups of its devices may share. What lies between two
/// exchanges computes as one, and its gradients are added up once its last backward is done.
class SharedStage {
 public:
  /// @throws Error  bad_configuration for devices that are no whole number of groups
  SharedStage(Workload const& w, Flow const& f, Plan const& plan, std::size_t stage,
              partition::SplitPlan const& split)
      : w_(w),
        split_(split),
        plan_(plan),
        stage_(plan.stages[stage]),
        all_(w.group(stage_.devices)) {
    std::size_t const K = members();
    auto const& ids = stage_.devices;
    slice_ = f.slice(all_.replicas);
    auto const last = static_cast<std::size_t>(stage_.last);
    if (split.layers[last].takes == partition::Held::rows) return;
    if (ids.size() % K != 0)
      raise(Errc::bad_configuration, "stage ", stage, " has ", counted(ids.size(), "device"),
            ", which cannot form groups of ", K, " for its layers; give it a multiple of ", K);
    together_ = f.slice(all_.replicas / split.members);
    for (std::size_t first = 0; first < ids.size(); first += K) {
      auto const& link = w.cluster().link_among(std::span(ids).subspan(first, K));
      link_.startup_s = std::max(link_.startup_s, link.alpha_s);
      link_.per_byte_s = std::max(link_.per_byte_s, 1 / link.bytes_per_s);
    }
    std::vector<int> alike;
    for (std::size_t m = 0; m < K; ++m) {
      alike.clear();
      for (std::size_t i = m; i < ids.size(); i += K) alike.push_back(ids[i]);
      auto const line = w.group(alike).all_reduce;
      alike_ = {std::max(alike_.startup_s, line.startup_s),
                std::max(alike_.per_byte_s, line.per_byte_s)};
    }
  }

  /// The times of one microbatch, with the time by which its gradients prolong the last one.
  [[nodiscard]] StageTime time() const {
    StageTime sum;
    if (stage_.last + 1 == w_.layers())
      exchange(sum, stage_.last + 1);
    else if (adds_at_end())  // the next stage's members collect the sums
      exchange(sum, stage_.last + 1, 1);
    // Only recomputation after the last exchange is hidden: layers before one run again once the
    // gradient has passed through it.
    bool hidden = plan_.recompute && !adds_at_end();
    double sent_s = 0;  // when the sums so far are done, since the start of the last backward
    double bytes = 0;   // of gradients after the last exchange
    for (int l = stage_.last; l >= stage_.first; --l) {
      StageTime const t = of(l);
      sum.forward_s += t.forward_s;
      sum.backward_s += t.backward_s;
      if (hidden) sum.recompute_s += t.forward_s;
      bytes += parameter_bytes(l);
      if (l > stage_.first && exchange(l) == partition::GroupExchange::none) continue;
      hidden = false;
      auto const& line = rows(l) ? all_.all_reduce : alike_;
      if (bytes > 0)
        sent_s = std::max(sent_s, sum.backward_s) + line.startup_s + line.per_byte_s * bytes;
      bytes = 0;
      if (l > stage_.first) exchange(sum, l);
    }
    sum.all_reduce_s = std::max(0.0, sent_s - sum.backward_s);
    return sum;
  }

  /// The memory of the device that holds most.
  [[nodiscard]] StageMemory memory() const {
    StageMemory sum;
    for (int l = stage_.first; l <= stage_.last; ++l) {
      StageMemory const m = w_.memory(l, l + 1, samples(l), plan_.recompute);
      double const part = share(l);
      sum.static_bytes += parameter_bytes(l) * w_.request().memory_factor;
      if (!plan_.recompute || l == stage_.first) sum.each_bytes += m.each_bytes * part;
      sum.once_bytes += m.once_bytes * part;
    }
    return sum;
  }

 private:
  [[nodiscard]] std::size_t members() const { return static_cast<std::size_t>(split_.members); }
  [[nodiscard]] partition::PlannedLayer const& planned(int l) const {
    return split_.layers[number(l)];
  }
  /// Whether members of this stage add up what the next one takes.
  [[nodiscard]] bool adds_at_end() const {
    return stage_.last + 1 < w_.layers() && split_.adds_in_shares(number(stage_.last + 1));
  }
  [[nodiscard]] static std::size_t number(int l) { return static_cast<std::size_t>(l); }
  [[nodiscard]] partition::GroupExchange exchange(int l) const {
    return split_.exchange(number(l));
  }
  [[nodiscard]] bool rows(int l) const { return planned(l).takes == partition::Held::rows; }
  /// Samples of layer l that a device processes.
  [[nodiscard]] double samples(int l) const { return rows(l) ? slice_ : together_; }
  /// Its share of the work on these samples.
  [[nodiscard]] double share(int l) const {
    bool const part =
        planned(l).by != SplitBy::nothing || planned(l).takes == partition::Held::columns;
    return part ? 1.0 / split_.members : 1;
  }
  [[nodiscard]] StageTime of(int l) const {
    StageTime t = w_.time(l, l + 1, all_.kinds, samples(l), plan_.recompute);
    t.forward_s *= share(l);
    t.backward_s *= share(l);
    return t;
  }
  /// The largest part of this many features that a member has, and the smallest, of all of them.
  [[nodiscard]] double largest(std::size_t features) const {
    return features == 0 ? 1.0 / split_.members
                         : static_cast<double>((features + members() - 1) / members()) /
                               static_cast<double>(features);
  }
  [[nodiscard]] double smallest(std::size_t features) const {
    return features == 0
               ? 1.0 / split_.members
               : static_cast<double>(features / members()) / static_cast<double>(features);
  }
  /// Of the member with most of them.
  [[nodiscard]] double parameter_bytes(int l) const {
    double const bytes = w_.parameter_bytes(l, l + 1);
    if (planned(l).by == SplitBy::nothing) return bytes;
    if (planned(l).by == SplitBy::hidden) return bytes * share(l);
    return bytes *
           largest(planned(l).by == SplitBy::outputs ? planned(l).features : planned(l).arriving);
  }

  /// Adds the times of the messages that a member receives from each of the others in front of a
  /// layer, one after the other.
  /// @param steps  of the two in which shares of terms are added up and collected
  void exchange(StageTime& sum, int l, int steps = 2) const {
    using partition::GroupExchange;
    double const others = split_.members - 1;
    // Of the member that receives most; columns in all, from all others.
    auto const each_s = [&](double rows, double columns) {
      double const bytes = w_.boundary_bytes(l, rows) * columns;
      return bytes > 0 ? others * link_.startup_s + link_.per_byte_s * bytes : 0;
    };
    std::size_t const width = split_.width(number(l));
    double const of_others = 1 - smallest(width);
    GroupExchange const here = exchange(l);
    double const rows_s = here == GroupExchange::modulo ? each_s(slice_, others) : 0;
    sum.forward_s += rows_s;
    sum.backward_s += rows_s;
    if (here == GroupExchange::shard || here == GroupExchange::collect)
      sum.forward_s += each_s(together_, of_others);
    if (here == GroupExchange::shard) sum.backward_s += each_s(together_, others * largest(width));
    double added_s = each_s(together_, others);
    if (split_.adds_in_shares(number(l)))
      added_s = each_s(together_, others * largest(width)) +
                (steps == 2 ? each_s(together_, of_others) : 0);
    if (here == GroupExchange::sum || here == GroupExchange::total) sum.forward_s += added_s;
    if (here == GroupExchange::sum || here == GroupExchange::fan) sum.backward_s += added_s;
  }

  Workload const& w_;
  partition::SplitPlan const& split_;
  Plan const& plan_;
  PlanStage const& stage_;
  Group all_;
  collective::CostLine alike_{};  // between devices with pieces of the same parameters
  collective::CostLine link_{};   // between members of a group
  double slice_ = 0;              // samples of a device
  double together_ = 0;           // of a group
};

/// How many versions of its weights a stage needs that updates them after each microbatch, when it
/// runs this many forwards before the first backward: those that microbatches in flight have seen,
/// and the newest one.
[[nodiscard]] inline int versions_of(int warm_up, int microbatches) {
  int most = 1;
  for (int m = 0; m < microbatches; ++m) {  // before the backward of microbatch m
    int const oldest = std::max(0, m - warm_up + 1);
    int const seen = std::min(m, microbatches - warm_up);
    most = std::max(most, seen - oldest + (m > seen ? 2 : 1));
  }
  return most;
}

/// What a device of a stage needs for layers that are updated in each pass: values and optimizer
/// state from before the step, and further versions of the values.
[[nodiscard]] inline double bytes_for_passes(Workload const& w, PlanStage const& stage,
                                             partition::SplitPlan const& split, int versions) {
  double bytes = 0;
  for (int l = stage.first; l <= stage.last; ++l) {
    auto const layer = static_cast<unsigned>(l);
    if (layer < split.first) continue;
    int const pieces = split.layers[layer].by != SplitBy::nothing ? split.members : 1;
    bytes += w.parameter_bytes(l, l + 1) / pieces;
  }
  return bytes * (w.request().memory_factor - 1 + versions - 1);  // all but gradients
}

}  // namespace detail

/// The plan with new predictions. Stages, devices, microbatches and warm-up stay, whether they fit
/// into memory or not.
/// @param w       its request has the batch; microbatches are the plan's
/// @param split   which layers groups of each stage's devices share; empty: none
/// @param update  when layers are updated from the first split one on, which memory depends on. The
///                time does not with one group: as under sim::VirtualClock, updates of parameters
///                take none. Of several groups, what they add up in each pass is not counted
/// @throws Error  bad_configuration for stages or devices that the workload does not have, more
///                microbatches than samples, devices that cannot form groups, or gradients of
///                shared layers that overlap; mismatch for a split of another model
[[nodiscard]] inline Plan predict(Workload const& w, Plan plan,
                                  partition::SplitPlan const& split = {},
                                  partition::Update update = partition::Update::accumulate) {
  bool const shared = split.splits() && split.members > 1;
  if (!split.layers.empty() && std::cmp_not_equal(split.layers.size(), w.layers()))
    raise(Errc::mismatch, "a plan for ", counted(split.layers.size(), "layer"),
          " does not belong to a chain of ", w.layers(), "; give the layers it was made for");
  if (shared && plan.gradients == Gradients::overlapped)
    raise(
        Errc::bad_configuration,
        "gradients of layers that groups share are added up between their exchanges, not in groups "
        "of layers that a plan chooses; let Plan::gradients be together");
  require_draft(w, draft_of(plan, 0));
  int const M = plan.microbatches;
  if (M < 1 || M > w.request().batch)
    raise(Errc::bad_configuration, "a batch of ", counted(w.request().batch, "sample"),
          " cannot be cut into ", counted(M, "microbatch"), "; plan for this batch");
  Flow const f{M, static_cast<double>(w.request().batch) / M};
  std::vector<int> counts;
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    StageMemory m = detail::cost_stage(w, f, plan, i);
    PlanStage& s = plan.stages[i];
    if (shared) {
      detail::SharedStage const stage(w, f, plan, i, split);
      s.time = stage.time();
      m = stage.memory();
      s.activation_bytes = m.each_bytes;
    }
    if (update == partition::Update::each_pass && !split.layers.empty())
      m.static_bytes +=
          detail::bytes_for_passes(w, s, split, detail::versions_of(std::min(s.warm_up, M), M));
    s.static_bytes = m.static_bytes;
    s.memory_bytes = m.bytes(std::min(s.warm_up, M));
    counts.push_back(s.warm_up);
  }
  std::vector<StageTime> times;
  detail::cost_transfers(w, f, plan, times, shared ? &split : nullptr);
  plan.batch = w.request().batch;
  plan.estimate = latency(times, M);
  plan.simulated_s = simulate(times, M, counts);
  detail::rate(w, lower_bound_s(w), plan);
  return plan;
}

}  // namespace stagger::plan
