// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Fills: the choice of devices for the replicas of one stage, if some devices are already
///         taken.
/// @source Fan et al., "DAPPLE", PPoPP 2021, section 4.1.

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include <stagger/core/error.hpp>

namespace stagger {

/// Marks a fill, which chooses devices for the replicas of one stage. `fill(occupied, devices)`
/// returns how many of them to take from each node, [nodes].
struct FillTag {};

namespace placement {

/// The number of devices of each node, and how many of them are taken. In a node the lowest free
/// numbers are taken first.
struct Occupancy {
  std::vector<int> size{};   ///< [nodes]
  std::vector<int> taken{};  ///< [nodes] 0 <= taken <= size

  [[nodiscard]] constexpr int free(std::size_t node) const noexcept {
    return size[node] - taken[node];
  }
  [[nodiscard]] constexpr int free() const noexcept {
    int sum = 0;
    for (std::size_t n = 0; n < size.size(); ++n) sum += free(n);
    return sum;
  }

  /// The numbers of the devices if `chosen[n]` devices of each node n are taken next, rising.
  /// Devices are numbered node by node.
  [[nodiscard]] constexpr std::vector<int> devices(std::span<int const> chosen) const {
    std::vector<int> ids;
    int first = 0;
    for (std::size_t n = 0; n < size.size(); ++n) {
      for (int k = 0; k < chosen[n]; ++k) ids.push_back(first + taken[n] + k);
      first += size[n];
    }
    return ids;
  }
};

namespace detail {

constexpr void require_room(Occupancy const& occupied, int devices) {
  if (occupied.size.size() != occupied.taken.size())
    raise(Errc::bad_configuration, "there are ", occupied.size.size(),
          " nodes, but counts of taken devices for ", occupied.taken.size(), "; give one for each");
  for (std::size_t n = 0; n < occupied.size.size(); ++n)
    if (occupied.taken[n] < 0 || occupied.free(n) < 0)
      raise(Errc::bad_configuration, "node ", n, " has ", occupied.size[n], " devices, of which ",
            occupied.taken[n], " are taken; give 0 to ", occupied.size[n]);
  if (devices < 1 || devices > occupied.free())
    raise(Errc::bad_configuration, devices, " devices cannot be chosen of ", occupied.free(),
          " that are free; choose 1 or more");
}

/// Takes node after node: unused nodes before partly taken ones, or after them.
[[nodiscard]] constexpr std::vector<int> in_order(Occupancy const& occupied, int devices,
                                                  bool fresh_first) {
  require_room(occupied, devices);
  std::vector<int> chosen(occupied.size.size(), 0);
  for (bool const fresh : {fresh_first, !fresh_first})
    for (std::size_t n = 0; n < chosen.size(); ++n) {
      if ((occupied.taken[n] == 0) != fresh) continue;
      chosen[n] = std::min(occupied.free(n), devices);
      devices -= chosen[n];
    }
  return chosen;
}

}  // namespace detail

/// Unused nodes first, then partly taken ones: a stage stays within one node if it can, so that its
/// all-reduce uses that node's links.
struct FreshFirst {
  using policy_tag = FillTag;

  /// @throws Error  bad_configuration for more devices than are free
  [[nodiscard]] constexpr std::vector<int> fill(Occupancy const& occupied, int devices) const {
    return detail::in_order(occupied, devices, true);
  }
};

/// Partly taken nodes first, then unused ones, so that few nodes are left partly taken.
struct AppendFirst {
  using policy_tag = FillTag;

  /// @throws Error  bad_configuration for more devices than are free
  [[nodiscard]] constexpr std::vector<int> fill(Occupancy const& occupied, int devices) const {
    return detail::in_order(occupied, devices, false);
  }
};

/// One device of each node in turn, first of the partly taken nodes, then of the unused ones: for
/// stages with few weights and large activations.
struct ScatterFirst {
  using policy_tag = FillTag;

  /// @throws Error  bad_configuration for more devices than are free
  [[nodiscard]] constexpr std::vector<int> fill(Occupancy const& occupied, int devices) const {
    detail::require_room(occupied, devices);
    std::vector<int> chosen(occupied.size.size(), 0);
    // Partly taken nodes in the first pass, unused ones in the second.
    for (bool const pass_fresh : {false, true})
      for (bool more = true; more && devices > 0;) {
        more = false;
        for (std::size_t n = 0; n < chosen.size() && devices > 0; ++n) {
          if ((occupied.taken[n] == 0) != pass_fresh || chosen[n] == occupied.free(n)) continue;
          ++chosen[n];
          --devices;
          more = true;
        }
      }
    return chosen;
  }
};

}  // namespace placement
}  // namespace stagger
