// SPDX-License-Identifier: Apache-2.0
// mistake: step: a copied trainer
// expect-error: stagger: a Trainer cannot be copied
// see: getting_started.md
#include <stagger/stagger.hpp>

#include "half.hpp"

int main() {
  auto train = sg::Pipeline{Half{}, Half{}}.with(Distance{});
  auto copy = train;
}
