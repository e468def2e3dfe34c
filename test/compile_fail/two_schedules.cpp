// SPDX-License-Identifier: Apache-2.0
// mistake: policy: two schedules
// expect-error: stagger: two schedules; give at most one
// see: policies.md
#include <stagger/stagger.hpp>

#include "half.hpp"

int main() {
  auto train = sg::Pipeline{Half{}, Half{}}.with(sg::schedule::GPipe{}, sg::schedule::OneFOneB{});
}
