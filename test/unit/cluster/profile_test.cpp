// SPDX-License-Identifier: Apache-2.0
#include <stagger/cluster/profile.hpp>

#include <limits>

#include "catch.hpp"

namespace profile_test {

using stagger::cluster::Layer;
using stagger::cluster::Profile;

namespace {

Profile two_layers() {
  return {.name = "two",
          .batch = 4,
          .device = "V",
          .layers = {{.name = "a", .forward_s = 1, .backward_s = 2, .activation_bytes = 10},
                     {.name = "b",
                      .forward_s = 3,
                      .backward_s = 8,
                      .backward_weight_s = 2,
                      .stash_bytes = 7,
                      .by_device = {{.kind = "G", .forward_s = 5, .backward_s = 6}}}}};
}

}  // namespace

TEST_CASE("cluster/Layer: times are divided by the speed, but stand where they were measured",
          "[cluster]") {
  auto const p = two_layers();
  auto const slow = p.layers[0].on("Q", 0.5);
  CHECK(slow.forward_s == 2);
  CHECK(slow.backward_s == 4);
  CHECK(slow.backward_weight_s == 2);  // half, where nothing is known
  CHECK(p.layers[1].on("V", 1).backward_weight_s == 2);
  auto const there = p.layers[1].on("G", 0.1);
  CHECK(there.forward_s == 5);
  CHECK(there.total_s() == 11);
  CHECK(there.backward_weight_s == 1.5);  // its share on the profiled device
  CHECK(p.layers[0].stash() == 10);
  CHECK(p.layers[1].stash() == 7);
}

TEST_CASE("cluster/Profile: what cannot be names layer, field and value", "[cluster]") {
  double const nan = std::numeric_limits<double>::quiet_NaN();
  double const inf = std::numeric_limits<double>::infinity();
  REQUIRE_NOTHROW(require_profile(two_layers()));
  auto const refused = [](auto spoil, char const* words) {
    Profile p = two_layers();
    spoil(p);
    CHECK_THROWS_WITH(require_profile(p), Catch::Contains(words));
  };
  refused([](Profile& p) { p.batch = 0; }, "batch = 0");
  refused([](Profile& p) { p.layers.clear(); }, "no layers");
  refused([](Profile& p) { p.layers[1].forward_s = -1; }, "layer 1 ('b') has forward_s = -1");
  refused([&](Profile& p) { p.layers[0].backward_s = nan; }, "layer 0 ('a') has backward_s = ");
  refused([&](Profile& p) { p.layers[0].forward_s = inf; }, "forward_s = inf");
  refused([](Profile& p) { p.layers[1].backward_weight_s = 9; }, "more than its backward_s = 8");
  refused([&](Profile& p) { p.layers[1].by_device[0].forward_s = nan; }, "on G");
}

TEST_CASE("cluster/Profile: only a time above an hour is doubted", "[cluster]") {
  Profile p = two_layers();
  CHECK(doubts(p).empty());
  p.layers[0].forward_s = 3600;
  CHECK(doubts(p).empty());
  p.layers[0].forward_s = 3601;
  REQUIRE(doubts(p).size() == 1);
  CHECK_THAT(doubts(p)[0], Catch::Contains("layer 0 ('a') has forward_s = 3601 s"));
}

}  // namespace profile_test
