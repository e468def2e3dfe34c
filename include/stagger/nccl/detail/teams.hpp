// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The GPUs that hold one stage: a communicator of their own, on which they add up its
/// gradients.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <stagger/nccl/detail/gpu_set.hpp>

namespace stagger::nccl::detail {

/// Makes those teams that are not there yet, together with all other processes, and the connections
/// behind them, so that the first sum allocates nothing.
/// @param wanted    places of each, in the order in which they are added up
/// @param connects  each end with each other, for more than sums
/// @return for each, its number among the teams
[[gnu::cold]] inline std::vector<std::size_t> gather(GpuSet& gpu_set,
                                                     std::span<std::vector<int> const> wanted,
                                                     bool connects, double meet_s) {
  std::vector<std::size_t> numbers;
  std::vector<Operation> operations;
  for (auto const& places : wanted) {
    std::size_t number = 0;
    while (number < gpu_set.teams.size() && gpu_set.teams[number].places != places) ++number;
    numbers.push_back(number);
    if (number != gpu_set.teams.size()) continue;
    Team& team = gpu_set.teams.emplace_back();
    team.places = places;
    operations.clear();
    for (std::size_t g = 0; g < gpu_set.size(); ++g) {
      gpu_set.select(g);
      auto const at = std::find(places.begin(), places.end(), gpu_set[g].place);
      if (at == places.end()) {
        Communicator none;
        operations.push_back(gpu_set[g].world.split(-1, 0, none));
        continue;
      }
      auto& end = *team.ends.emplace_back(std::make_unique<TeamEnd>(g));
      operations.push_back(
          gpu_set[g].world.split(0, static_cast<int>(at - places.begin()), end.all, end.stream));
    }
    wait_for_all(operations, meet_s);
    operations.clear();
    for (auto& end : team.ends) {
      gpu_set.select(end->gpu);
      end->warm.resize({1});
      cuda::check(cudaMemsetAsync(end->warm.data(), 0, sizeof(float), end->stream.get()),
                  "clear a number");
      operations.push_back(end->last =
                               end->all.all_reduce(std::span(end->warm.data(), 1), Reduction::sum));
    }
    wait_for_all(operations, meet_s);
    if (!connects || places.size() < 3) continue;
    operations.clear();
    for (auto& end : team.ends) {
      std::vector<int> peers;
      for (int r = 0; r < end->all.size(); ++r)
        if (r != end->all.rank()) peers.push_back(r);
      operations.push_back(end->last = end->all.connect(peers));
    }
    wait_for_all(operations, meet_s);
  }
  return numbers;
}

}  // namespace stagger::nccl::detail
