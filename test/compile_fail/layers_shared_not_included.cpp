// SPDX-License-Identifier: Apache-2.0
// mistake: policy: layers that groups share without their header
// expect-error: stagger: layers that groups of ranks share need one more header: include <stagger/engine/groups\.hpp>
// see: splitting.md
#include <stagger/partition/layer_split.hpp>
#include <stagger/stagger.hpp>

#include "half.hpp"

int main() {
  auto train = sg::Pipeline{sg::Sequential{Half{}, Half{}}}.with(
      sg::partition::LayerSplit{.group = 2}, Distance{});
}
