// SPDX-License-Identifier: Apache-2.0
#include <stagger/host/asio.hpp>

#include "catch.hpp"

#include <atomic>
#include <chrono>
#include <csignal>
#include <exception>
#include <future>
#include <stdexcept>
#include <thread>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>

#include <stagger/stagger.hpp>

namespace asio_test {

namespace sg = stagger;
namespace asio = boost::asio;

namespace {

// y = w * x, one number; calls what the test wants in forward.
struct Scale {
  using Input = float;
  using Output = float;
  sg::Parameter<> weight{"weight", {0.5F}};
  void (*hook)() = nullptr;
  auto parameters() { return std::tie(weight); }
  void forward(sg::Context& context, float const& x, float& y, sg::NothingSaved&) {
    if (hook != nullptr) hook();
    y = context[weight][0] * x;
  }
  void backward(sg::Context& context, float const& x, float const& dy, float& dx,
                sg::NothingSaved&) {
    context.gradient(weight)[0] += dy * x;
    dx = dy * context[weight][0];
  }
};

struct Square {
  using policy_tag = sg::LossTag;
  using Target = float;
  double terms(float const&) const { return 1; }
  double value(sg::Context&, float const& y, float const& t) const { return (y - t) * (y - t); }
  double value_and_gradient(sg::Context&, float const& y, float const& t, double scale,
                            float& dy) const {
    dy = static_cast<float>(scale) * 2 * (y - t);
    return (y - t) * (y - t);
  }
};

auto make(void (*hook)() = nullptr, int threads = 2) {
  Scale second;
  second.hook = hook;
  return sg::Pipeline{Scale{}, second}.with(Square{}, sg::optimizer::Sgd{.rate = 0.1},
                                            sg::host::Threads{threads});
}

sg::Batch<float, float> const batch{{1, 2, 3}, {2, 4, 6}};

template <class Trainer> asio::awaitable<double> fit(Trainer& train, int steps) {
  double loss = 0;
  for (int i = 0; i < steps; ++i) {
    auto step = train.step(batch);
    sg::Metrics const metrics = co_await sg::host::async_run(std::move(step), asio::use_awaitable);
    loss = metrics.loss;
  }
  co_return loss;
}

std::atomic<bool> entered{false};
std::atomic<bool> leave{false};
void wait_in_stage() {
  entered = true;
  entered.notify_all();
  leave.wait(false);
}

}  // namespace

TEST_CASE("asio/async_run: a loop in an Asio coroutine trains as one in ordinary code does",
          "[asio]") {
  auto expected = make();
  double loss = 0;
  for (int i = 0; i < 30; ++i) loss = sg::run(expected.step(batch)).loss;

  auto train = make();
  asio::io_context context;
  auto future = asio::co_spawn(context, fit(train, 30), asio::use_future);
  context.run();
  CHECK(future.get() == loss);
  CHECK(train.steps() == 30);
  CHECK(train.parameters()[1].values<float>()[0] == expected.parameters()[1].values<float>()[0]);
}

TEST_CASE("asio/async_run: two pipelines share a thread pool", "[asio]") {
  auto a = make();
  auto b = make(nullptr, 1);
  asio::thread_pool pool(2);
  auto first = asio::co_spawn(pool, fit(a, 20), asio::use_future);
  auto second = asio::co_spawn(pool, fit(b, 20), asio::use_future);
  pool.join();
  CHECK(first.get() == second.get());
}

TEST_CASE("asio/async_run: an exception of a stage arrives at the awaiting coroutine", "[asio]") {
  auto train = make([] { throw std::runtime_error("no electricity"); });
  asio::io_context context;
  auto future = asio::co_spawn(context, fit(train, 1), asio::use_future);
  context.run();
  CHECK_THROWS_WITH(future.get(), "no electricity");
  CHECK(train.steps() == 0);
}

TEST_CASE("asio/async_run: a cancellation slot ends the step and leaves the parameters", "[asio]") {
  entered = leave = false;
  auto train = make(wait_in_stage);
  float const before = train.parameters()[0].values<float>()[0];
  asio::io_context context;
  asio::cancellation_signal cancel;
  std::exception_ptr failure;
  auto const remember = [&](std::exception_ptr e, sg::Metrics) { failure = e; };
  sg::host::async_run(
      train.step(batch),
      asio::bind_executor(context, asio::bind_cancellation_slot(cancel.slot(), remember)));
  entered.wait(false);
  cancel.emit(asio::cancellation_type::terminal);
  leave = true;
  leave.notify_all();
  context.run();
  try {
    REQUIRE(failure != nullptr);
    std::rethrow_exception(failure);
  } catch (sg::Error const& error) {
    CHECK(error.code() == sg::Errc::cancelled);
  }
  CHECK(train.steps() == 0);
  CHECK(train.parameters()[0].values<float>()[0] == before);
}

TEST_CASE("asio/async_run: the slot is free and the handler called in one function of the executor",
          "[asio]") {
  // Of two functions, an executor with several threads could run the second first.
  auto train = make();
  asio::io_context context;
  asio::cancellation_signal cancel;
  bool free_before_handler = false;
  auto const done = [&](std::exception_ptr failure, sg::Metrics) {
    free_before_handler = failure == nullptr && !cancel.slot().has_handler();
    cancel.slot().assign([](asio::cancellation_type) {});  // of the next operation
  };
  sg::host::async_run(train.step(batch), asio::bind_executor(context, asio::bind_cancellation_slot(
                                                                          cancel.slot(), done)));
  CHECK(context.run() == 1);
  CHECK(free_before_handler);
  CHECK(cancel.slot().has_handler());
  CHECK(train.steps() == 1);
}

TEST_CASE("asio/async_run: a loop on a pool of threads hands its slot from step to step",
          "[asio]") {
  // The thread sanitizer is the judge.
  auto train = make(nullptr, 1);
  for (int turn = 0; turn < 10; ++turn) {
    asio::thread_pool pool(3);
    asio::cancellation_signal cancel;
    asio::co_spawn(pool, fit(train, 20),
                   asio::bind_cancellation_slot(cancel.slot(), [](std::exception_ptr, double) {}));
    pool.join();
  }
  CHECK(train.steps() == 200);
}

TEST_CASE("asio/StopOn: a signal stops the training loop between two steps or within one",
          "[asio]") {
  auto train = make();
  asio::io_context context;
  sg::host::StopOn stop(context.get_executor(), {SIGUSR1});
  std::raise(SIGUSR1);
  while (!stop.token().stop_requested()) context.run_one();
  REQUIRE(stop.token().stop_requested());
  try {
    sg::run(train.step(batch, stop.token()));
    FAIL("the step must end with an error");
  } catch (sg::Error const& error) {
    CHECK(error.code() == sg::Errc::cancelled);
  }
  CHECK(train.steps() == 0);
}

TEST_CASE("asio/StopOn: a timer stops a step that does not end", "[asio]") {
  entered = leave = false;
  auto train = make(wait_in_stage);
  asio::io_context context;
  sg::host::StopOn stop(context.get_executor(), {});
  stop.after(std::chrono::milliseconds(1));
  std::thread runner([&] {
    entered.wait(false);
    context.run_one();  // the timer
    leave = true;
    leave.notify_all();
  });
  CHECK_THROWS_AS(sg::run(train.step(batch, stop.token())), sg::Error);
  runner.join();
  stop.cancel();
  context.run();
  CHECK(train.steps() == 0);
}

}  // namespace asio_test
