// SPDX-License-Identifier: Apache-2.0
// mistake: policy: a number where a policy is wanted
// expect-error: stagger: an argument of with\(\) is not a policy: it needs a policy_tag
// see: policies.md
#include <stagger/stagger.hpp>

#include "half.hpp"

int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(sg::schedule::GPipe{}, 4); }
