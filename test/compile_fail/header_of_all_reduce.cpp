// SPDX-License-Identifier: Apache-2.0
// mistake: policy: `collective::AllReduce` without its header
// expect-error: (wrong number of|too few) template arguments
// expect-error: // stagger: include <stagger/collective/all_reduce.hpp>
// errors: 1
// see: engine.md#their-gradients
#include <stagger/stagger.hpp>

#include "half.hpp"

int main() {
  auto train = sg::Pipeline{Half{}, Half{}}.with(Distance{}, sg::collective::AllReduce<>{});
}
