// SPDX-License-Identifier: Apache-2.0
// mistake: stage: a lambda
// expect-error: stagger: not a Stage but a function: write a struct
// see: stages.md#the-smallest-one
#include <stagger/stagger.hpp>

#include "half.hpp"

int main() {
  auto train = sg::Pipeline{Half{}, [](float const& x) { return x / 2; }}.with(Distance{});
}
