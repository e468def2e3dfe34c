// SPDX-License-Identifier: Apache-2.0
// HetPipe's order holds no more minibatches at a stage than partitioners count, and more than the
// paper's second rule says.
// Source: J. H. Park et al., "HetPipe", USENIX ATC 2020, sections 4 and 7.
#include <stagger/partition/costs.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

#include <stagger/schedule/fifo.hpp>
#include <stagger/schedule/proof/peak_in_flight.hpp>

#include "catch.hpp"
#include "partition/random_model.hpp"

namespace costs_test {

using namespace partitions;
using Counts = std::vector<int>;

namespace {

/// [stages] most minibatches between forward and backward at once.
Counts held(std::vector<stagger::schedule::StageCosts> const& stages, int in_flight) {
  int const ranks = static_cast<int>(stages.size());
  int const enough = 16 * std::max(ranks, in_flight);  // the steady state and both ends
  stagger::schedule::Fifo const fifo{.in_flight = in_flight, .costs = {.stages = stages}};
  return stagger::schedule::peak_in_flight(fifo.table({.ranks = ranks, .microbatches = enough}));
}
/// [stages] as partitioners count them: of a layer that keeps one byte for each
Counts counted(int stages, int in_flight) {
  stagger::partition::Costs costs;
  costs.stash_bytes_until = {0, 1};
  costs.parameter_bytes_until = costs.boundary_bytes = {0, 0};
  Counts counts;
  for (int s = 0; s < stages; ++s)
    counts.push_back(static_cast<int>(costs.memory_bytes(0, 1, s, stages, in_flight)));
  return counts;
}
/// [stages] by the paper's second rule
Counts balanced(int stages, int in_flight) {
  Counts counts;
  for (int after = stages; after-- > 0;) counts.push_back(std::min(in_flight, 2 * after + 1));
  return counts;
}

}  // namespace

TEST_CASE("partition/Costs: equal stages hold more than the balanced rule says", "[partition]") {
  auto const equal = stagger::schedule::Costs::uniform(1, 2, 0);
  std::vector<stagger::schedule::StageCosts> const four(4, equal.of(0));
  CHECK(held(four, 4) == Counts{4, 4, 4, 1});
  CHECK(held(four, 8) == Counts{8, 7, 6, 1});
  CHECK(held(four, 1) == Counts{1, 1, 1, 1});
  CHECK(balanced(4, 4) == Counts{4, 4, 3, 1});
  CHECK(balanced(4, 8) == Counts{7, 5, 3, 1});
}

TEST_CASE("partition/Costs: no stage holds more than partitioners count, and some hold fewer",
          "[partition]") {
  Random random(5);
  int fewer = 0;
  for (int i = 0; i < 300; ++i) {
    int const in_flight = pick(random, 1, 6);
    std::vector<stagger::schedule::StageCosts> stages(static_cast<std::size_t>(pick(random, 1, 4)));
    for (auto& stage : stages)
      stage = {.forward_s = uniform(random, 0, 1),
               .backward_input_s = uniform(random, 0, 2),
               .transfer_s = uniform(random, 0, 0.5)};
    Counts const played = held(stages, in_flight),
                 safe = counted(static_cast<int>(stages.size()), in_flight);
    REQUIRE(played.size() == safe.size());
    CHECK(played.back() == 1);
    for (std::size_t s = 0; s < safe.size(); ++s) {
      CHECK(played[s] >= 1);
      CHECK(played[s] <= safe[s]);
      fewer += played[s] < safe[s] ? 1 : 0;
    }
  }
  CHECK(fewer > 0);
}

}  // namespace costs_test
