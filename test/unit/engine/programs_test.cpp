// SPDX-License-Identifier: Apache-2.0
#include <stagger/engine/detail/programs.hpp>

#include "catch.hpp"

#include <cstddef>
#include <memory>
#include <vector>

#include <stagger/schedule/gpipe.hpp>

namespace programs_test {

namespace sg = stagger;
using sg::detail::Programs;

TEST_CASE("engine/Programs: of many lengths, those stay that were asked for last", "[engine]") {
  std::vector<int> const cuts{1};
  sg::Options const options;
  sg::schedule::GPipe const schedule;
  sg::detail::Setup setup{.cuts = cuts, .options = options};
  setup.schedule = sg::detail::schedule_call(schedule);
  Programs programs(setup, options, 2, false, false);

  auto const often = programs.find(3, true, nullptr);
  auto const evaluated = programs.find(3, false, nullptr);
  CHECK(often != evaluated);
  std::vector<std::weak_ptr<sg::Program const>> seen;
  for (std::size_t length = 4; length < 100; ++length) {
    seen.push_back(programs.find(length, true, nullptr));
    CHECK(seen.back().lock()->microbatches == static_cast<int>(length));
    CHECK(programs.find(3, true, nullptr) == often);
    CHECK(programs.find(3, false, nullptr) == evaluated);
    std::size_t alive = 0;
    for (auto const& program : seen) alive += program.expired() ? 0 : 1;
    CHECK(alive <= 6);
  }
  CHECK_FALSE(seen[seen.size() - 6].expired());
  auto const again = programs.find(4, true, nullptr);  // is laid out once more
  CHECK(again->microbatches == 4);
}

}  // namespace programs_test
