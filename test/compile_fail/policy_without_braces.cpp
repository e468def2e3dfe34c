// SPDX-License-Identifier: Apache-2.0
// mistake: words: `with(schedule::GPipe)`: a type instead of a value
// remedy: write `schedule::GPipe{}`
// expect-error: (expected primary-expression before '\)' token|expected '\(' for function-style cast)
// see: policies.md
#include <stagger/stagger.hpp>

#include "half.hpp"

int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(Distance{}, sg::schedule::GPipe); }
