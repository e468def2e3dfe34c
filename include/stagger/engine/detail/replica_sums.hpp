// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Gradients of replicated stages, added up while the last backward still runs.
/// @source S. Shi, X. Chu, B. Li, "MG-WFBP: Efficient Data Communication for Distributed
///         Synchronous SGD", INFOCOM 2019, algorithm 2; here a rank of the program takes the place
///         of its communication thread, and each holder of a stage adds up a part of every layer.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include <stagger/collective/grouping/layerwise.hpp>
#include <stagger/collective/grouping/optimal.hpp>
#include <stagger/collective/grouping/single.hpp>
#include <stagger/collective/line_fit.hpp>
#include <stagger/core/list.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/engine/replica_run.hpp>

namespace stagger::detail {

struct ReplicaSums {
  /// Shares out what ends a step: each holder of a stage updates its part of every layer, and adds
  /// up the squares of as many whole parameters as are its share of the bytes.
  [[gnu::cold]] static void load(Machine& machine) {
    if (machine.run.program->groups.empty()) return;
    auto const& cells = machine.run.program->cells;
    for (auto& end_of_step : machine.run.end_of_step) {
      end_of_step.add.clear();
      end_of_step.squares.clear();
      end_of_step.layers.clear();
    }
    for (std::size_t first = 0, end = 0; first < cells.size(); first = end) {
      int const stage = cells[first].stage;
      while (end < cells.size() && cells[end].stage == stage) ++end;
      std::size_t const holders = end - first;
      auto const end_of_step = [&](std::size_t holder) -> EndOfStep& {
        return machine.run.end_of_step[static_cast<std::size_t>(cells[first + holder].rank)];
      };
      std::size_t const begin = machine.model.first_layer[static_cast<std::size_t>(stage)];
      std::size_t const stop = machine.model.first_layer[static_cast<std::size_t>(stage) + 1];
      std::size_t total = 1;
      std::size_t before = 0;
      for (bool const measure : {true, false})
        for (std::size_t l = begin; l < stop; ++l) {
          auto const& parameters = machine.model.parameters[l];
          for (std::size_t p = 0; p < parameters.count(); ++p) {
            std::size_t const bytes = parameters.value_bytes(p);
            if (measure)
              total += bytes;
            else if (machine.model.shards)
              for (std::size_t holder = 0; holder < holders; ++holder) {
                ByteRange const part = parameters.part(holder, holders);
                if (parameters.overlaps(p, part))
                  end_of_step(holder).squares.push_back({l, p, part});
              }
            else
              end_of_step((before + bytes / 2) * holders / total).squares.push_back({l, p});
            if (!measure) before += bytes;
          }
          for (std::size_t holder = 0; measure && holder < holders; ++holder)
            end_of_step(holder).layers.push_back({l, parameters.part(holder, holders)});
        }
    }
  }

  static ReplicaRun& run_of(Machine& machine) {
    if (machine.run.replica_run == nullptr) machine.run.replica_run = new ReplicaRun();
    return *machine.run.replica_run;
  }

  [[gnu::cold]] static GroupExtent extent(Machine const& machine, Instruction const& in) {
    GradientGroup const& group = machine.run.program->groups[in.group];
    GroupExtent extent;
    extent.first_layer = machine.model.first_layer[in.stage];
    extent.layers = machine.model.first_layer[in.stage + 1U] - extent.first_layer;
    extent.lowest = static_cast<std::size_t>(group.lowest);
    extent.end = std::min(static_cast<std::size_t>(group.highest) + 1, extent.layers);
    for (std::size_t i = 0; i < extent.layers; ++i) {
      std::uint64_t const bytes = gradient_bytes(machine, extent.first_layer + i);
      extent.stage_bytes += bytes;
      if (i >= extent.lowest && i < extent.end) extent.bytes += bytes;
    }
    return extent;
  }

  static std::uint64_t gradient_bytes(Machine const& machine, std::size_t layer) {
    std::uint64_t bytes = 0;
    for (std::size_t p = 0; p < machine.model.parameters[layer].count(); ++p)
      bytes += machine.model.parameters[layer].value_bytes(p);
    return bytes;
  }

  static void execute(Machine& machine, RankState& rank, Instruction const& in, Clock clock) {
    GradientGroup const& group = machine.run.program->groups[in.group];
    auto const lowest = static_cast<std::size_t>(group.lowest);
    std::size_t const first = machine.model.first_layer[in.stage];
    std::size_t const layers = machine.model.first_layer[in.stage + 1U] - first;
    std::size_t const end = std::min(static_cast<std::size_t>(group.highest) + 1, layers);
    double const start_s = clock();
    if (in.op != Op::reduce) run_backward_part(rank, machine.run.cells[in.cell], in, lowest, end);
    for (std::size_t i = end; in.op == Op::reduce && i-- > lowest;) {
      auto& sum = machine.model.parameters[first + i];
      ByteRange const own = sum.part(in.part(), in.parts());
      auto const* holder = &machine.run.storage[in.stage];
      std::array<GradientShare const*, LayerParameters::most_shares> shares;
      for (unsigned h = 1; h < in.parts();) {
        std::size_t count = 0;
        for (; h < in.parts() && count < shares.size(); ++h) {
          holder = holder->next.get();
          shares[count++] = &holder->shares[i];
        }
        sum.add({shares.data(), count}, own);
      }
    }
    if (clock.read != nullptr) note(machine, rank, in, start_s, clock());
  }

