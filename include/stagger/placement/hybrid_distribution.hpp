// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Virtual workers of two kinds of devices each, matched to be nearly equal.
/// @source J. H. Park et al., "HetPipe", USENIX ATC 2020, section 8.1, table 3. The paper matches
///         by rank; here compute and memory themselves are compared, which gives the same table.

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <stagger/placement/allocation.hpp>

namespace stagger::placement {

/// Kinds of devices are matched in pairs, and the workers are divided among the pairs: each worker
/// gets as many devices of one kind as of the other. The matching is the one whose pairs differ
/// least in compute or memory, whichever differs more; if several are equal, least in both
/// together; then the first by name.
struct HybridDistribution {
  using policy_tag = AllocationTag;

  /// @throws Error  bad_configuration for an odd number of kinds, kinds with different numbers of
  ///                devices, or workers that cannot be divided evenly among the pairs
  [[nodiscard]] constexpr std::vector<std::vector<int>> allocate(cluster::Cluster const& cluster,
                                                                 int workers) const {
    std::vector<Kind> const kinds = kinds_of(cluster);
    std::size_t const pairs = kinds.size() / 2;
    if (kinds.size() % 2 != 0 || kinds.empty() || kinds.size() > 12)
      detail::refuse_allocation("HybridDistribution", "an even number of kinds, 12 at most",
                                "their number", kinds.size());
    for (Kind const& k : kinds)
      if (k.devices.size() != kinds.front().devices.size())
        detail::refuse_allocation("HybridDistribution", "equally many devices of each kind",
                                  "the number of one", k.devices.size());
    std::size_t const each = workers < 1 ? 0 : static_cast<std::size_t>(workers) / pairs;
    if (each == 0 || std::cmp_not_equal(each * pairs, workers) ||
        kinds.front().devices.size() % each != 0)
      detail::refuse_allocation("HybridDistribution",
                                "workers that divide among the pairs of kinds, and devices of a "
                                "kind that divide among a pair's workers",
                                "the number of workers", workers);
    Matching best;
    Matching now;
    std::vector<bool> taken(kinds.size(), false);
    match(kinds, taken, now, best);
    std::size_t const share = kinds.front().devices.size() / each;
    std::vector<std::vector<int>> result;
    for (auto const& [a, b] : best.pairs)
      for (std::size_t w = 0; w < each; ++w) {
        result.emplace_back();
        for (std::size_t const kind : {a, b})
          for (std::size_t d = 0; d < share; ++d)
            result.back().push_back(kinds[kind].devices[w * share + d]);
      }
    return result;
  }

 private:
  struct Kind {
    std::string name{};
    double compute = 0, memory = 0;  // of one device
    std::vector<int> devices{};
  };
  struct Matching {
    std::vector<std::pair<std::size_t, std::size_t>> pairs{};
    double worst = -1, sum = -1;
  };

  /// Kinds in the order of their first devices.
  [[nodiscard]] static constexpr std::vector<Kind> kinds_of(cluster::Cluster const& cluster) {
    std::vector<Kind> kinds;
    for (int d = 0; d < cluster.size(); ++d) {
      cluster::Device const& device = cluster.device(d);
      auto at = std::find_if(kinds.begin(), kinds.end(),
                             [&](Kind const& k) { return k.name == device.kind; });
      if (at == kinds.end()) {
        kinds.push_back({device.kind, device.speed, static_cast<double>(device.memory_bytes), {}});
        at = kinds.end() - 1;
      }
      at->devices.push_back(d);
    }
    return kinds;
  }

  /// The relative difference of the pairs: (largest - smallest) / (largest + smallest).
  template <class Of>
  [[nodiscard]] static constexpr double imbalance(std::vector<Kind> const& kinds, Matching const& m,
                                                  Of const& of) {
    double least = of(kinds[m.pairs.front().first]) + of(kinds[m.pairs.front().second]);
    double most = least;
    for (auto const& [a, b] : m.pairs) {
      double const sum = of(kinds[a]) + of(kinds[b]);
      least = std::min(least, sum);
      most = std::max(most, sum);
    }
    return (most - least) / (most + least);
  }

  /// Recursively tries every partner for the first unmatched kind.
  static constexpr void match(std::vector<Kind> const& kinds, std::vector<bool>& taken,
                              Matching& now, Matching& best) {
    std::size_t first = 0;
    while (first < kinds.size() && taken[first]) ++first;
    if (first == kinds.size()) {
      double const compute = imbalance(kinds, now, [](Kind const& k) { return k.compute; });
      double const memory = imbalance(kinds, now, [](Kind const& k) { return k.memory; });
      now.worst = std::max(compute, memory);
      now.sum = compute + memory;
      bool const better =
          best.pairs.empty() || now.worst < best.worst ||
          (now.worst == best.worst &&
           (now.sum < best.sum || (now.sum == best.sum && names(kinds, now) < names(kinds, best))));
      if (better) best = now;
      return;
    }
    taken[first] = true;
    for (std::size_t other = first + 1; other < kinds.size(); ++other) {
      if (taken[other]) continue;
      taken[other] = true;
      now.pairs.emplace_back(first, other);
      match(kinds, taken, now, best);
      now.pairs.pop_back();
      taken[other] = false;
    }
    taken[first] = false;
  }

  [[nodiscard]] static constexpr std::string names(std::vector<Kind> const& kinds,
                                                   Matching const& m) {
    std::string all;
    for (auto const& [a, b] : m.pairs) all += kinds[a].name + kinds[b].name + " ";
    return all;
  }
};

}  // namespace stagger::placement
