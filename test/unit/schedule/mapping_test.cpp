// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/mapping.hpp>

#include <vector>

#include "catch.hpp"

namespace mapping_test {

namespace {

using stagger::schedule::Mapping;

std::vector<int> ranks_of(Mapping mapping, int ranks, int stages) {
  std::vector<int> all;
  for (int s = 0; s < stages; ++s) all.push_back(stagger::schedule::rank_of(mapping, ranks, s));
  return all;
}

TEST_CASE("schedule/Mapping: a loop begins again, a zigzag turns round", "[schedule]") {
  CHECK(ranks_of(Mapping::looped, 3, 7) == std::vector<int>{0, 1, 2, 0, 1, 2, 0});
  CHECK(ranks_of(Mapping::zigzag, 3, 7) == std::vector<int>{0, 1, 2, 2, 1, 0, 0});
  CHECK(ranks_of(Mapping::bidirectional, 4, 4) == std::vector<int>{0, 1, 2, 3});
}

}  // namespace

}  // namespace mapping_test
