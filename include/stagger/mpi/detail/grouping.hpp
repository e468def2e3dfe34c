// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The choice of one grouping of gradients by processes that share a pipeline, from times
///         that they measure together.
/// @source S. Shi, X. Chu, B. Li, "MG-WFBP: Efficient Data Communication for Distributed
///         Synchronous SGD", INFOCOM 2019, section V: one worker measures and decides, the others
///         are told.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <vector>

#include <stagger/collective/line_fit.hpp>
#include <stagger/core/add_up.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/mpi/detail/ending.hpp>
#include <stagger/mpi/detail/exchange.hpp>
#include <stagger/mpi/detail/library_sums.hpp>
#include <stagger/mpi/detail/placement.hpp>

namespace stagger::mpi::detail {

/// A sum of the size of a group among some processes, computed as in a step: each adds up a slice
/// and sends it to the others. These processes call it together.
/// @param members  processes, in order
inline void sum_in_slices(Exchange& world, List<int> const& members, std::size_t size,
                          double seconds) {
  constexpr char const* measuring = "measure what sums of gradients take";
  std::size_t const each = (size + members.size() - 1) / members.size();
  std::size_t const bytes = each * sizeof(float);
  std::byte* const own = world.memory(2 * members.size() * bytes);
  std::byte* const received = own + members.size() * bytes;
  std::vector<Exchange::Message> messages;
  std::vector<float const*> more;
  std::size_t self = 0;
  while (members[self] != world.rank()) ++self;
  for (std::size_t m = 0; m < members.size(); ++m) {
    if (m == self) continue;
    messages.push_back({members[m], true, own + m * bytes, bytes});
    messages.push_back({members[m], false, received + m * bytes, bytes});
    more.push_back(reinterpret_cast<float const*>(received + m * bytes));
  }
  world.swap(messages, measuring, seconds);
  auto* const sum = reinterpret_cast<float*>(own + self * bytes);
  stagger::detail::add_up(sum, more.data(), more.size(), each);
  messages.clear();
  for (std::size_t m = 0; m < members.size(); ++m) {
    if (m == self) continue;
    messages.push_back({members[m], true, own + self * bytes, bytes});
    messages.push_back({members[m], false, own + m * bytes, bytes});
  }
  world.swap(messages, measuring, seconds);
}

/// The cost line of a sum among some processes, fitted to medians of five runs for each size, after
/// two warm-up runs.
/// @param sum         (size) adds up so many floats, together with the others
/// @param most_bytes  of the largest; at least 4 KiB, at most 4 MiB count
template <class Sum>
[[nodiscard]] collective::CostLine measured_line(std::uint64_t most_bytes, Sum sum) {
  constexpr std::size_t least = 1 << 10;
  auto const most = static_cast<std::size_t>(
      std::clamp<std::uint64_t>(most_bytes, 4 * least, std::uint64_t{4} << 20));
  std::vector<collective::Sample> samples;
  double all_s = 0;
  double all_bytes = 0;
  for (std::size_t bytes = least; bytes <= most; bytes *= 4) {
    std::vector<double> took_s;
    for (int i = -2; i < 5; ++i) {
      auto const start = std::chrono::steady_clock::now();
      sum(bytes / sizeof(float));
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

/// One process's part in the choice, outside of steps. All processes make the same calls.
struct GroupingAgreement {
  Exchange& world;
  LibrarySums& sums;
  stagger::detail::Machine& machine;
  Placement const& placement;

  /// See stagger::detail::GroupingPeers: the medians of the processes that measured, and the times
  /// of sums over the links between the processes.
  void share(double* backward_s, double* sum_s) {
    constexpr char const* telling = "tell each other what they have measured";
    auto const& groups = machine.program().groups;
    double const deadline_s = machine.options().deadline_s;
    for (std::size_t first = 0, end = 0; first < groups.size(); first = end) {
      int const stage = groups[first].stage;
      while (end < groups.size() && groups[end].stage == stage) ++end;
      auto const members = placement.holders(machine.program(), stage);
      if (members.size() < 2) continue;
      bool const here = std::find(members.begin(), members.end(), world.rank()) != members.end();
      collective::CostLine line;
      if (here)
        line = measured_line(extent(first).stage_bytes, [&](std::size_t size) {
          if (sums.uses(stage))
            sums.measure(stage, size, deadline_s);
          else
            sum_in_slices(world, members, size, deadline_s);
        });
      for (std::size_t g = first; g < end; ++g)
        if (!here || sum_s[g] > 0) sum_s[g] = line.seconds(extent(g).bytes);
    }
    world.maximum({backward_s, groups.size()}, telling, deadline_s);
    world.maximum({sum_s, groups.size()}, telling, deadline_s);
  }

  /// Process 0 chooses for all, since processes that chose independently might disagree.
  void choose(void (*ask)(stagger::detail::Machine&), List<GradientGroup>& groups) {
    constexpr char const* hearing = "hear how gradients are grouped";
    struct Answer {
      std::uint64_t count = 0;
      char refusal[240] = {};
    } answer;
    double const deadline_s = machine.options().deadline_s;
    std::exception_ptr failure;
    if (world.rank() == 0) {
      try {
        ask(machine);
        answer.count = groups.size();
      } catch (...) {
        failure = std::current_exception();
        report_of(failure).message.copy(answer.refusal, sizeof(answer.refusal) - 1);
      }
    }
    world.broadcast(std::as_writable_bytes(std::span(&answer, 1)), 0, hearing, deadline_s);
    if (failure) std::rethrow_exception(failure);
    if (answer.refusal[0] != 0)
      raise(Errc::peer_failed,
            "process 0 could not group the gradients: ", static_cast<char const*>(answer.refusal));
    groups.resize(answer.count);
    world.broadcast(std::as_writable_bytes(std::span(groups.data(), groups.size())), 0, hearing,
                    deadline_s);
  }

 private:
  [[nodiscard]] stagger::detail::GroupExtent extent(std::size_t group) const {
    Instruction in;
    in.stage = static_cast<std::uint16_t>(machine.program().groups[group].stage);
    in.group = static_cast<std::uint16_t>(group);
    return machine.extent(in);
  }
};

/// The functions that the machine of a back end with grouping_agreement() calls.
template <class Backend>
[[nodiscard]] stagger::detail::GroupingPeers grouping_peers(Backend& backend) {
  return {&backend,
          [](void* self, double* backward_s, double* sum_s) {
            static_cast<Backend*>(self)->grouping_agreement().share(backward_s, sum_s);
          },
          [](void* self, void (*ask)(stagger::detail::Machine&), List<GradientGroup>& groups) {
            static_cast<Backend*>(self)->grouping_agreement().choose(ask, groups);
          }};
}

}  // namespace stagger::mpi::detail
