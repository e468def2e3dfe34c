// SPDX-License-Identifier: Apache-2.0
#include <stagger/engine/messages.hpp>

#include "catch.hpp"

using stagger::detail::most_alive;
using stagger::detail::nowhere;
using stagger::detail::Positions;

TEST_CASE("engine/most_alive: a value lives from where it is written to the end of its last use",
          "[engine]") {
  CHECK(most_alive({}, {}, 4) == 0);
  CHECK(most_alive({0}, {0}, 4) == 1);        // written and used up by one action
  CHECK(most_alive({0, 2}, {1, 3}, 4) == 1);  // one behind the other
  CHECK(most_alive({0, 2}, {2, 3}, 4) == 2);  // the action that reads one writes the other
  CHECK(most_alive({0, 1, 2}, {3, 3, 3}, 4) == 3);
  CHECK(most_alive({0, nowhere, 2}, {3, nowhere, 3}, 4) == 2);  // one that another rank takes
}
