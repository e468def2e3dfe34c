// SPDX-License-Identifier: Apache-2.0
// mistake: policy: `{.clip_norm = 1}` instead of `Options{.clip_norm = 1}`
// expect-error: stagger: braces alone do not say what they are: write Options
// errors: 1
// see: engine.md#options
#include <stagger/stagger.hpp>

#include "half.hpp"

int main() {
  sg::Pipeline const model{Half{}, Half{}};
  sg::Options const options{.seed = 1};
  auto one = model.with(options);  // these are right
  auto two = model.with(Distance{}, options);
  auto three = model.with(Distance{}, sg::host::Threads{1}, sg::Options{.seed = 1});
  auto train = model.with(Distance{}, {.clip_norm = 1.0});
}
