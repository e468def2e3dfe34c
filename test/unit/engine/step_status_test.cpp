// SPDX-License-Identifier: Apache-2.0
#include <stagger/engine/step_status.hpp>

#include "catch.hpp"

#include <atomic>
#include <exception>
#include <thread>

#include "sanitized.hpp"

namespace step_status_test {

namespace {

class Status : public stagger::detail::StepStatus {
 public:
  using StepStatus::begin_status;
  [[nodiscard]] int told() {
    try {
      rethrow();
    } catch (int number) {
      return number;
    }
  }
};

}  // namespace

TEST_CASE("engine/StepStatus: of two that fail at once, one decides, and its failure is told",
          "[engine]") {
  int const rounds = sanitized ? 1000 : 5000;
  Status status;
  std::exception_ptr const failures[] = {std::make_exception_ptr(0), std::make_exception_ptr(1)};
  std::atomic<int> round{0};
  std::atomic<int> ended{0};
  std::atomic<bool> decided[2] = {};
  auto const fail = [&](std::size_t who, int in_round) {
    while (round.load() < in_round) std::this_thread::yield();
    decided[who] = status.fail(failures[who]);
    ended.fetch_add(1);
  };
  std::thread other([&] {
    for (int r = 1; r <= rounds; ++r) fail(1, r);
  });
  int wrong = 0;
  for (int r = 1; r <= rounds; ++r) {
    status.begin_status();
    round.store(r);
    fail(0, r);
    while (ended.load() < 2 * r) std::this_thread::yield();
    bool const one = decided[0] != decided[1];
    if (!one || !status.failed() || status.told() != (decided[1] ? 1 : 0)) ++wrong;
  }
  other.join();
  CHECK(wrong == 0);
}

}  // namespace step_status_test
