// SPDX-License-Identifier: Apache-2.0
#include <stagger/collective/operation.hpp>

#include <coroutine>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <stagger/collective/in_process.hpp>

#include "catch.hpp"
#include "collective/ranks.hpp"

using namespace stagger;
using namespace stagger::collective;

namespace {

/// A coroutine that its owner destroys.
struct Task {
  struct promise_type {
    std::exception_ptr error{};
    Task get_return_object() {
      return Task(std::coroutine_handle<promise_type>::from_promise(*this));
    }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { error = std::current_exception(); }
  };
  explicit Task(std::coroutine_handle<promise_type> h) : handle(h) {}
  Task(Task&& o) noexcept : handle(std::exchange(o.handle, {})) {}
  ~Task() {
    if (handle) handle.destroy();
  }
  std::coroutine_handle<promise_type> handle;
};

/// Done after so many polls, or fails then.
struct Countdown {
  int left;
  bool fails = false;
  bool poll() {
    if (left > 0) --left;
    if (left == 0 && fails) throw Error(Errc::peer_failed, "countdown failed");
    return left == 0;
  }
  void wait(double) {
    while (!poll()) {
    }
  }
  void expire(double) {
    throw Error(Errc::deadline, "countdown stands at " + std::to_string(left));
  }
};

Task train(Poller& poller, InProcessCommunicator& c, std::vector<int>& log) {
  for (int i = 0; i < 3; ++i) {
    int x = c.rank() + i;
    auto op = c.all_reduce(std::span(&x, 1));
    auto done = poller(op);
    co_await done;
    log.push_back(x);
  }
}

Task wait_for(Poller& poller, Countdown& op, int& ends) {
  auto done = poller(op);
  co_await done;
  ++ends;
}

}  // namespace

TEST_CASE("collective/Poller: coroutines of several ranks on one thread wait for each other",
          "[collective]") {
  auto world = InProcess{}.connect(3);
  Poller poller;
  std::vector<std::vector<int>> logs(3);
  std::vector<Task> tasks;
  for (std::size_t r = 0; r < 3; ++r) tasks.push_back(train(poller, world[r], logs[r]));
  int turns = 0;
  while (!poller.empty() && turns < 1000) {
    static_cast<void>(poller.poll());
    ++turns;
  }
  for (auto const& t : tasks) REQUIRE(t.handle.done());
  for (auto const& log : logs) CHECK(log == std::vector{3, 6, 9});
}

TEST_CASE("collective/Poller: an operation's error is thrown where it is awaited", "[collective]") {
  Poller poller;
  Countdown good{3}, bad{2, true};
  int ends = 0;
  auto a = wait_for(poller, good, ends);
  auto b = wait_for(poller, bad, ends);
  CHECK_FALSE(poller.empty());
  CHECK(poller.poll());  // bad
  CHECK(b.handle.done());
  REQUIRE(b.handle.promise().error);
  CHECK_THROWS_AS(std::rethrow_exception(b.handle.promise().error), Error);
  CHECK(poller.poll());
  CHECK(a.handle.done());
  CHECK(ends == 1);
  CHECK(poller.empty());
}

TEST_CASE("collective/Poller: a coroutine destroyed while it waits is forgotten", "[collective]") {
  Poller poller;
  Countdown op{5};
  int ends = 0;
  {
    auto gone = wait_for(poller, op, ends);
    CHECK_FALSE(poller.empty());
  }
  CHECK(poller.empty());
  CHECK_FALSE(poller.poll());
  CHECK(ends == 0);
}

TEST_CASE("collective/wait_all: the deadline is that of the first operation not done",
          "[collective]") {
  struct Never {
    bool poll() { return false; }
    void wait(double) {}
    void expire(double) { throw Error(Errc::deadline, "never"); }
  } never;
  Countdown soon{2};
  try {
    wait_all(0.002, soon, never);
    FAIL("it ended");
  } catch (Error const& e) {
    CHECK(e.code() == Errc::deadline);
    CHECK(std::string(e.what()) == "never");
  }
  CHECK(soon.left == 0);
}
