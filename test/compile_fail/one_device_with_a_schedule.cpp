// SPDX-License-Identifier: Apache-2.0
// mistake: policy: a schedule for one device
// expect-error: stagger: one device takes a loss, an optimizer and Options
// see: policies.md
#include <stagger/stagger.hpp>

#include "half.hpp"

int main() { auto one = sg::Pipeline{Half{}}.on_one_device(Distance{}, sg::schedule::GPipe{}); }
