// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Which event of a GPU's table stands for what in a program.

#include <algorithm>
#include <cstddef>
#include <vector>

#include <stagger/nccl/detail/gpu_set.hpp>
#include <stagger/nccl/detail/routes.hpp>
#include <stagger/program/program.hpp>

namespace stagger::nccl::detail {

/// Numbers within a turn, an iteration in flight. In front those of signals, where the taker waits;
/// then, in every table alike: those of lanes and shares, at both ends; one for each stream that a
/// GPU's iteration forks to and joins, and its start; one for each rank; one for the sum of each
/// group of gradients; last, the end of the iteration.
class EventNumbers {
 public:
  /// @param gpu  [ranks] of this process; its number of GPUs: of another
  [[gnu::cold]] void load(Program const& program, Routes const& routes,
                          std::vector<std::size_t> const& gpu, GpuSet const& gpu_set) {
    std::vector<std::size_t> used(gpu_set.size() + 1);
    std::vector<std::size_t> gives(program.signals.size());
    for (auto const& rank : program.ranks)
      for (auto const& in : rank.code)
        for (unsigned g = 0; g < in.gives; ++g) ++gives[in.give[g]];
    gpu_.clear();
    first_.clear();
    for (std::size_t s = 0; s < gives.size(); ++s) {
      auto const lane = routes.lane_of(s);
      std::size_t const rank = lane != Routes::none
                                   ? routes.lanes()[lane].taker
                                   : static_cast<std::size_t>(program.signals[s].giver);
      gpu_.push_back(gpu[rank]);
      first_.push_back(used[gpu[rank]]);
      used[gpu[rank]] += gives[s];
    }
    routes_ = *std::max_element(used.begin(), used.end());
    fences_ = routes_ + routes.events();
    made_ = fences_ + program.ranks.size() + 2 * gpu_set.channels().size() + 1;
    for (auto const& team : gpu_set.teams) made_ += team.ends.size();
    groups_ = made_ + program.ranks.size();
    of_turn_ = groups_ + program.groups.size() + 1;
  }

  /// The GPU whose table has those of a signal; the number of GPUs: it is of another process.
  [[nodiscard]] std::size_t gpu(std::size_t signal) const noexcept { return gpu_[signal]; }
  [[nodiscard]] std::size_t signals() const noexcept { return gpu_.size(); }
  /// @param time  that it is given for, counted from 0
  [[nodiscard]] std::size_t signal(std::size_t signal, std::size_t time) const noexcept {
    return first_[signal] + time;
  }
  [[nodiscard]] std::size_t route(std::size_t event) const noexcept { return routes_ + event; }
  [[nodiscard]] std::size_t first_fence() const noexcept { return fences_; }
  [[nodiscard]] std::size_t start() const noexcept { return made_ - 1; }
  [[nodiscard]] std::size_t made(std::size_t rank) const noexcept { return made_ + rank; }
  [[nodiscard]] std::size_t sum(std::size_t group) const noexcept { return groups_ + group; }
  [[nodiscard]] std::size_t end() const noexcept { return of_turn_ - 1; }
  [[nodiscard]] std::size_t of_turn() const noexcept { return of_turn_; }

 private:
  std::vector<std::size_t> gpu_;    // [signals]
  std::vector<std::size_t> first_;  // [signals]
  std::size_t routes_ = 0;
  std::size_t fences_ = 0;
  std::size_t made_ = 0;
  std::size_t groups_ = 0;
  std::size_t of_turn_ = 0;
};

}  // namespace stagger::nccl::detail
