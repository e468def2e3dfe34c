// SPDX-License-Identifier: Apache-2.0
// mistake: policy: the name of a schedule, such as `"1f1b"`
// expect-error: stagger: an argument of with\(\) is a name: a schedule by its name is schedule::Named
// see: policies.md#schedule
#include <stagger/stagger.hpp>

#include "half.hpp"

int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(Distance{}, "1f1b"); }
