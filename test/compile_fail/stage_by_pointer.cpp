// SPDX-License-Identifier: Apache-2.0
// mistake: stage: a `std::shared_ptr` to a stage
// expect-error: stagger: not a Stage but a pointer to one
// see: stages.md#many-layers
#include <stagger/stagger.hpp>

#include "half.hpp"

#include <memory>

int main() { auto train = sg::Pipeline{std::vector<std::shared_ptr<Half>>(3)}.with(Distance{}); }
