// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/pipe_dream_2bw.hpp>

#include "grid.hpp"

namespace pipe_dream_2bw_test {

using namespace grid;

TEST_CASE(
    "schedule/PipeDream2BW: two versions, and no microbatch in flight is older than the batch "
    "before",
    "[schedule]") {
  each([](int P, int M) {
    PipeDream2BW const policy{};
    if (M < P) {
      REQUIRE_THROWS_AS(policy.table({P, M}), Error);
      return;
    }
    Table const t = legal(policy, P, M);
    REQUIRE(policy.weight_versions({P, M}, 0) == 2);
    REQUIRE(highest(peak_in_flight(t)) == P);
    REQUIRE(highest(peak_in_flight(t)) <= M);  // what is in flight spans two batches at most
  });
}

}  // namespace pipe_dream_2bw_test
