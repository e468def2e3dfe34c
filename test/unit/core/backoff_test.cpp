// SPDX-License-Identifier: Apache-2.0
#include <stagger/core/backoff.hpp>

#include "catch.hpp"

namespace backoff_test {

using stagger::detail::Backoff;
using stagger::detail::wait_until;

TEST_CASE("core/wait_until: asks once more after the time is up, and as often as it takes before",
          "[core]") {
  CHECK(wait_until([] { return true; }, -1));
  CHECK_FALSE(wait_until([] { return false; }, 0));
  int asked = 0;
  CHECK(wait_until([&] { return ++asked == 5000; }, 60, Backoff(std::chrono::seconds(60))));
  CHECK(asked == 5000);
}

TEST_CASE("core/wait_until: a wait without an end lasts as long as it may", "[core]") {
  Backoff const clock;
  CHECK_FALSE(wait_until([] { return false; }, 0.003));
  CHECK(clock.waited_s() >= 0.003);
}

}  // namespace backoff_test
