// SPDX-License-Identifier: Apache-2.0
#include <stagger/parameters/version_tag.hpp>

#include "catch.hpp"

#include <cstdint>
#include <span>

namespace version_tag_test {

using stagger::detail::all_rounds;
using stagger::detail::VersionTag;

TEST_CASE("parameters/VersionTag: of others it has the least", "[parameters]") {
  std::uint32_t const pushes[] = {7, 3, all_rounds};
  REQUIRE(VersionTag{pushes, 0}.own() == 7);
  REQUIRE(VersionTag{pushes, 0}.others() == 3);
  REQUIRE(VersionTag{pushes, 0}.rounds() == 3);
  REQUIRE(VersionTag{pushes, 1}.others() == 7);
  REQUIRE(VersionTag{pushes, 1}.rounds() == 3);
  REQUIRE(VersionTag{std::span(pushes).first(1), 0}.others() == all_rounds);
}

}  // namespace version_tag_test
