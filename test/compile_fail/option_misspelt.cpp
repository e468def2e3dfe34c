// SPDX-License-Identifier: Apache-2.0
// expect-error: (has no non-static data member named .clip.|field designator 'clip' does not refer)
#include <stagger/stagger.hpp>

#include "half.hpp"

int main() { auto train = sg::Pipeline{Half{}}.with(Distance{}, sg::Options{.clip = 1.0}); }
