// SPDX-License-Identifier: Apache-2.0
#include <stagger/cuda/detail/graph_cache.hpp>

#include "catch.hpp"

#include <array>

namespace graph_cache_test {

namespace sg = stagger;

TEST_CASE(
    "cuda/RecordedArguments: a graph serves a step that shows the same places with the same scales",
    "[cuda]") {
  std::array<int, 2> inputs{1, 2};
  std::array<int, 2> targets{3, 4};
  std::array<double, 2> scales{0.5, 0.25};
  auto const places = [](std::array<int, 2>& of) {
    return sg::detail::Places{reinterpret_cast<std::byte*>(of.data()), sizeof(int)};
  };
  sg::detail::StepArguments step;
  step.inputs = places(inputs);
  step.targets = places(targets);
  step.scales = scales.data();
  sg::cuda::detail::RecordedArguments shown;
  CHECK_FALSE(shown.same(step, 2));  // nothing was recorded
  shown.remember(step, 2);
  CHECK(shown.same(step, 2));

  std::array<double, 2> equal = scales;
  step.scales = equal.data();
  CHECK(shown.same(step, 2));  // kernels were given their values, not where they stand
  equal[1] = 0.125;
  CHECK_FALSE(shown.same(step, 2));
  step.scales = nullptr;
  CHECK_FALSE(shown.same(step, 2));
  step.scales = scales.data();

  targets[1] = 5;  // what a kernel was given by value
  CHECK_FALSE(shown.same(step, 2));
  targets[1] = 4;
  std::array<int, 2> elsewhere = inputs;
  step.inputs = places(elsewhere);
  CHECK_FALSE(shown.same(step, 2));
  step.inputs = places(inputs);
  step.outputs = places(elsewhere);
  CHECK_FALSE(shown.same(step, 2));
  step.outputs = {};
  CHECK_FALSE(shown.same(step, 1));
  CHECK(shown.same(step, 2));
}

}  // namespace graph_cache_test
