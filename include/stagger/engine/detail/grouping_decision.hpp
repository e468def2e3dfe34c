// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The choice of gradient groups, from measured times.

#include <cstddef>
#include <cstdint>
#include <utility>

#include <stagger/collective/grouping/layerwise.hpp>
#include <stagger/collective/grouping/optimal.hpp>
#include <stagger/collective/grouping/single.hpp>
#include <stagger/collective/line_fit.hpp>
#include <stagger/core/algorithm.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/list.hpp>
#include <stagger/engine/detail/gradient_group_part.hpp>
#include <stagger/engine/machine.hpp>

namespace stagger::detail {

/// The choice of gradient groups: single layers at first, to measure them, then those of the
/// policy.
struct GroupingDecision {
  template <class Policy> static GroupingChoice choice_of() {
    GroupingChoice choice;
    choice.groups = [](void const*, collective::Backward const& backward,
                       collective::CostLine line) { return Policy{}.groups(backward, line); };
    return choice;
  }

  [[gnu::cold]] static List<GradientGroup> const* current_groups(Machine& machine) {
    GroupingRun& run = machine.run.grouping_run;
    if (run.groups.empty() && machine.run.grouping.measured_steps > 0)
      measure_layers(machine);
    else if (run.groups.empty())
      decide(machine);
    return &run.groups;
  }

  [[gnu::cold]] static void measure_layers(Machine& machine) {
    GroupingRun& run = machine.run.grouping_run;
    run.sample_bytes.clear();
    run.sample_s.clear();
    measure(machine, GroupingRun::Phase::layers, choice_of<collective::grouping::Layerwise>());
  }

  [[gnu::cold]] static void measure(Machine& machine, GroupingRun::Phase phase,
                                    GroupingChoice const& choice) {
    GroupingRun& run = machine.run.grouping_run;
    regroup(machine, choice, {});
    run.phase = phase;
    run.warmed_up = false;
    run.steps = 0;
    auto const steps = static_cast<std::size_t>(machine.run.grouping.measured_steps);
    run.backward_s.assign(steps * run.groups.size(), 0.0);
    run.sum_s.assign(steps * run.groups.size(), 0.0);
  }

  static void begin_step(Machine& machine) {
    GroupingRun& run = machine.run.grouping_run;
    run.taking = run.phase != GroupingRun::Phase::decided && machine.run.program->training &&
                 !run.groups.empty() && machine.run.program->groups == run.groups;
  }

  /// Decides once enough steps were measured, and measures again when the decision is old enough.
  [[gnu::cold]] static void end_step(Machine& machine) {
    GroupingRun& run = machine.run.grouping_run;
    GroupingChoice const& grouping = machine.run.grouping;
    if (run.phase == GroupingRun::Phase::decided) {
      if (grouping.renew_every > 0 && grouping.measured_steps > 0 &&
          machine.run.program->training &&
          machine.model.steps - run.decided_at >= grouping.renew_every)
        measure_layers(machine);
      return;
    }
    if (!run.taking) return;
    if (std::exchange(run.warmed_up, true)) ++run.steps;
    if (static_cast<int>(run.steps) != grouping.measured_steps) return;
    bool const several = take(machine);
    if (run.phase == GroupingRun::Phase::layers && !several)
      measure(machine, GroupingRun::Phase::whole, choice_of<collective::grouping::Single>());
    else
      decide(machine, machine.run.grouping_peers);
  }

  /// Keeps the medians of the measured times.
  /// @return whether sums of several sizes were measured, or none at all
  [[gnu::cold]] static bool take(Machine& machine) {
    GroupingRun& run = machine.run.grouping_run;
    bool const layers = run.phase == GroupingRun::Phase::layers;
    List<double> backward_s;  // [groups] medians
    List<double> sum_s;
    for (std::size_t g = 0; g < run.groups.size(); ++g) {
      backward_s.push_back(median(run, run.backward_s, g));
      sum_s.push_back(median(run, run.sum_s, g));
    }
    GroupingPeers const& peers = machine.run.grouping_peers;
    if (peers.share != nullptr) peers.share(peers.self, backward_s.data(), sum_s.data());
    if (layers) run.layer_s.assign(machine.model.layers.size(), 0.0);
    for (std::size_t g = 0; g < run.groups.size(); ++g) {
      IndexRange const of = machine.model.layers_of(run.groups[g]);
      if (layers) run.layer_s[of.first] = backward_s[g];
      std::uint64_t const bytes = machine.model.bytes_of(of);
      double const seconds = sum_s[g];
      if (bytes == 0 || !(seconds > 0)) continue;
      run.sample_bytes.push_back(static_cast<double>(bytes));
      run.sample_s.push_back(seconds);
    }
    for (double const bytes : run.sample_bytes)
      if (bytes != run.sample_bytes.front()) return true;
    return run.sample_bytes.empty();
  }

  [[gnu::cold]] static void decide(Machine& machine, GroupingPeers const& peers = {}) {
    GroupingRun& run = machine.run.grouping_run;
    run.phase = GroupingRun::Phase::decided;
    run.taking = false;
    run.decided_at = machine.model.steps;
    if (peers.choose != nullptr)
      peers.choose(peers.self, &choose, run.groups);
    else
      choose(machine);
  }

  [[gnu::cold]] static void choose(Machine& machine) {
    regroup(machine,
            machine.run.grouping.groups != nullptr ? machine.run.grouping
                                                   : choice_of<collective::grouping::Optimal>(),
            fitted(machine.run.grouping_run));
  }

  static double median(GroupingRun const& run, List<double> const& times, std::size_t group) {
    List<double> own;
    for (std::size_t at = group; at < times.size(); at += run.groups.size())
      own.push_back(times[at]);
    std::sort(own.begin(), own.end());
    return own[own.size() / 2];
  }

  /// The line fitted to the times of sums.
  static collective::CostLine fitted(GroupingRun const& run) {
    List<collective::Sample> samples;
    for (std::size_t i = 0; i < run.sample_s.size(); ++i)
      samples.push_back({static_cast<std::uint64_t>(run.sample_bytes[i]), run.sample_s[i]});
    if (samples.empty()) return {};
    return collective::line_through({samples.data(), samples.size()});
  }

  [[gnu::cold]] static void regroup(Machine& machine, GroupingChoice const& choice,
                                    collective::CostLine line) {
    auto const& layer_s = machine.run.grouping_run.layer_s;  // empty until measured
    List<GradientGroup> groups;
    for (int s = 0; s < machine.stages(); ++s) {
      List<double> backward_s;
      List<std::uint64_t> bytes;
      for (std::size_t const l : machine.model.layers_of(s)) {
        backward_s.push_back(layer_s.empty() ? 0 : layer_s[l]);
        bytes.push_back(machine.model.parameters[l].sent_bytes());
      }
      collective::Backward const backward{
          0, {backward_s.data(), backward_s.size()}, {bytes.data(), bytes.size()}};
      auto const chosen = choice.groups(choice.policy.get(), backward, line);
      // Refuses groups that do not list every layer once.
      static_cast<void>(collective::evaluate(backward, chosen, line));
      for (auto const& group : chosen) groups.push_back({s, group.lowest - 1, group.highest - 1});
    }
    machine.run.grouping_run.groups = std::move(groups);
  }
};

}  // namespace stagger::detail
