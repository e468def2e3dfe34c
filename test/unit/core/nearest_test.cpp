// SPDX-License-Identifier: Apache-2.0
#include <stagger/core/nearest.hpp>

#include <string>
#include <vector>

#include "catch.hpp"

namespace nearest_test {

using stagger::edit_distance;
using stagger::nearest;

TEST_CASE("core/nearest: the word that takes the fewest edits", "[core]") {
  std::vector<std::string> const known{"gpipe", "1f1b", "zb-h1", "zb-h2", "zb-v"};
  CHECK(nearest("gpype", known) == "gpipe");
  CHECK(nearest("zb-h3", known) == "zb-h1");  // the first of two
  CHECK(nearest("zbv", known) == "zb-v");
  CHECK(nearest("zb-v", known) == "zb-v");
  CHECK(nearest("gp", known) == "gpipe");  // cut short
  CHECK(nearest("x", std::vector<std::string>{}).empty());
}

TEST_CASE("core/nearest: edits are letters inserted, deleted and replaced", "[core]") {
  CHECK(edit_distance("", "") == 0);
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("abc", "") == 3);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("flaw", "lawn") == 2);
  CHECK(edit_distance("ab", "ba") == 2);
}

}  // namespace nearest_test
