// SPDX-License-Identifier: Apache-2.0
// mistake: policy: a grouping, instead of a collective that groups
// expect-error: stagger: an argument of with\(\) has the policy_tag of no axis; a grouping goes into collective::Grouped
// see: engine.md#their-gradients
#include <stagger/stagger.hpp>

#include "half.hpp"

#include <stagger/collective/grouping.hpp>


int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(sg::collective::grouping::Layerwise{}, Distance{}); }
