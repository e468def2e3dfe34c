// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What the tests of all schedules share.

#include <algorithm>
#include <cmath>
#include <vector>

#include <stagger/schedule/costs.hpp>
#include <stagger/schedule/proof/evaluate.hpp>
#include <stagger/schedule/proof/verify.hpp>

#include "catch.hpp"
#include "oracle.hpp"
#include "sanitized.hpp"

namespace grid {

using namespace stagger;
using namespace stagger::schedule;

// As in schedule/, at run time alone and compiled once: they are most of what a test of its own
// would compile.
[[nodiscard]] Evaluation evaluated(Table const& table, Costs const& costs = {});
[[nodiscard]] Fault verified(Table const& table, VerifyOptions options = {});
[[nodiscard]] double bounded(Table const& table);

/// The table of a policy, which must be legal and no shorter than its lower bound.
template <class Policy> Table legal(Policy const& policy, int ranks, int microbatches) {
  Table const table = policy.table({ranks, microbatches, policy.chunks()});
  Fault const fault = verified(table);
  CAPTURE(ranks, microbatches, policy.chunks(), message(fault));
  REQUIRE_FALSE(fault);
  REQUIRE(table.ranks() == ranks);
  REQUIRE(table.microbatches == microbatches);
  REQUIRE(evaluated(table).makespan_s >= bounded(table) - 1e-9);
  return table;
}

inline int highest(std::vector<int> const& v) { return *std::max_element(v.begin(), v.end()); }

/// Every shape with P <= 8 and M <= 32; a sanitizer sees every third M.
template <class Body> void each(Body body) {
  for (int P = 1; P <= 8; ++P) {
    for (int M = 1; M <= 32; M += sanitized ? 3 : 1) {
      CAPTURE(P, M);
      body(P, M);
    }
  }
}

}  // namespace grid
