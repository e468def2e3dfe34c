// SPDX-License-Identifier: Apache-2.0
#include <stagger/mpi/detail/placement.hpp>

#include "catch.hpp"

#include <vector>

namespace placement_test {

using stagger::Cell;
using stagger::List;
using stagger::Program;
using stagger::mpi::detail::Placement;

TEST_CASE("mpi/Placement: of each process, which ranks it runs; of each stage, who holds it",
          "[mpi]") {
  std::vector<int> const process_of{0, 2, 2, 1, 0};
  Placement const placement(process_of, 4, 2);
  CHECK(Placement().empty());
  CHECK_FALSE(placement.empty());
  CHECK(placement.ranks() == 5);
  CHECK(placement.processes() == 4);
  for (int p = 0; p < 4; ++p)
    for (int r = 0; r < 5; ++r) {
      auto const rank = static_cast<std::size_t>(r);
      CHECK(placement.runs(p)[r] == (process_of[rank] == p));
      CHECK(placement.is_here(r) == (process_of[rank] == 2));
      CHECK(placement.process_of(r) == process_of[rank]);
    }
  CHECK(placement.runs_here() == placement.runs(2));

  Program program;  // ranks 4, 3, 2 and 1 hold stage 1, the last two in one process
  for (int const rank : {0, 4, 3, 2, 1}) {
    Cell cell;
    cell.rank = rank;
    cell.stage = program.cells.empty() ? 0 : 1;
    program.cells.push_back(cell);
  }
  CHECK(placement.holders(program, 0) == List<int>{0});
  CHECK(placement.holders(program, 1) == List<int>{0, 1, 2});
  CHECK(placement.holders(program, 2).empty());
}

}  // namespace placement_test
