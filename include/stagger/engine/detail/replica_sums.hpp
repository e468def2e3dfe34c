// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The all-reduce of gradients of replicated stages while the last backward still runs, and the
///         choice of gradient groups.
/// @source S. Shi, X. Chu, B. Li, "MG-WFBP: Efficient Data Communication for Distributed
///         Synchronous SGD", INFOCOM 2019, algorithm 2; here a rank of the program takes the place
///         of its communication thread, and each holder of a stage adds up a part of every layer.

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <stagger/collective/grouping/layerwise.hpp>
#include <stagger/collective/grouping/optimal.hpp>
#include <stagger/collective/grouping/single.hpp>
#include <stagger/collective/line_fit.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/list.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/engine/replica_ops.hpp>

namespace stagger::detail {

struct ReplicaSums {
  /// Divides the work at the end of a step: each holder of a stage updates its part of every layer,
  /// and adds up the squares of whole parameters, in proportion to its share of the bytes.
  [[gnu::cold]] static void load(Machine& machine) {
    if (machine.run.program->groups.empty()) return;
    for (auto& end_of_step : machine.run.end_of_step) {
      end_of_step.add.clear();
      end_of_step.squares.clear();
      end_of_step.layers.clear();
    }
    each_stage(*machine.run.program, [&](int stage, IndexRange cells) {
      if (machine.run.program->cells[cells.first].alone) return;  // `apply` updates it
      std::size_t const holders = cells.size();
      auto const end_of_step = [&](std::size_t holder) -> EndOfStep& {
        return machine.run.end_of_step[machine.run.program->cells[cells.first + holder].rank];
      };
      IndexRange const layers = machine.model.layers_of(stage);
      std::size_t total = 1;
      for (std::size_t const l : layers) total += gradient_bytes(machine, l);
      std::size_t before = 0;
      for (std::size_t const l : layers) {
        auto const& parameters = machine.model.parameters[l];
        for (std::size_t holder = 0; holder < holders; ++holder)
          end_of_step(holder).layers.push_back({l, parameters.part(holder, holders)});
        for (std::size_t p = 0; p < parameters.count(); ++p) {
          if (!machine.model.counted(l)) break;
          std::size_t const bytes = parameters.value_bytes(p);
          for (std::size_t holder = 0; machine.model.shards && holder < holders; ++holder) {
            ByteRange const part = parameters.part(holder, holders);
            if (parameters.overlaps(p, part)) end_of_step(holder).squares.push_back({l, p, part});
          }
          if (!machine.model.shards)
            end_of_step((before + bytes / 2) * holders / total).squares.push_back({l, p});
          before += bytes;
        }
      }
    });
  }

  static ReplicaRun& run_of(Machine& machine) {
    if (machine.run.replica_run == nullptr) machine.run.replica_run = new ReplicaRun();
    return *machine.run.replica_run;
  }

  [[gnu::cold]] static GroupExtent extent(Machine const& machine, Instruction const& in) {
    GradientGroup const& group = machine.run.program->groups[in.group];
    GroupExtent extent;
    IndexRange const stage = machine.model.layers_of(in.stage);
    IndexRange const layers = machine.model.layers_of(group);
    extent.first_layer = stage.first;
    extent.layers = stage.size();
    extent.lowest = layers.first - stage.first;
    extent.end = layers.last - stage.first;
    for (std::size_t const l : stage) extent.stage_bytes += gradient_bytes(machine, l);
    for (std::size_t const l : layers) extent.bytes += gradient_bytes(machine, l);
    return extent;
  }

  static std::uint64_t gradient_bytes(Machine const& machine, std::size_t layer) {
    std::uint64_t bytes = 0;
    for (std::size_t p = 0; p < machine.model.parameters[layer].count(); ++p)
      bytes += machine.model.parameters[layer].value_bytes(p);
    return bytes;
  }

  /// Carries out a part of a last backward, or a sum of gradients.
  static void add_up(Machine& machine, RankState& rank, Instruction const& in, Clock clock) {
    IndexRange const layers = machine.model.layers_of(machine.run.program->groups[in.group]);
    std::size_t const first = machine.model.layers_of(in.stage).first;
    double const start_s = clock();
    if (computes_part(in.op))
      run_backward_part(rank, machine.run.cells[in.cell], in, layers.first - first,
                        layers.last - first);
    if (computes_part(in.op) && machine.traffic.uneven()) machine.traffic.made(rank, in);
    for (std::size_t l = layers.last; reduces(in.op) && l-- > layers.first;)
      add_up(machine.model.parameters[l], machine.run.storage[in.stage], l - first, in);
    if (clock.read != nullptr) note(machine, rank, in, start_s, clock());
  }

