// SPDX-License-Identifier: Apache-2.0
#include <stagger/partition/measured_threshold.hpp>

#include <cstddef>
#include <vector>

#include "catch.hpp"

namespace measured_threshold_test {

namespace {

using stagger::cluster::Profile;
using stagger::partition::LayerFeatures;
using stagger::partition::measured_threshold;
using stagger::partition::SplitChain;

/// A convolution and two dense layers, of which the second one is the cheaper for its size.
SplitChain const chain{.layers = {{.inputs = 0, .outputs = 0, .values = 4096},
                                  {.inputs = 4096, .outputs = 1024},
                                  {.inputs = 1024, .outputs = 10}}};

Profile profile_of(double large_s, double small_s) {
  return {.layers = {{.forward_s = 5, .backward_s = 7},
                     {.forward_s = large_s / 4, .backward_s = 3 * large_s / 4},
                     {.forward_s = small_s, .backward_s = 0}}};
}

}  // namespace

TEST_CASE("partition/measured_threshold: operations a second over elements a second",
          "[partition]") {
  // 3 (4096 * 1024 + 1024 * 10) multiplications for each of 8 rows, in 0.5 s, with 1e6 floats/s.
  double const expected = 3.0 * (4096.0 * 1024 + 1024 * 10) * 8 / 0.5 / 1e6;
  CHECK(measured_threshold(chain, profile_of(0.4, 0.1), 8, {.bytes_per_s = 4e6}) ==
        Approx(expected).epsilon(1e-12));
  CHECK(measured_threshold(chain, profile_of(0.4, 0.1), 8, {.bytes_per_s = 8e6}, 8) ==
        Approx(expected).epsilon(1e-12));
}

TEST_CASE("partition/measured_threshold: the cluster of SplitBrain's paper", "[partition]") {
  // 225 operations in the time of an element: it splits the layers that the paper splits.
  double const seconds = 3.0 * 4096 * 1024 * 16 / (225.0 * 3e8);
  SplitChain const large{.layers = {chain.layers[0], chain.layers[1]}};
  double const threshold =
      measured_threshold(large, profile_of(seconds, 0), 16, {.bytes_per_s = 1.2e9});
  CHECK(threshold == Approx(225).epsilon(1e-12));
  auto const plan =
      stagger::partition::plan_split(chain.layers, {.group = 2, .threshold = threshold});
  CHECK(plan.layers[1].by == stagger::SplitBy::outputs);
  CHECK(plan.layers[2].by == stagger::SplitBy::nothing);
}

TEST_CASE("partition/measured_threshold: two halves of one layer count its time once",
          "[partition]") {
  SplitChain const halves{.layers = {{.inputs = 8, .outputs = 8}, {.inputs = 8, .outputs = 8}},
                          .numbers = {0, 0}};
  Profile const profile{.layers = {{.forward_s = 1, .backward_s = 2}}};
  CHECK(measured_threshold(halves, profile, 1, {.bytes_per_s = 4}) == 2 * 3 * 64 / 3.0);
}

TEST_CASE("partition/measured_threshold: refuses what was not measured", "[partition]") {
  using Catch::Matchers::Contains;
  CHECK_THROWS_WITH(measured_threshold({.layers = {chain.layers[0]}}, profile_of(1, 1), 8, {}),
                    Contains("no layer of the model can be split"));
  CHECK_THROWS_WITH(measured_threshold(chain, {.layers = {{}, {}}}, 8, {}),
                    Contains("layer 2 of the model is not in a profile of 2 layers"));
  CHECK_THROWS_WITH(measured_threshold(chain, profile_of(0, 0), 8, {}),
                    Contains("the layers that can be split took 0 s"));
}

}  // namespace measured_threshold_test
