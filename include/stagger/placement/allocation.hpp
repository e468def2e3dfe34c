// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Groups of the devices of a cluster: virtual workers.
/// @source J. H. Park et al., "HetPipe", USENIX ATC 2020, section 8.1, table 3.

#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <stagger/cluster/cluster.hpp>
#include <stagger/core/error.hpp>

namespace stagger {

/// Marks an allocation: `using policy_tag = stagger::AllocationTag;`.
struct AllocationTag {};

/// An allocation gives each virtual worker its devices. A virtual worker runs one pipeline.
template <class P>
concept AllocationPolicy =
    std::copyable<P> && std::same_as<typename P::policy_tag, AllocationTag> &&
    requires(P const policy, cluster::Cluster const& cluster, int workers) {
      // [workers] ids of devices, none twice
      { policy.allocate(cluster, workers) } -> std::same_as<std::vector<std::vector<int>>>;
    };

namespace placement {

/// The kinds of each worker's devices as text, "VRGQ".
[[nodiscard]] inline std::string letters(cluster::Cluster const& cluster,
                                         std::span<int const> devices) {
  std::string result;
  for (int const d : devices) result += cluster.device(d).kind;
  return result;
}

namespace detail {

[[noreturn, gnu::cold]] void refuse_allocation(char const* policy, char const* wants,
                                               char const* of, std::integral auto got) {
  raise(Errc::bad_configuration, policy, " wants ", wants, "; ", of, " is ", got);
}

}  // namespace detail
}  // namespace placement
}  // namespace stagger
