// SPDX-License-Identifier: Apache-2.0
#pragma once
// Messages on standard error during long computations.

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>

namespace tool {

/// Until it is destroyed, prints the elapsed time after 5 s, 10 s, 20 s, and so on.
class LongWorkNotice {
 public:
  explicit LongWorkNotice(std::string what)
      : thread_([what = std::move(what)](std::stop_token const& done) {
          std::mutex mutex;
          std::condition_variable_any wake;
          std::unique_lock lock(mutex);
          for (int passed_s = 0, next_s = 5;; passed_s = next_s, next_s *= 2) {
            wake.wait_for(lock, done, std::chrono::seconds(next_s - passed_s),
                          [] { return false; });
            if (done.stop_requested()) return;
            std::fprintf(stderr, "stagger: %s for %d s so far\n", what.c_str(), next_s);
          }
        }) {}

 private:
  std::jthread thread_;
};

}  // namespace tool
