// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The evaluation of drafts: from stages and devices to a plan with warm-up, memory and
///         times.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/core/list.hpp>
#include <stagger/partition/split_plan.hpp>
#include <stagger/plan/bound.hpp>
#include <stagger/plan/infeasible.hpp>
#include <stagger/plan/latency.hpp>
#include <stagger/plan/plan.hpp>
#include <stagger/plan/simulate.hpp>
#include <stagger/plan/warm_up.hpp>
#include <stagger/plan/workload.hpp>

namespace stagger::plan {

/// Consecutive layers on devices.
struct Assignment {
  int first = 0;
  int end = 0;                 ///< one after the last layer
  std::vector<int> devices{};  ///< rising
  friend bool operator==(Assignment const&, Assignment const&) = default;
};

/// The decisions of a plan, which determine everything else in it.
struct Draft {
  std::vector<Assignment> stages{};
  int microbatch = 0;  ///< samples per device; 0: the workload's
  bool recompute = false;
  Gradients gradients = Gradients::together;
  friend bool operator==(Draft const&, Draft const&) = default;
};

/// The draft from which a plan was made.
[[nodiscard]] inline Draft draft_of(Plan const& plan, int microbatch) {
  Draft draft{.microbatch = microbatch, .recompute = plan.recompute, .gradients = plan.gradients};
  for (auto const& s : plan.stages) draft.stages.push_back({s.first, s.last + 1, s.devices});
  return draft;
}

/// Checks that stages cover the layers without a gap and that no device is used twice.
/// @throws Error  bad_configuration naming stage, layer or device
inline void require_draft(Workload const& workload, Draft const& draft) {
  auto const refuse = [](std::string const& s) { raise(Errc::bad_configuration, s); };
  auto const& usable = workload.devices();
  List<int> user(workload.cluster().devices.size(), -1);  // [devices] the stage that uses it
  int next = 0;
  int at = 0;
  for (auto const& s : draft.stages) {
    if (s.first != next || s.end <= s.first || s.end > workload.layers())
      refuse(text("stage ", at, " has layers ", s.first, " to ", s.end - 1, ", but layer ", next,
                  " of ", workload.layers(), " comes next; let each stage have one or more"));
    if (s.devices.empty()) refuse(text("stage ", at, " has no device; give it one or more"));
    for (int const id : s.devices) {
      if (!std::binary_search(usable.begin(), usable.end(), id))
        refuse(text("stage ", at, " is on device ", id, ", which is not there or is left out"));
      int& owner = user[id];
      if (owner >= 0)
        refuse(text("device ", id, " is used by stage ", owner, " and by stage ", at,
                    "; a device has one stage"));
      owner = at;
    }
    if (!std::is_sorted(s.devices.begin(), s.devices.end()))
      refuse(text("the devices of stage ", at, " do not rise; list them in order"));
    next = s.end;
    ++at;
  }
  if (next != workload.layers())
    refuse(text("the stages end before layer ", next, " of ", workload.layers(),
                "; let them have every layer"));
}

/// The number of microbatches of an iteration, and the size of their slices.
struct Flow {
  int microbatches = 0;   ///< 0: the batch is too small for the replicas
  double microbatch = 0;  ///< samples, on average