  /// Adds up a part of layer `i` of a stage, in the order of owners. If an owner's gradients lie
  /// where the sum will be, those before it are added up where the first one's are, and then to it:
  /// a + b has the bits of b + a.
  static void add_up(LayerParameters& sum, CellStorage const& stage, std::size_t i,
                     Instruction const& in) {
    ByteRange const part = sum.part(in.part(), in.parts());
    auto const lies_there = [](GradientCopy const& copy) {
      return copy.kept().of == KeptGradients::Of::first;
    };
    GradientCopy const* to = nullptr;
    for (auto const* owner = stage.next.get(); owner != nullptr; owner = owner->next.get())
      if (lies_there(owner->copies[i])) to = &owner->copies[i];
    std::array<GradientCopy const*, LayerParameters::most_copies> copies;
    std::size_t count = 0;
    auto const add = [&] { sum.add({copies.data(), std::exchange(count, 0)}, part, to); };
    auto const* owner = &stage;
    for (unsigned o = 1; o < in.parts(); ++o) {
      owner = owner->next.get();
      GradientCopy const& copy = owner->copies[i];
      if (lies_there(copy)) {
        add();
        to = nullptr;
      }
      if (count == copies.size()) add();
      copies[count++] = &copy;
    }
    add();
  }

  /// Records when a part of a last backward, or a sum, ran, for the choice of groups and the
  /// timeline.
  static void note(Machine& machine, RankState& rank, Instruction const& in, double start_s,
                   double end_s) {
    GradientGroup const& group = machine.run.program->groups[in.group];
    bool const whole =
        machine.model.layers_of(group).last == machine.model.layers_of(in.stage).last;
    SumRun& sums = machine.run.replica_run->sums;
    bool const first = is_first_holder(machine.run.program->cells, in.cell);
    if (sums.taking && sums.warmed_up && first) {
      std::size_t const at = sums.steps * sums.groups.size() + in.group;
      (reduces(in.op) ? sums.sum_s : sums.backward_s)[at] = end_s - start_s;
    }
    if (!rank.record) return;
    schedule::Span span;
    span.start_s = start_s;
    span.end_s = end_s;
    span.action = action_of(in);
    if (reduces(in.op) || whole || !(rank.spans.back().action == span.action))
      rank.spans.push_back(span);
    else
      rank.spans.back().end_s =
          span.end_s;  // parts of a backward with nothing between count as one
    if (computes_part(in.op) && group.lowest == 0 && rank.cells[in.cell].opens) --rank.in_flight;
  }
};

/// The choice of gradient groups: single layers at first, to measure them, then those of the policy.
struct GroupingDecision {
  static bool measures(ReplicaRun const& run) {
    return run.sums.phase != SumRun::Phase::decided && !run.sums.groups.empty();
  }

  template <class Policy> static GroupingChoice choice_of() {
    GroupingChoice choice;
    choice.groups = [](void const*, collective::Backward const& backward,
                       collective::CostLine line) { return Policy{}.groups(backward, line); };
    return choice;
  }

  [[gnu::cold]] static List<GradientGroup> const* current_groups(Machine& machine) {
    SumRun& sums = ReplicaSums::run_of(machine).sums;
    if (sums.groups.empty() && machine.run.grouping.measured_steps > 0)
      measure_layers(machine);
    else if (sums.groups.empty())
      decide(machine);
    return &sums.groups;
  }

  [[gnu::cold]] static void measure_layers(Machine& machine) {
    SumRun& sums = machine.run.replica_run->sums;
    sums.sample_bytes.clear();
    sums.sample_s.clear();
    measure(machine, SumRun::Phase::layers, choice_of<collective::grouping::Layerwise>());
  }

  [[gnu::cold]] static void measure(Machine& machine, SumRun::Phase phase,
                                    GroupingChoice const& choice) {
    SumRun& sums = machine.run.replica_run->sums;
    regroup(machine, choice, {});
    sums.phase = phase;
    sums.warmed_up = false;
    sums.steps = 0;
    auto const steps = static_cast<std::size_t>(machine.run.grouping.measured_steps);
    sums.backward_s.assign(steps * sums.groups.size(), 0.0);
    sums.sum_s.assign(steps * sums.groups.size(), 0.0);
  }

  static void begin_step(Machine& machine) {
    SumRun& sums = machine.run.replica_run->sums;
    sums.taking = sums.phase != SumRun::Phase::decided && machine.run.program->training &&
                  !sums.groups.empty() && machine.run.program->groups == sums.groups;
  }

  /// Decides once enough steps were measured, and measures again when the decision is old enough.
  [[gnu::cold]] static void end_step(Machine& machine) {
    SumRun& sums = machine.run.replica_run->sums;
    GroupingChoice const& grouping = machine.run.grouping;
    if (sums.phase == SumRun::Phase::decided) {
      if (grouping.renew_every > 0 && grouping.measured_steps > 0 &&
          machine.run.program->training &&
          machine.model.steps - sums.decided_at >= grouping.renew_every)
        measure_layers(machine);
      return;
    }
    if (!sums.taking) return;
    if (std::exchange(sums.warmed_up, true)) ++sums.steps;
    if (static_cast<int>(sums.steps) != grouping.measured_steps) return;
    bool const several = take(machine);
    if (sums.phase == SumRun::Phase::layers && !several)
      measure(machine, SumRun::Phase::whole, choice_of<collective::grouping::Single>());
    else if (machine.run.grouping_peers.choose != nullptr)
      decide(machine, machine.run.grouping_peers);
    else
      decide(machine);
  }

