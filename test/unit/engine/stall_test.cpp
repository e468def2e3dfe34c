// SPDX-License-Identifier: Apache-2.0
#include <stagger/engine/stall.hpp>

#include "catch.hpp"

#include <atomic>
#include <cstdint>

namespace stall_test {

TEST_CASE("engine/Watchdog: speaks up once in a run that stands still, never between runs",
          "[engine]") {
  std::atomic<std::uint64_t> progress{0};
  std::atomic<int> expired{0};
  {
    stagger::detail::Watchdog watchdog(
        0.02, [&] { return progress.load(); },
        [&]() noexcept {
          ++expired;
          expired.notify_all();
        });
    for (int run = 0; run < 3; ++run) {
      int const before = expired.load();
      watchdog.begin();
      expired.wait(before);
      watchdog.end();
      CHECK(expired.load() == before + 1);
    }
    for (int turn = 0; turn < 100; ++turn) {  // no run is long enough
      watchdog.begin();
      ++progress;
      watchdog.end();
    }
  }
  CHECK(expired.load() == 3);
}

}  // namespace stall_test
