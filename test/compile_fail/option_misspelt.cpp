// SPDX-License-Identifier: Apache-2.0
// mistake: words: `AdamW{.lr = 1e-3}`, and other members that there are not
// remedy: the rate is `.rate`; what members there are stands in [optimizer.hpp](../include/stagger/model/optimizer.hpp), and those of `Options` in the table
// expect-error: (has no non-static data member named .lr.|field designator 'lr' does not refer)
// see: engine.md#options
#include <stagger/stagger.hpp>

#include "half.hpp"

int main() { auto train = sg::Pipeline{Half{}}.with(Distance{}, sg::optimizer::AdamW{.lr = 1e-3}); }
