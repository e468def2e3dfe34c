// SPDX-License-Identifier: Apache-2.0
#include <stagger/engine/step.hpp>

#include "catch.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include <stagger/engine/machine.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/pipe_dream.hpp>
#include <stagger/staleness/weight_stashing.hpp>
#ifndef TEST_SANITIZED
#include <sys/resource.h>

#include <fstream>
#include <system_error>
#endif

#include "trap_model.hpp"

namespace step_test {

using namespace trap_model;

namespace {

constexpr int microbatches = 3;

using Threaded = decltype(pipeline(sg::host::Threads{}, make_hook()));
using Virtual = decltype(pipeline(sg::sim::VirtualClock{}, make_hook()));

Threaded threaded(int threads) { return pipeline(sg::host::Threads{threads}, make_hook()); }

/// A coroutine that nobody waits for and no runner drives.
struct Loose {
  struct promise_type {
    Loose get_return_object() noexcept { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() noexcept {}
    void unhandled_exception() noexcept { std::abort(); }
  };
};

template <class Trainer> sg::Task<double> fit(Trainer& train, int steps) {
  double loss = 0;
  for (int s = 0; s < steps; ++s) {
    auto const data = batch(microbatches, s);
    sg::Metrics const metrics = co_await train.step(data);
    loss += metrics.loss;
  }
  co_return loss;
}

}  // namespace

TEST_CASE("engine/Step: dropped, it does nothing", "[engine]") {
  auto train = threaded(2);
  auto const before = bits(train);
  auto const data = batch(microbatches);
  {
    auto const dropped = train.step(data);
  }
  CHECK(train.steps() == 0);
  CHECK(bits(train) == before);
  sg::run(train.step(data));
  CHECK(bits(train) == undisturbed(microbatches, 1)[1]);
}

TEST_CASE("engine/Step: each runs what it was made for, however many were made before",
          "[engine]") {
  auto const course = undisturbed(microbatches, 2);
  auto train = threaded(2);
  auto const first = batch(microbatches, 0);
  auto const second = batch(microbatches, 1);
  std::vector<float> outputs(5);
  std::vector<float> const inputs(5, 0.5F);
  auto a = train.step(first);
  auto b = train.step(second);
  auto evaluated = train.evaluate(second);
  auto predicted = train.predict(inputs, outputs);
  sg::run(std::move(a));
  CHECK(bits(train) == course[1]);
  double const loss = sg::run(std::move(evaluated)).loss;
  CHECK(loss == sg::run(train.evaluate(second)).loss);
  sg::run(std::move(predicted));
  CHECK(outputs[0] != 0);
  CHECK(outputs == std::vector<float>(5, outputs[0]));
  CHECK(bits(train) == course[1]);
  CHECK(sg::run(std::move(b)).loss == loss);
  CHECK(bits(train) == course[2]);
  CHECK(train.steps() == 2);
}

TEST_CASE("engine/Step: outlives its trainer, and follows it where it moves", "[engine]") {
  auto const data = batch(microbatches);
  std::optional<Threaded> train(threaded(2));
  double const loss = sg::run(train->evaluate(data)).loss;
  auto step = train->step(data);
  train.reset();
  CHECK(sg::run(std::move(step)).loss == loss);

  auto here = threaded(1);
  auto ahead = here.step(data);
  auto there = std::move(here);
  sg::run(std::move(ahead));
  CHECK(bits(there) == undisturbed(microbatches, 1)[1]);
  auto next = threaded(3);
  next = std::move(there);
  auto const second = batch(microbatches, 1);
  sg::run(next.step(second));
  CHECK(bits(next) == undisturbed(microbatches, 2)[2]);
  next.optimizer().rate = 0;
  next.optimizer().momentum = 0;
  auto const before = next.parameters()[0].values<float>()[0];
  sg::run(next.step(second));
  CHECK(next.parameters()[0].values<float>()[0] == before);
}

TEST_CASE("engine/Trainer: may go right after a failed step, or before it ever ran", "[engine]") {
  for (int const threads : {1, 3}) {
    auto const hook = make_hook();
    auto train = std::make_optional(pipeline(sg::host::Threads{threads}, hook));
    *hook = [](Call const& call) {
      if (call == Call{Function::forward, 2, 0}) throw Trapped("");
    };
    auto const data = batch(microbatches);
    CHECK_THROWS_AS(sg::run(train->step(data)), Trapped);
    train.reset();
  }
  auto unused = threaded(4);
}

TEST_CASE("engine/Task: steps awaited within run have the bits of steps from ordinary code",
          "[engine]") {
  auto const course = undisturbed(microbatches, 4);
  auto const check = [&](auto train) {
    auto plain = threaded(1);
    double loss = 0;
    for (int s = 0; s < 4; ++s) {
      auto const data = batch(microbatches, s);
      loss += sg::run(plain.step(data)).loss;
    }
    CHECK(sg::run(fit(train, 4)) == loss);
    CHECK(bits(train) == course[4]);
  };
  check(threaded(1));
  check(threaded(3));
  check(pipeline(sg::sim::VirtualClock{}, make_hook()));
}

TEST_CASE("engine/Task: steps that it awaits run on the thread that called run", "[engine]") {
  auto const hook = make_hook();
  auto train = pipeline(sg::host::Threads{1}, hook);
  bool elsewhere = false;
  *hook = [&, here = std::this_thread::get_id()](Call const&) {
    elsewhere = elsewhere || std::this_thread::get_id() != here;
  };
  sg::run(fit(train, 2));
  CHECK_FALSE(elsewhere);
}

TEST_CASE("engine/Task: exceptions of steps and of its own travel to who awaits", "[engine]") {
  auto const hook = make_hook();
  auto train = pipeline(sg::host::Threads{2}, hook);
  auto const data = batch(microbatches);
  *hook = [](Call const& call) {
    if (call == Call{Function::weight, 1, 1}) throw Trapped("in a step");
  };
  CHECK_THROWS_WITH(sg::run(fit(train, 1)), "in a step");

  auto const catches = [&](auto& trainer) -> sg::Task<int> {
    int caught = 0;
    for (int i = 0; i < 3; ++i) {
      try {
        co_await trainer.step(data);
      } catch (Trapped const&) {
        ++caught;
        if (i == 1) *hook = [](Call const&) {};
      }
    }
    co_return caught;
  };
  CHECK(sg::run(catches(train)) == 2);
  CHECK(train.steps() == 1);

  auto const inner = []() -> sg::Task<> {
    throw std::logic_error("of its own");
    co_return;
  };
  auto const outer = [&]() -> sg::Task<> { co_await inner(); };
  CHECK_THROWS_WITH(sg::run(outer()), "of its own");

  auto const refused = [&]() -> sg::Task<> {
    Batch const none;
    co_await train.step(none);
  };
  CHECK_THROWS_WITH(sg::run(refused()), Catch::Contains("0 microbatches"));
}

TEST_CASE("engine/Task: tasks await tasks, and run may be called within", "[engine]") {
  auto const course = undisturbed(microbatches, 2);
  auto outer = threaded(2);
  auto inner = threaded(2);
  auto const nested = [&]() -> sg::Task<std::vector<double>> {
    std::vector<double> losses;
    losses.push_back(co_await fit(outer, 1));
    losses.push_back(sg::run(fit(inner, 2)));
    auto const data = batch(microbatches, 1);
    losses.push_back(sg::run(outer.step(data)).loss);
    co_return losses;
  };
  auto const losses = sg::run(nested());
  CHECK(bits(outer) == course[2]);
  CHECK(bits(inner) == course[2]);
  CHECK(losses[0] + losses[2] == Approx(losses[1]).epsilon(1e-12));
}

TEST_CASE("engine/Task: coroutines that it starts take turns on its thread", "[engine]") {
  // Two pipelines at once: both steps wait for the one runner at the same time.
  auto const course = undisturbed(microbatches, 5);
  auto a = threaded(1);
  auto b = threaded(2);
  int done = 0;
  std::coroutine_handle<> waiting;
  auto const train_all = [&](Threaded& train) -> Loose {
    for (int s = 0; s < 5; ++s) {
      auto const data = batch(microbatches, s);
      co_await train.step(data);
    }
    if (++done == 2 && waiting) std::exchange(waiting, nullptr).resume();
  };
  struct All {
    std::coroutine_handle<>& waiting_handle;
    int const& finished;
    bool await_ready() const noexcept { return finished == 2; }
    void await_suspend(std::coroutine_handle<> handle) const noexcept { waiting_handle = handle; }
    void await_resume() const noexcept {}
  };
  auto const both = [&]() -> sg::Task<> {
    train_all(a);
    train_all(b);
    All all{waiting, done};
    co_await all;
  };
  sg::run(both());
  CHECK(bits(a) == course[5]);
  CHECK(bits(b) == course[5]);
}

TEST_CASE("engine/Task: steps of coroutines that it started are taken although it has ended",
          "[engine]") {
  auto const course = undisturbed(microbatches, 3);
  auto a = threaded(1);
  auto b = threaded(2);
  int ended = 0;
  auto const train_on = [&](Threaded& train) -> Loose {
    for (int s = 0; s < 3; ++s) {
      auto const data = batch(microbatches, s);
      co_await train.step(data);
    }
    ++ended;
  };
  auto const starts = [&]() -> sg::Task<int> {
    train_on(a);
    train_on(b);
    co_return 7;
  };
  CHECK(sg::run(starts()) == 7);
  CHECK(ended == 2);
  CHECK(bits(a) == course[3]);
  CHECK(bits(b) == course[3]);
  auto const data = batch(microbatches, 3);
  sg::run(a.step(data));  // not busy
  CHECK(a.steps() == 4);
}

TEST_CASE("engine/Task: may be resumed by another thread and go on there", "[engine]") {
  auto const course = undisturbed(microbatches, 2);
  auto train = threaded(2);
  struct OnThread {
    std::thread& thread;
    bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<> handle) const {
      thread = std::thread([handle] { handle.resume(); });
    }
    void await_resume() const noexcept {}
  };
  std::thread thread;
  auto const body = [&]() -> sg::Task<int> {
    auto const first = batch(microbatches, 0);
    co_await train.step(first);
    OnThread hop{thread};
    co_await hop;
    auto const second = batch(microbatches, 1);
    co_await train.step(second);
    co_return 7;
  };
  CHECK(sg::run(body()) == 7);
  thread.join();
  CHECK(bits(train) == course[2]);
}

TEST_CASE(
    "engine/Step: awaited without a runner, it runs on the engine's threads and resumes there",
    "[engine]") {
  auto const course = undisturbed(microbatches, 3);
  auto train = threaded(2);
  std::promise<std::vector<std::thread::id>> done;
  auto const body = [&]() -> Loose {
    std::vector<std::thread::id> resumed_on;
    for (int s = 0; s < 3; ++s) {
      auto const data = batch(microbatches, s);
      co_await train.step(data);
      resumed_on.push_back(std::this_thread::get_id());
    }
    done.set_value(resumed_on);
  };
  body();
  auto const resumed_on = done.get_future().get();
  CHECK(resumed_on[0] != std::this_thread::get_id());
  CHECK(resumed_on[1] == resumed_on[0]);
  CHECK(resumed_on[2] == resumed_on[0]);
  CHECK(bits(train) == course[3]);
  auto const data = batch(microbatches, 3);
  sg::run(train.step(data));  // and back on ours
  CHECK(train.steps() == 4);
}

TEST_CASE("engine/Step: awaited without a runner, a failed step throws where it is awaited",
          "[engine]") {
  auto const hook = make_hook();
  auto train = pipeline(sg::host::Threads{2}, hook);
  auto const data = batch(microbatches);
  *hook = [](Call const& call) {
    if (call == Call{Function::loss, 3, 0}) throw Trapped("");
  };
  std::promise<int> done;
  auto const body = [&]() -> Loose {
    int caught = 0;
    for (int i = 0; i < 3; ++i) {
      try {
        co_await train.step(data);
      } catch (Trapped const&) {
        ++caught;
        *hook = [](Call const&) {};
      }
    }
    done.set_value(caught);
  };
  body();
  CHECK(done.get_future().get() == 1);
  CHECK(train.steps() == 2);
}

namespace {

/// Keeps its promise when the thread ends that made it.
struct AtThreadExit {
  std::promise<double>* done = nullptr;
  double value = 0;
  ~AtThreadExit() {
    if (done != nullptr) done->set_value(value);
  }
};
thread_local AtThreadExit at_thread_exit;

}  // namespace

TEST_CASE("engine/Step: a coroutine may own the pipeline that resumes it, and end", "[engine]") {
  for (int i = 0; i < 20; ++i) {
    std::promise<double> done;
    auto const body = [&](Threaded train) -> Loose {
      auto const data = batch(microbatches);
      double loss = 0;
      for (int s = 0; s < 1 + i % 2; ++s) loss = (co_await train.step(data)).loss;
      at_thread_exit.value = loss;
      at_thread_exit.done = &done;
    };
    body(threaded(1 + i % 3));
    CHECK(done.get_future().get() > 0);
  }
}

TEST_CASE("engine/Step: under the virtual clock an awaited step is done at once", "[engine]") {
  auto train = pipeline(sg::sim::VirtualClock{}, make_hook());
  bool done = false;
  auto const body = [&]() -> Loose {
    auto const data = batch(microbatches);
    co_await train.step(data);
    done = true;
  };
  body();
  CHECK(done);
  CHECK(bits(train) == undisturbed(microbatches, 1)[1]);
}

TEST_CASE("engine/Step: its stop token can be put in its place before it begins", "[engine]") {
  auto train = threaded(2);
  auto const data = batch(microbatches);
  stagger::stop_source stop;
  auto step = train.step(data);
  CHECK_FALSE(step.stop_token().stop_possible());
  step.stop_token(stop.get_token());
  stop.request_stop();
  CHECK_THROWS_WITH(sg::run(std::move(step)), Catch::Contains("cancelled"));
}

TEST_CASE("engine/Pipeline: one model makes any number of trainers, all from the same parameters",
          "[engine]") {
  auto const hook = make_hook();
  sg::Pipeline model{Layer{hook}, std::vector<Layer>(2, Layer{hook, 0.8F}), Layer{hook, 0.6F}};
  auto one = model.on_one_device(Loss{hook}, optimizer());
  auto a = model.with(Loss{hook}, optimizer(), sg::host::Threads{2});
  auto b = std::move(model).with(Loss{hook}, optimizer(), sg::schedule::GPipe{});
  CHECK(a.stages() == 4);
  CHECK(b.stages() == 4);
  CHECK(bits(a) == bits(one));
  CHECK(bits(b) == bits(one));
  auto const data = batch(microbatches);
  one.step(data);
  sg::run(a.step(data));
  sg::run(b.step(data));
  CHECK(bits(a) == bits(one));
  CHECK(bits(b) == bits(one));
}

TEST_CASE("engine/Step: keeps a batch that was a temporary", "[engine]") {
  auto const course = undisturbed(microbatches, 3);
  auto train = threaded(2);
  double const loss = sg::run(train.evaluate(batch(microbatches, 0))).loss;
  auto first = train.step(batch(microbatches, 0));
  auto second = train.step(batch(microbatches, 1));
  auto evaluated = train.evaluate(batch(microbatches, 0));
  std::vector<float> outputs(2);
  std::vector<float> others(2);
  auto predicted = train.predict(std::vector<float>(2, 0.5F), outputs);
  auto copied = train.predict(std::array<float, 2>{0.5F, 0.5F}, std::span(others));
  std::vector<float> const overwritten(64, 1e30F);  // where a temporary may have been
  auto moved = std::move(first);
  CHECK(sg::run(evaluated).loss == loss);
  sg::run(std::move(predicted));
  sg::run(std::move(copied));
  CHECK(outputs == others);
  std::vector<float> const inputs(2, 0.5F);
  sg::run(train.predict(inputs, others));
  CHECK(outputs == others);
  CHECK(sg::run(moved).loss == loss);
  CHECK(bits(train) == course[1]);
  sg::run(second);
  CHECK(bits(train) == course[2]);
  auto last = std::make_optional(train.step(batch(microbatches, 2)));
  auto there = std::move(train);
  sg::run(*last);
  last.reset();
  CHECK(bits(there) == course[3]);
}

TEST_CASE("engine/Step: keeps a copy of a batch that was a const temporary", "[engine]") {
  using Batch = decltype(batch(0));
  auto const made = [](int step) -> Batch const { return batch(microbatches, step); };
  auto const inputs = [](float x) -> std::vector<float> const { return {x, x}; };
  auto const course = undisturbed(microbatches, 2);
  auto train = threaded(2);
  auto const first = batch(microbatches, 0);
  double const loss = sg::run(train.evaluate(first)).loss;
  auto step = train.step(made(0));
  auto moved = train.step(std::move(std::as_const(first)));
  auto evaluated = train.evaluate(made(0));
  std::vector<float> outputs(2);
  std::vector<float> others(2);
  std::vector<float> const known(2, 0.5F);
  auto predicted = train.predict(inputs(0.5F), outputs);
  std::vector<float> const overwritten(64, 1e30F);  // where a temporary may have been
  CHECK(sg::run(evaluated).loss == loss);
  sg::run(std::move(predicted));
  sg::run(train.predict(known, others));
  CHECK(outputs == others);
  sg::run(step);
  CHECK(bits(train) == course[1]);
  CHECK(first.inputs == batch(microbatches, 0).inputs);

  auto const flushless = [] {
    return sg::Pipeline{Layer{make_hook()}, Layer{make_hook(), 0.8F}}.with(
        sg::schedule::PipeDream{}, sg::staleness::WeightStashing{}, sg::host::Threads{2},
        Loss{make_hook()}, optimizer());
  };
  auto kept = flushless();
  auto named = flushless();
  auto stream = kept.stream(made(1));
  std::vector<float> const again(64, 1e30F);
  sg::run(stream);
  auto const second = batch(microbatches, 1);
  sg::run(named.stream(second));
  CHECK(bits(kept) == bits(named));
}

namespace {

/// A coroutine that its owner destroys.
struct Owned {
  struct promise_type {
    Owned get_return_object() noexcept {
      return Owned{std::coroutine_handle<promise_type>::from_promise(*this)};
    }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() noexcept {}
    void unhandled_exception() noexcept { std::abort(); }
  };
  explicit Owned(std::coroutine_handle<promise_type> made) : handle(made) {}
  Owned(Owned&& other) noexcept : handle(std::exchange(other.handle, nullptr)) {}
  Owned& operator=(Owned&&) = delete;
  ~Owned() {
    if (handle) handle.destroy();
  }
  std::coroutine_handle<promise_type> handle;
};

template <class Trainer> Owned awaits_one(Trainer& train, int& ended) {
  co_await train.step(batch(microbatches));
  ++ended;
}

}  // namespace

TEST_CASE("engine/Step: a coroutine that is destroyed in the queue of run ends its step",
          "[engine]") {
  // Of three that wait, each in turn, and then all of them.
  for (int destroyed = 0; destroyed < 4; ++destroyed) {
    CAPTURE(destroyed);
    auto const check = [&](auto make) {
      auto a = make();
      auto b = make();
      auto c = make();
      auto last = make();
      int ended = 0;
      std::vector<Owned> waiting;
      auto const body = [&]() -> sg::Task<> {
        for (auto* const train : {&a, &b, &c}) waiting.push_back(awaits_one(*train, ended));
        if (destroyed == 3) waiting.clear();
        for (int w = 0; std::cmp_less(w, waiting.size()); ++w)
          if (w == destroyed) Owned const gone = std::move(waiting[static_cast<std::size_t>(w)]);
        co_await last.step(batch(microbatches));
        ++ended;
      };
      sg::run(body());
      CHECK(ended == (destroyed == 3 ? 1 : 3));
      auto const course = undisturbed(microbatches, 1);
      int number = 0;
      for (auto* const train : {&a, &b, &c}) {
        bool const was = destroyed == 3 || number++ == destroyed;
        CHECK(train->steps() == (was ? 0 : 1));
        CHECK(bits(*train) == course[was ? 0 : 1]);
        if (was) sg::run(train->step(batch(microbatches)));  // not busy
        CHECK(bits(*train) == course[1]);
      }
    };
    check([] { return threaded(2); });
    check([] { return pipeline(sg::sim::VirtualClock{}, make_hook()); });
  }
}

TEST_CASE("engine/Step: a coroutine that is destroyed while the engine's threads run its step",
          "[engine]") {
  auto const course = undisturbed(microbatches, 1);
  auto const hook = make_hook();
  auto train = pipeline(sg::host::Threads{2}, hook);
  std::promise<void> reached;
  std::promise<void> go_on;
  std::atomic<bool> first{true};
  *hook = [&](Call const& call) {
    if (!(call == Call{Function::input, 2, 0}) || !first.exchange(false)) return;
    reached.set_value();
    go_on.get_future().wait();
  };
  int ended = 0;
  auto owned = std::make_optional(awaits_one(train, ended));
  reached.get_future().wait();
  std::thread opens([&] {
    while (!train.machine().failed()) std::this_thread::yield();  // until it has been cancelled
    go_on.set_value();
  });
  owned.reset();  // waits for the action that runs
  opens.join();
  CHECK(ended == 0);
  CHECK(train.steps() == 0);
  CHECK(bits(train) == course[0]);
  sg::run(train.step(batch(microbatches)));
  CHECK(bits(train) == course[1]);
}

TEST_CASE("engine/Step: a coroutine that is destroyed before its step has begun on another thread",
          "[engine]") {
  auto const hook = make_hook();
  auto train = pipeline(sg::host::Threads{2}, hook);
  std::atomic<bool> holds{true};  // a step that begins, until it has been cancelled
  *hook = [&](Call const&) {
    while (holds && !train.machine().failed()) std::this_thread::yield();
  };
  int ended = 0;
  for (int i = 0; i < 20; ++i) static_cast<void>(awaits_one(train, ended));
  CHECK(ended == 0);
  CHECK(train.steps() == 0);
  holds = false;
  std::promise<void> done;
  // On the engine's own thread, which would have to run the step that is taken back.
  auto const body = [&]() -> Loose {
    co_await train.step(batch(microbatches));
    static_cast<void>(awaits_one(train, ended));
    co_await train.step(batch(microbatches));
    done.set_value();
  };
  body();
  done.get_future().wait();
  CHECK(ended == 0);
  CHECK(train.steps() == 2);
}

#ifndef TEST_SANITIZED
TEST_CASE(
    "engine/Trainer: a thread that cannot be made ends the step with that error, and the next one "
    "is right",
    "[engine]") {
  auto const many = [] {  // more threads than the stacks that the C library keeps for reuse
    return sg::Pipeline{std::vector<Layer>(24, Layer{make_hook()})}.with(
        sg::host::Threads{24}, small_model::made(sg::schedule::OneFOneB{}), Loss{make_hook()},
        optimizer());
  };
  auto train = many();
  auto loose = many();
  auto undisturbed_one = many();
  auto const data = batch(microbatches);
  train.prepare(microbatches);
  loose.prepare(microbatches);
  std::string message;
  bool awaited_throws = false;
  std::promise<void> awaited;
  auto const body = [&]() -> Loose {
    try {
      co_await loose.step(data);
    } catch (std::system_error const&) {
      awaited_throws = true;
    }
    awaited.set_value();
  };
  long pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_AS, &before) == 0);
  rlimit tight = before;
  tight.rlim_cur = static_cast<rlim_t>(pages) * 4096 + (rlim_t{1} << 20U);  // no room for a stack
  REQUIRE(setrlimit(RLIMIT_AS, &tight) == 0);
  try {
    sg::run(train.step(data));
  } catch (std::system_error const& error) {
    message = error.what();
  }
  body();
  awaited.get_future().wait();
  setrlimit(RLIMIT_AS, &before);
  CHECK(message != "");
  CHECK(awaited_throws);
  CHECK(train.steps() == 0);
  sg::run(undisturbed_one.step(data));
  sg::run(train.step(data));
  CHECK(bits(train) == bits(undisturbed_one));
  sg::run(loose.step(data));
  CHECK(bits(loose) == bits(train));
}
#endif

}  // namespace step_test
