// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   How processes that share a pipeline measure for one grouping of gradients, and come to
///         one.
/// @source S. Shi, X. Chu, B. Li, "MG-WFBP: Efficient Data Communication for Distributed
///         Synchronous SGD", INFOCOM 2019, section V: one worker measures and decides, the others
///         are told.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <stagger/collective/decision.hpp>
#include <stagger/collective/line_fit.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/mpi/communicator.hpp>

namespace stagger::mpi::detail {

/// The line of an all-reduce among all ranks of a communicator, which call this together: medians
/// of five messages of each size, after two that warm up.
/// @param most_bytes  of the largest message; at least 4 KiB, at most 4 MiB count
/// @throws Error  as operations do
[[nodiscard]] inline collective::CostLine measured_line(Communicator& ranks,
                                                        std::uint64_t most_bytes, double seconds) {
  constexpr std::size_t least = 1 << 10;
  auto const most = static_cast<std::size_t>(
      std::clamp<std::uint64_t>(most_bytes, 4 * least, std::uint64_t{4} << 20));
  std::vector<float> message(most / sizeof(float));
  std::vector<collective::Sample> samples;
  double all_s = 0;
  double all_bytes = 0;
  for (std::size_t bytes = least; bytes <= most; bytes *= 4) {
    std::vector<double> took_s;
    for (int i = -2; i < 5; ++i) {
      auto const start = std::chrono::steady_clock::now();
      ranks.all_reduce(std::span(message).first(bytes / sizeof(float))).wait(seconds);
      std::chrono::duration<double> const took = std::chrono::steady_clock::now() - start;
      if (i >= 0) took_s.push_back(took.count());
    }
    std::sort(took_s.begin(), took_s.end());
    samples.push_back({bytes, took_s[took_s.size() / 2]});
    all_s += samples.back().seconds;
    all_bytes += static_cast<double>(bytes);
  }
  try {
    return collective::fit_line(samples).line;
  } catch (Error const&) {  // nothing but noise
    return {0, all_s / all_bytes};
  }
}

/// One process's part in it, outside of steps. All processes make the same calls.
struct GroupingMeeting {
  Communicator& world;
  stagger::detail::Machine& machine;
  std::vector<int> const& process_of;  // [ranks]

  /// See stagger::detail::GroupingPeers: medians of those that measured, and what sums take on the
  /// links between the processes.
  void share(double* backward_s, double* sum_s) {
    auto const& groups = machine.program().groups;
    double const deadline_s = machine.options().deadline_s;
    Stage const own = stage_here();
    Communicator part;
    world.split(own.crosses ? own.number : -1, world.rank(), part).wait(deadline_s);
    if (part.size() > 1) {
      auto const line = measured_line(part, own.bytes, deadline_s);
      for (std::size_t g = 0; g < groups.size(); ++g)
        if (sum_s[g] > 0 && crosses(groups[g].stage)) sum_s[g] = line.seconds(extent(g).bytes);
    }
    std::vector<double> all(backward_s, backward_s + groups.size());
    all.insert(all.end(), sum_s, sum_s + groups.size());
    world.all_reduce(std::span(all), collective::Reduction::max).wait(deadline_s);
    std::copy_n(all.begin(), groups.size(), backward_s);
    std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(groups.size()), groups.size(), sum_s);
  }

  /// Process 0 chooses.
  void choose(void (*ask)(stagger::detail::Machine&), List<GradientGroup>& groups) {
    collective::Decision<GradientGroup> decision;
    auto const& chosen = decision.decide(
        world,
        [&] {
          ask(machine);
          return std::vector<GradientGroup>(groups.begin(), groups.end());
        },
        machine.options().deadline_s);
    if (world.rank() != 0) groups.assign(chosen.data(), chosen.size());
  }

 private:
  struct Stage {
    int number = 0;
    bool crosses = false;  // from process to process
    std::uint64_t bytes = 0;
  };

  [[nodiscard]] stagger::detail::GroupExtent extent(std::size_t group) const {
    Instruction in;
    in.stage = static_cast<std::uint16_t>(machine.program().groups[group].stage);
    in.group = static_cast<std::uint16_t>(group);
    return machine.extent(in);
  }
  [[nodiscard]] int process(Cell const& cell) const {
    return process_of[static_cast<std::size_t>(cell.rank)];
  }
  [[nodiscard]] bool crosses(int stage) const {
    int first = -1;
    for (Cell const& cell : machine.program().cells) {
      if (cell.stage != stage) continue;
      if (first >= 0 && process(cell) != first) return true;
      first = process(cell);
    }
    return false;
  }
  /// The first stage that this process has in common with another. Its line holds for the others.
  [[nodiscard]] Stage stage_here() const {
    for (Cell const& cell : machine.program().cells) {
      if (process(cell) != world.rank() || !crosses(cell.stage)) continue;
      std::size_t group = 0;
      while (machine.program().groups[group].stage != cell.stage) ++group;
      return {cell.stage, true, extent(group).stage_bytes};
    }
    return {};
  }
};

/// What the machine of a back end calls, which has a meeting().
template <class Backend>
[[nodiscard]] stagger::detail::GroupingPeers grouping_peers(Backend& backend) {
  return {&backend,
          [](void* self, double* backward_s, double* sum_s) {
            static_cast<Backend*>(self)->meeting().share(backward_s, sum_s);
          },
          [](void* self, void (*ask)(stagger::detail::Machine&), List<GradientGroup>& groups) {
            static_cast<Backend*>(self)->meeting().choose(ask, groups);
          }};
}

}  // namespace stagger::mpi::detail
