// SPDX-License-Identifier: Apache-2.0
#include <stagger/cuda/watchdog.hpp>

#include "catch.hpp"

#include <atomic>

TEST_CASE("cuda/Watchdog: speaks up once in a run that stands still, never between runs",
          "[cuda]") {
  std::atomic<std::uint64_t> progress{0};
  std::atomic<int> expired{0};
  {
    stagger::cuda::Watchdog watchdog(
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
