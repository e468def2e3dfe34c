// SPDX-License-Identifier: Apache-2.0
// mistake: policy: a grouping, instead of a collective that has it
// expect-error: stagger: a grouping is a part of the collective: give with\(\) collective::AllReduce\{.grouping = ...\} with it
// see: engine.md#their-gradients
#include <stagger/stagger.hpp>

#include "half.hpp"

#include <stagger/collective/grouping.hpp>

int main() {
  auto train =
      sg::Pipeline{Half{}, Half{}}.with(sg::collective::grouping::Bucket{1 << 20}, Distance{});
}
