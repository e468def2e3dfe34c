// SPDX-License-Identifier: Apache-2.0
// mistake: words: `Options{.seed = 1, .clip_norm = 1}`: another order than that of the members (g++; a warning of clang)
// remedy: name the members in the order of the table
// expect-error: (designator order for field .stagger::Options::clip_norm. does not match|field designators to be specified in declaration order)
// flags: -Werror
// see: engine.md#options
#include <stagger/stagger.hpp>

#include "half.hpp"

int main() {
  auto train = sg::Pipeline{Half{}}.with(Distance{}, sg::Options{.seed = 1, .clip_norm = 1.0});
}