  /// Keeps the medians of the measured times.
  /// @return whether sums of several sizes were measured, or none at all
  [[gnu::cold]] static bool take(Machine& machine) {
    SumRun& sums = machine.run.replica_run->sums;
    bool const layers = sums.phase == SumRun::Phase::layers;
    List<double> backward_s;  // [groups] medians
    List<double> sum_s;
    for (std::size_t g = 0; g < sums.groups.size(); ++g) {
      backward_s.push_back(median(sums, sums.backward_s, g));
      sum_s.push_back(median(sums, sums.sum_s, g));
    }
    GroupingPeers const& peers = machine.run.grouping_peers;
    if (peers.share != nullptr) peers.share(peers.self, backward_s.data(), sum_s.data());
    if (layers) sums.layer_s.assign(machine.model.layers.size(), 0.0);
    for (std::size_t g = 0; g < sums.groups.size(); ++g) {
      IndexRange const of = machine.model.layers_of(sums.groups[g]);
      if (layers) sums.layer_s[of.first] = backward_s[g];
      std::uint64_t bytes = 0;
      for (std::size_t const l : of) bytes += ReplicaSums::gradient_bytes(machine, l);
      double const seconds = sum_s[g];
      if (bytes == 0 || !(seconds > 0)) continue;
      sums.sample_bytes.push_back(static_cast<double>(bytes));
      sums.sample_s.push_back(seconds);
    }
    for (double const bytes : sums.sample_bytes)
      if (bytes != sums.sample_bytes.front()) return true;
    return sums.sample_bytes.empty();
  }

  [[gnu::cold]] static void decide(Machine& machine, GroupingPeers const& peers = {}) {
    SumRun& sums = machine.run.replica_run->sums;
    sums.phase = SumRun::Phase::decided;
    sums.taking = false;
    sums.decided_at = machine.model.steps;
    if (peers.choose != nullptr)
      peers.choose(peers.self, &choose, sums.groups);
    else
      choose(machine);
  }

  [[gnu::cold]] static void choose(Machine& machine) {
    regroup(machine,
            machine.run.grouping.groups != nullptr ? machine.run.grouping
                                                   : choice_of<collective::grouping::Optimal>(),
            fitted(machine.run.replica_run->sums));
  }

  static double median(SumRun const& sums, List<double> const& times, std::size_t group) {
    List<double> rising;
    for (std::size_t at = group; at < times.size(); at += sums.groups.size()) {
      rising.push_back(times[at]);
      for (std::size_t i = rising.size() - 1; i > 0 && rising[i] < rising[i - 1]; --i)
        std::swap(rising[i], rising[i - 1]);
    }
    return rising[rising.size() / 2];
  }

  /// The line fitted to the times of sums; through the origin if they do not determine a start-up.
  static collective::CostLine fitted(SumRun const& sums) {
    double seconds = 0;
    double bytes = 0;
    List<collective::Sample> samples;
    for (std::size_t i = 0; i < sums.sample_s.size(); ++i) {
      seconds += sums.sample_s[i];
      bytes += sums.sample_bytes[i];
      samples.push_back({static_cast<std::uint64_t>(sums.sample_bytes[i]), sums.sample_s[i]});
    }
    if (samples.empty()) return {};
    try {
      return collective::fit_line({samples.data(), samples.size()}).line;
    } catch (Error const&) {  // all of one size, or too short to measure
      return {0, seconds / bytes};
    }
  }

  [[gnu::cold]] static void regroup(Machine& machine, GroupingChoice const& choice,
                                    collective::CostLine line) {
    auto const& layer_s = machine.run.replica_run->sums.layer_s;  // empty until measured
    List<GradientGroup> groups;
    for (int s = 0; s < machine.stages(); ++s) {
      List<double> backward_s;
      List<std::uint64_t> bytes;
      for (std::size_t const l : machine.model.layers_of(s)) {
        backward_s.push_back(layer_s.empty() ? 0 : layer_s[l]);
        bytes.push_back(ReplicaSums::gradient_bytes(machine, l));
      }
      collective::Backward const backward{
          0, {backward_s.data(), backward_s.size()}, {bytes.data(), bytes.size()}};
      auto const chosen = choice.groups(choice.policy, backward, line);
      // Refuses groups that do not list every layer once.
      static_cast<void>(collective::evaluate(backward, chosen, line));
      for (auto const& group : chosen) groups.push_back({s, group.lowest - 1, group.highest - 1});
    }
    machine.run.replica_run->sums.groups = std::move(groups);
  }
};

}  // namespace stagger::detail