  /// Samples of the largest replica's slice.
  [[nodiscard]] double slice(int replicas) const noexcept {
    return whole_samples(microbatch / replicas);
  }
};

/// M = floor(batch / (samples per device * largest number of replicas)).
[[nodiscard]] constexpr Flow flow(int batch, int per_device, int most_replicas) noexcept {
  auto const each = static_cast<long long>(per_device) * most_replicas;
  int const m = static_cast<int>(batch / each);
  return {m, m == 0 ? 0 : static_cast<double>(batch) / m};
}

namespace detail {

/// Puts the costs of stage i into a plan whose stages have their layers and devices.
/// @return  its memory
inline StageMemory cost_stage(Workload const& w, Flow const& f, Plan& plan, std::size_t i) {
  PlanStage& s = plan.stages[i];
  int const end = s.last + 1;
  Group const group = w.group(s.devices);
  double const slice = f.slice(group.replicas);
  s.time = w.time(s.first, end, group.kinds, slice, plan.recompute);
  s.time.all_reduce_s = w.gradients_s(s.first, end, group, slice, plan.recompute,
                                      plan.gradients == Gradients::overlapped);
  StageMemory const m = w.memory(s.first, end, slice, plan.recompute);
  s.static_bytes = m.static_bytes;
  s.activation_bytes = m.each_bytes;
  s.capacity_bytes = group.capacity_bytes;
  return m;
}

/// Puts transfers into a plan whose stages have their times.
/// @param times  [2S - 1] output: the stages and transfers for estimate and simulation
/// @param split  of layers that groups share: each member takes all rows of its group; null: none
inline void cost_transfers(Workload const& w, Flow const& f, Plan& plan,
                           std::vector<StageTime>& times,
                           partition::SplitPlan const* split = nullptr) {
  std::size_t const S = plan.stages.size();
  double both = 0, transfers = 0;
  times.clear();
  for (std::size_t i = 0; i < S; ++i) {
    PlanStage& s = plan.stages[i];
    times.push_back(s.time);
    both += s.time.both_s();
    s.transfer_s = 0;
    if (i + 1 == S) break;
    auto const next = static_cast<std::size_t>(s.last) + 1;
    bool const whole = split != nullptr && split->layers[next].takes == partition::Held::whole;
    s.transfer_s =
        w.wire(s.devices, plan.stages[i + 1].devices)
            .seconds(w.boundary_bytes(s.last + 1, f.microbatch) * (whole ? split->members : 1));
    times.push_back({s.transfer_s, s.transfer_s, 0});
    transfers += s.transfer_s;
  }
  plan.acr = S > 1 && both > 0
                 ? (transfers / static_cast<double>(S - 1)) / (both / static_cast<double>(S))
                 : 0;
  plan.alpha = 2 * plan.acr;
}

/// What limits stage i of a plan whose times are known.
[[nodiscard]] inline Limit limit(Plan const& plan, std::size_t i) {
  PlanStage const& s = plan.stages[i];
  double const both = s.time.both_s();
  double const beside = std::max(s.transfer_s, i > 0 ? plan.stages[i - 1].transfer_s : 0);
  if (2 * beside > both || s.time.all_reduce_s > both * plan.microbatches) return Limit::link;
  int const wanted = std::min(static_cast<int>(plan.stages.size() - i), plan.microbatches);
  return s.warm_up < wanted ? Limit::memory : Limit::time;
}

/// Fills in the gap and the speed-up of a plan that has been estimated and simulated.
inline void rate(Workload const& w, double lower_bound_s, Plan& plan) {
  for (std::size_t i = 0; i < plan.stages.size(); ++i) plan.stages[i].limit = limit(plan, i);
  plan.latency_s = plan.estimate.seconds;
  plan.lower_bound_s = lower_bound_s;
  plan.gap = lower_bound_s > 0 ? plan.simulated_s / lower_bound_s - 1 : 0;
  plan.speedup = plan.latency_s > 0 ? w.one_device_s() / plan.latency_s : 1;
}

}  // namespace detail

/// Turns drafts into plans, and reuses its memory.
class Evaluator {
 public:
  explicit Evaluator(Workload const& workload)
      : work_(&workload), lower_bound_s_(plan::lower_bound_s(workload)) {}