  static bool measures(ReplicaRun const& run) {
    return run.sums.phase != SumRun::Phase::decided && !run.sums.groups.empty();
  }

  /// When a part of a last backward, or a sum, was at work: for the decision, and the timeline.
  static void note(Machine& machine, RankState& rank, Instruction const& in, double start_s,
                   double end_s) {
    GradientGroup const& group = machine.run.program->groups[in.group];
    std::size_t const layers =
        machine.model.first_layer[in.stage + 1U] - machine.model.first_layer[in.stage];
    bool const whole = static_cast<std::size_t>(group.highest) + 1 >= layers;
    SumRun& sums = machine.run.replica_run->sums;
    auto const& cells = machine.run.program->cells;
    bool const first_holder = in.cell == 0 || cells[in.cell - 1U].stage != cells[in.cell].stage;
    if (sums.taking && sums.steps >= 0 && first_holder) {
      std::size_t const at = static_cast<std::size_t>(sums.steps) * sums.groups.size() + in.group;
      (in.op == Op::reduce ? sums.sum_s : sums.backward_s)[at] = end_s - start_s;
    }
    if (!rank.record) return;
    schedule::Span span;
    span.start_s = start_s;
    span.end_s = end_s;
    span.action = action_of(in);
    if (in.op == Op::reduce || whole)
      rank.spans.push_back(span);
    else
      rank.spans.back().end_s = span.end_s;  // one backward, however many parts it has
    if (in.op != Op::reduce && group.lowest == 0) --rank.in_flight;
  }

  // --- grouping: first by single layers, to measure them; then as the policy says

  template <class Policy> static GroupingChoice choice_of() {
    GroupingChoice choice;
    choice.groups = [](void const*, collective::Backward const& backward,
                       collective::CostLine line) { return Policy{}.groups(backward, line); };
    return choice;
  }

  [[gnu::cold]] static List<GradientGroup> const* current_groups(Machine& machine) {
    SumRun& sums = run_of(machine).sums;
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
    sums.steps = -1;
    auto const steps = static_cast<std::size_t>(machine.run.grouping.measured_steps);
    sums.backward_s.assign(steps * sums.groups.size(), 0.0);
    sums.sum_s.assign(steps * sums.groups.size(), 0.0);
  }

  static void begin_step(Machine& machine) {
    SumRun& sums = machine.run.replica_run->sums;
    sums.taking = sums.phase != SumRun::Phase::decided && machine.run.program->training &&
                  !sums.groups.empty() && machine.run.program->groups == sums.groups;
  }

  /// Decides once enough steps were measured, and measures anew when the decision is old enough.
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
    if (!sums.taking || ++sums.steps != grouping.measured_steps) return;
    bool const several = take(machine);
    if (sums.phase == SumRun::Phase::layers && !several)
      measure(machine, SumRun::Phase::whole, choice_of<collective::grouping::Single>());
    else if (machine.run.grouping_peers.choose != nullptr)
      decide(machine, machine.run.grouping_peers);
    else
      decide(machine);
  }

  /// Keeps medians of what was measured.
  /// @return whether sums of several sizes are among them, or none
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
      GradientGroup const& group = sums.groups[g];
      std::size_t const first = machine.model.first_layer[static_cast<std::size_t>(group.stage)];
      std::size_t const lowest = first + static_cast<std::size_t>(group.lowest);
      if (layers) sums.layer_s[lowest] = backward_s[g];
      std::uint64_t bytes = 0;
      for (std::size_t l = lowest; l <= first + static_cast<std::size_t>(group.highest); ++l)
        bytes += gradient_bytes(machine, l);
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

  /// The line through what sums took; through the origin where they say nothing about a start-up.
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
    } catch (Error const&) {  // all of one size, or so small that they are noise
      return {0, seconds / bytes};
    }
  }

  [[gnu::cold]] static void regroup(Machine& machine, GroupingChoice const& choice,
                                    collective::CostLine line) {
    auto const& layer_s = machine.run.replica_run->sums.layer_s;  // none before they were measured
    List<GradientGroup> groups;
    for (int s = 0; s < machine.stages(); ++s) {
      std::size_t const first = machine.model.first_layer[static_cast<std::size_t>(s)];
      std::size_t const layers = machine.model.first_layer[static_cast<std::size_t>(s) + 1] - first;
      List<double> backward_s(layers, 0.0);
      List<std::uint64_t> bytes(layers);
      for (std::size_t i = 0; i < layers; ++i) {
        if (!layer_s.empty()) backward_s[i] = layer_s[first + i];
        bytes[i] = gradient_bytes(machine, first + i);
      }
      collective::Backward const backward{0, {backward_s.data(), layers}, {bytes.data(), layers}};
      auto const chosen = choice.groups(choice.policy, backward, line);
      // Refuses what is no grouping.
      static_cast<void>(collective::evaluate(backward, chosen, line));
      for (auto const& group : chosen) groups.push_back({s, group.lowest - 1, group.highest - 1});
    }
    machine.run.replica_run->sums.groups = std::move(groups);
  }
};

}  // namespace stagger::detail
