// SPDX-License-Identifier: Apache-2.0
// mistake: policy: a schedule without a flush under synchronous training
// expect-error: stagger: this schedule never flushes, so weights change under
// see: engine.md#several-owners-slices-streams
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Endless : sg::schedule::GPipe {
  static constexpr bool flushes = false;
};

int main() {
  auto train = sg::Pipeline{Half{}, Half{}}.with(Endless{}, sg::staleness::Synchronous{});
}
