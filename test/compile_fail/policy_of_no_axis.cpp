// SPDX-License-Identifier: Apache-2.0
// mistake: policy: a policy_tag of one's own
// expect-error: stagger: an argument of with\(\) has the policy_tag of no axis; the tags are those of schedules
// see: policies.md
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Own {
  using policy_tag = Own;
};

int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(Own{}, Distance{}); }
