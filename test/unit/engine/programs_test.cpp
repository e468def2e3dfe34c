// SPDX-License-Identifier: Apache-2.0
#include <stagger/engine/detail/programs.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <vector>

#include <stagger/schedule/chimera.hpp>
#include <stagger/schedule/dual_pipe.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/proof/verify.hpp>

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

TEST_CASE("engine/forward_only: as many microbatches as wanted, legal, and from both ends",
          "[engine]") {
  for (sg::schedule::Table const& table :
       {sg::schedule::GPipe{}.table({3, 4}), sg::schedule::Chimera{}.table({4, 6}),
        sg::schedule::DualPipe{}.table({2, 8})})
    for (int wanted = 1; wanted <= 20; ++wanted) {
      CAPTURE(table.stages, wanted);
      auto const made = sg::detail::forward_only(table, wanted);
      REQUIRE(made.microbatches == wanted);
      std::vector<int> entered(static_cast<std::size_t>(table.ranks()));
      std::vector<std::vector<int>> order(static_cast<std::size_t>(table.stages));
      for (int r = 0; r < table.ranks(); ++r)
        for (auto const& a : made.row(r)) {
          if (a.kind == sg::schedule::Kind::reduce_gradient) continue;
          REQUIRE(a.kind == sg::schedule::Kind::forward);
          if (a.stage == 0) ++entered[static_cast<std::size_t>(r)];
          auto& seen = order[static_cast<std::size_t>(a.stage)];
          seen.push_back(a.microbatch);
        }
      for (auto& seen : order) {
        std::sort(seen.begin(), seen.end());
        for (int m = 0; m < wanted; ++m) CHECK(seen[static_cast<std::size_t>(m)] == m);
      }
      bool const two_ways = entered.back() + entered.front() == wanted && entered.back() > 0;
      CHECK(two_ways == (table.stages != 3));
      int const rounds = (wanted - 1) / table.microbatches + 1;
      if (wanted > 1 && two_ways) CHECK(std::abs(entered.back() - entered.front()) <= rounds);
      auto const program = sg::lay_out(made);
      auto const trained = sg::lay_out(table);  // has the same cells: ranks hold the same stages
      REQUIRE(program.cells.size() == trained.cells.size());
      for (std::size_t c = 0; c < program.cells.size(); ++c) {
        CHECK(program.cells[c].rank == trained.cells[c].rank);
        CHECK(program.cells[c].stage == trained.cells[c].stage);
      }
      CHECK_NOTHROW(sg::require_sound(program, made));
    }
}

}  // namespace programs_test
