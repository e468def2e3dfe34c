// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The numbers of the events of a program in the event table of a GPU.

#include <algorithm>
#include <cstddef>

#include <stagger/core/list.hpp>
#include <stagger/cuda/detail/routes.hpp>
#include <stagger/program/program.hpp>

namespace stagger::cuda::detail {

/// Numbers of the events of one iteration in flight. First come the events of signals, one for each
/// time that a signal is given, in the table of the GPU that waits. Then, in the table of every
/// GPU, come those of the slots of routes, of owners, of each stream that an iteration forks to and
/// joins, of the start, of each rank, of each group of gradients, and of the end.
class EventNumbers {
 public:
  /// @param gpu      [ranks] GPU of this process, or `gpus` for a rank of another process
  /// @param streams  of channels and groups
  [[gnu::cold]] void load(Program const& program, Routes const& routes,
                          List<std::size_t> const& gpu, std::size_t gpus, std::size_t streams) {
    List<std::size_t> used(gpus + 1);
    List<std::size_t> gives(program.signals.size());
    for (auto const& rank : program.ranks)
      for (auto const& in : rank.code)
        for (unsigned g = 0; g < in.signal_count; ++g) ++gives[in.signal[g]];
    gpu_.clear();
    first_.clear();
    for (std::size_t s = 0; s < gives.size(); ++s) {
      auto const route = routes.route_of(s);
      std::size_t const of = route != Routes::none ? gpu[routes.all()[route].receiver]
                                                   : gpu[program.signals[s].sender];
      gpu_.push_back(of);
      first_.push_back(used[of]);
      used[of] += gives[s];
    }
    slots_ = *std::max_element(used.begin(), used.end());
    owners_ = slots_ + routes.slots();
    fences_ = owners_ + routes.owners().size();
    ranks_ = fences_ + program.ranks.size() + streams + 1;
    groups_ = ranks_ + program.ranks.size();
    count_ = groups_ + program.groups.size() + 1;
  }

  /// The GPU whose table has the events of a signal; the number of GPUs if it is in another
  /// process.
  [[nodiscard]] std::size_t gpu(std::size_t signal) const noexcept { return gpu_[signal]; }
  [[nodiscard]] std::size_t signals() const noexcept { return gpu_.size(); }
  /// @param time  how often it was given before
  [[nodiscard]] std::size_t signal(std::size_t signal, std::size_t time) const noexcept {
    return first_[signal] + time;
  }
  [[nodiscard]] std::size_t slot(std::size_t number) const noexcept { return slots_ + number; }
  [[nodiscard]] std::size_t owner(std::size_t number) const noexcept { return owners_ + number; }
  [[nodiscard]] std::size_t first_fence() const noexcept { return fences_; }
  [[nodiscard]] std::size_t start() const noexcept { return ranks_ - 1; }
  [[nodiscard]] std::size_t rank(std::size_t rank) const noexcept { return ranks_ + rank; }
  [[nodiscard]] std::size_t group(std::size_t group) const noexcept { return groups_ + group; }
  [[nodiscard]] std::size_t end() const noexcept { return count_ - 1; }
  [[nodiscard]] std::size_t count() const noexcept { return count_; }

 private:
  List<std::size_t> gpu_;    // [signals]
  List<std::size_t> first_;  // [signals]
  std::size_t slots_ = 0;    // the first of each kind
  std::size_t owners_ = 0;
  std::size_t fences_ = 0;
  std::size_t ranks_ = 0;
  std::size_t groups_ = 0;
  std::size_t count_ = 0;
};

}  // namespace stagger::cuda::detail
