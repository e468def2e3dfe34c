// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Workers that push gradient groups, for tests of any parameter server.

#include <stagger/collective/grouped_pushes.hpp>

namespace workers_oracle {

/// A server whose workers push in groups.
/// @tparam Server  whatever has workers
template <class Server, class Grouping> struct InGroups {
  Server const& server;
  Grouping policy{};
  [[nodiscard]] auto worker(int n) const {
    return stagger::collective::GroupedPushes{server.worker(n), policy, {1e-6, 1e-9}};
  }
};
template <class Server, class Grouping>
InGroups(Server const&, Grouping) -> InGroups<Server, Grouping>;

}  // namespace workers_oracle
