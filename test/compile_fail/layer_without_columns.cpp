// SPDX-License-Identifier: Apache-2.0
// expect-error: stagger: a layer that members of a group can share has an Input and an Output with columns
#include <stagger/model/split.hpp>
#include <stagger/stagger.hpp>

#include "half.hpp"

struct Shared : Half {
  std::size_t inputs() const { return 1; }
  std::size_t outputs() const { return 1; }
  Shared part(int, int, sg::SplitBy) const { return *this; }
};

int main() { auto train = sg::Pipeline{Shared{}}.with(Distance{}); }