  /// @return  empty if the batch is too small, or a stage does not fit with one microbatch in
  ///          flight; `shortage()` then says why
  [[nodiscard]] std::optional<Plan> operator()(Draft const& draft, std::string const& policy,
                                               Form form = Form::corrected) {
    Workload const& w = *work_;
    int most = 1;
    for (auto const& s : draft.stages) most = std::max(most, static_cast<int>(s.devices.size()));
    int const each = draft.microbatch > 0 ? draft.microbatch : w.microbatch();
    Flow const f = flow(w.request().batch, each, most);
    if (f.microbatches < 1) {
      shortage_ = {Resource::samples, -1, static_cast<double>(each) * most,
                   static_cast<double>(w.request().batch)};
      return std::nullopt;
    }
    Plan plan{.policy = policy,
              .batch = w.request().batch,
              .microbatches = f.microbatches,
              .recompute = draft.recompute,
              .gradients = draft.gradients};
    plan.stages.reserve(draft.stages.size());
    depths_.clear();
    memory_.clear();
    for (Assignment const& a : draft.stages) {
      plan.stages.push_back({.first = a.first, .last = a.end - 1, .devices = a.devices});
      StageMemory const& m =
          memory_.emplace_back(detail::cost_stage(w, f, plan, plan.stages.size() - 1));
      PlanStage const& s = plan.stages.back();
      depths_.push_back(m.depth(s.capacity_bytes, f.microbatches));
      if (depths_.back() >= 1) continue;
      shortage_ = {Resource::memory, largest(a, f.slice(s.replicas())), m.bytes(1),
                   s.capacity_bytes};
      return std::nullopt;
    }
    detail::cost_transfers(w, f, plan, times_);
    plan.estimate = detail::latency_of(times_, f.microbatches, form);
    std::vector<int> const counts = warm_up(f.microbatches, plan.simulated_s);
    for (std::size_t i = 0; i < counts.size(); ++i) {
      plan.stages[i].warm_up = counts[i];
      plan.stages[i].memory_bytes = memory_[i].bytes(counts[i]);
    }
    detail::rate(w, lower_bound_s_, plan);
    return plan;
  }

  /// Why the last draft gave no plan.
  [[nodiscard]] Shortage const& shortage() const noexcept { return shortage_; }

 private:
  /// The warm-up whose gap, of 1 to 3, has the fastest simulation.
  [[nodiscard]] std::vector<int> warm_up(int microbatches, double& seconds) {
    auto const play = [&](std::vector<int> const& counts) {
      return simulator_.play(times_, microbatches, counts);
    };
    int const S = static_cast<int>(depths_.size());
    std::vector<int> best;
    for (int g = 1; g <= (S > 1 ? 3 : 1); ++g) {
      auto const counts = fit_warm_up(warm_up_counts(S, g, microbatches), depths_, play);
      double const s = play(counts);
      if (!best.empty() && !(s < seconds * (1 - 1e-12))) continue;
      best = counts;
      seconds = s;
    }
    return best;
  }

  /// The layer of a stage that needs the most memory.
  [[nodiscard]] int largest(Assignment const& a, double slice) const {
    int found = a.first;
    double most = -1;
    for (int l = a.first; l < a.end; ++l) {
      double const bytes = work_->memory(l, l + 1, slice, false).bytes(1);
      if (bytes > most) found = l, most = bytes;
    }
    return found;
  }

  Workload const* work_;
  double lower_bound_s_;
  Simulator simulator_{};
  std::vector<StageTime> times_{};
  std::vector<int> depths_{};
  std::vector<StageMemory> memory_{};
  Shortage shortage_{};
};

/// The plan of a draft.
/// @throws Infeasible if the batch is too small, or a stage does not fit
/// @throws Error       bad_configuration for stages that leave out layers, or devices that are used
///                     twice or do not exist
[[nodiscard]] inline Plan evaluate(Workload const& workload, Draft const& draft) {
  require_draft(workload, draft);
  Evaluator evaluator(workload);
  auto plan = evaluator(draft, "given");
  if (!plan) throw infeasible(workload, evaluator.shortage());
  return *std::move(plan);
}

}  // namespace stagger::plan
