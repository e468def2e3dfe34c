// SPDX-License-Identifier: Apache-2.0
#include <stagger/program/traffic.hpp>

#include "catch.hpp"

namespace traffic_test {

using stagger::Traffic;
using stagger::TrafficCount;
using enum stagger::TrafficKind;

TEST_CASE("program/Traffic: it adds up by rank and by kind, and a difference is what came between",
          "[program]") {
  Traffic all(2);
  all.add(0, activations, {1, 10});
  Traffic const before = all;
  all.add(0, activations, {2, 7});
  all.add(1, pulls, {3, 5});
  REQUIRE(all.of(0, activations) == TrafficCount{3, 17});
  REQUIRE(all.of(1, activations) == TrafficCount{});
  REQUIRE(all.of(pulls) == TrafficCount{3, 5});
  REQUIRE(all.total() == TrafficCount{6, 22});
  REQUIRE((all - before).of(0, activations) == TrafficCount{2, 7});
  REQUIRE((all - before).total() == TrafficCount{5, 12});
}

}  // namespace traffic_test
