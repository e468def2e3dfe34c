// SPDX-License-Identifier: Apache-2.0
#include <stagger/cuda/detail/wait_policy.hpp>

#include "catch.hpp"

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gpus_cases.hpp"

using namespace gpus_model;

namespace {

constexpr Case cases[] = {{"1f1b", 4, 1, 6, 4},    {"zb-v", 2, 2, 5, 2},
                          {"chimera", 4, 1, 4, 4}, {"dualpipe", 2, 1, 4, 2},
                          {"gpipe", 3, 1, 4, 2},   {"hanayo", 2, 2, 4, 2},
                          {"zb-h2", 3, 1, 6, 3},   {"looped-bfs", 2, 2, 5, 2}};

sg::cuda::Gpus ahead(sg::cuda::Gpus gpus, int steps) {
  gpus.ahead = steps;
  return gpus;
}

std::uint64_t calls_that_cost() {
  using si::Call;
  std::uint64_t sum = 0;
  for (Call const call : {Call::event_create, Call::stream_create, Call::malloc, Call::malloc_host,
                          Call::malloc_from_pool, Call::pool_create, Call::stream_synchronize,
                          Call::stream_query, Call::memcpy, Call::memset, Call::graph_instantiate})
    sum += si::calls(call);
  return sum;
}

}  // namespace

TEST_CASE("cuda/Gpus: steps have the host's bits however far ahead the host is", "[cuda]") {
  int number = 0;
  for (auto const& c : cases) {
    int const steps_ahead = 1 + number++ % 3;
    if (sanitized && number % 3 != 0) continue;
    CAPTURE(c.name, steps_ahead);
    si::Session const session;
    si::jitter(5);
    {
      auto const cuts = even_cuts(c.ranks * c.chunks);
      auto train = over(ahead(on_gpus(first(c.gpus)), steps_ahead), optimizer(), cuts,
                        schedule_of(c), clipping());
      auto host = sg::Pipeline{model()}.with(sg::partition::Cuts{cuts}, schedule_of(c), Loss{},
                                             optimizer(), sg::host::Threads{1}, clipping());
      auto const data = batches(8, c.microbatches, true);
      std::vector<sg::Ticket> tickets;
      for (auto const& one : data) tickets.push_back(sg::enqueue(train.step(one)));
      for (std::size_t s = 0; s < data.size(); ++s) {
        auto const here = sg::run(host.step(data[s]));
        auto const there = tickets[s].metrics();
        REQUIRE(there.loss == here.loss);
        REQUIRE(there.gradient_norm == here.gradient_norm);
      }
      REQUIRE((bits(train) == bits(host)));
    }
    si::reset();
    REQUIRE(session.left() == si::Live{});
  }
}

TEST_CASE("cuda/Gpus: the host goes on while GPUs are held up, and waits at the bound", "[cuda]") {
  int const steps_ahead = GENERATE(1, 3);
  si::Session const session;
  {
    auto const data = batches(6, 3, false);
    LetGo const let_go;
    auto train = over(ahead(on_gpus({0, 1, 2}), steps_ahead), optimizer(), even_cuts(3),
                      schedule_of({"1f1b", 3, 1, 3, 3}), clipping());
    sg::run(train.step(data[0]));
    hold_from(1);
    std::vector<sg::Ticket> tickets;
    for (int s = 1; s <= steps_ahead; ++s) {  // returns although nothing of it can be done
      tickets.push_back(sg::enqueue(train.step(data[static_cast<std::size_t>(s)])));
      CHECK_FALSE(tickets.back().done());
    }
    std::atomic<bool> asked{false};
    std::thread later([&] {
      asked.wait(false);
      hold_from(2);
    });
    asked = true;
    asked.notify_all();
    tickets.push_back(sg::enqueue(train.step(data[static_cast<std::size_t>(steps_ahead) + 1])));
    CHECK(tickets[0].done());  // it has waited for the first step
    CHECK_FALSE(tickets[1].done());
    later.join();
    hold_from(100);
    train.settle();
    for (auto& ticket : tickets) CHECK(ticket.done());
    auto const course = expected_course(data, true);
    auto const last = static_cast<std::size_t>(steps_ahead) + 1;
    CHECK(tickets.back().metrics().loss == course.loss[last]);
    CHECK((bits(train) == course.bits[last]));
  }
  si::reset();
  CHECK(session.left() == si::Live{});
}

TEST_CASE("cuda/Gpus: enqueued steps make, allocate and synchronise nothing", "[cuda]") {
  si::Session const session;
  auto train = over(ahead(on_gpus({0, 1, 2, 3}), 2), optimizer(), even_cuts(4),
                    schedule_of({"chimera", 4, 1, 4, 4}), clipping());
  std::vector<Batch> const data = {batch(0, 4, false), batch(1, 4, false)};
  std::optional<sg::Ticket> lanes[2];
  auto const steps = [&](int count) {
    for (int s = 0; s < count; ++s) {
      auto const lane = static_cast<std::size_t>(s % 2);
      if (lanes[lane]) lanes[lane]->wait();
      lanes[lane] = sg::enqueue(train.step(data[lane]));
    }
  };
  steps(4);
  auto const before = calls_that_cost();
  steps(8);
  train.settle();
  CHECK(calls_that_cost() == before);
}

TEST_CASE("cuda/Gpus: a step that cannot be enqueued leaves those before it and itself out",
          "[cuda]") {
  auto const data = batches(4, 3, true);
  auto const course = expected_course(data, true);
  int number = 0;
  for (auto const call :
       {si::Call::launch_kernel, si::Call::event_record, si::Call::stream_wait_event,
        si::Call::memcpy_async, si::Call::memset_async})
    for (int nth = 1; nth <= 60; nth += nth < 3 ? 1 : 11) {
      if (sanitized && number++ % 9 != 0) continue;
      CAPTURE(static_cast<int>(call), nth);
      si::Session const session;
      {
        auto train = over(ahead(on_gpus({0, 1, 2}), 3), optimizer(), even_cuts(3),
                          schedule_of({"1f1b", 3, 1, 3, 3}), clipping());
        auto first = sg::enqueue(train.step(data[0]));
        auto second = sg::enqueue(train.step(data[1]));
        si::fail(call, nth, cudaErrorLaunchFailure);
        bool const failed =
            !words_of([&] { auto const third = sg::enqueue(train.step(data[2])); }).empty();
        si::fail(si::Call::comm_init, 1, 0);  // no more of it
        REQUIRE(first.metrics().loss == course.loss[0]);
        REQUIRE(second.metrics().loss == course.loss[1]);
        REQUIRE((bits(train) == course.bits[failed ? 1 : 2]));
        if (failed) sg::run(train.step(data[2]));
        REQUIRE(sg::enqueue(train.step(data[3])).metrics().loss == course.loss[3]);
      }
      si::reset();
      REQUIRE(session.left() == si::Live{});
    }
}

TEST_CASE("cuda/Gpus: GPUs that hang are an error in time, told by the ticket of the step",
          "[cuda]") {
  si::Session const session;
  auto const data = batches(4, 3, false);
  LetGo const let_go;
  auto const start = std::chrono::steady_clock::now();
  {
    auto train = over(ahead(on_gpus({0, 1, 2}), 2), optimizer(), even_cuts(3),
                      schedule_of({"1f1b", 3, 1, 3, 3}), clipping(0.3));
    sg::run(train.step(data[0]));
    hold_from(1);
    auto first = sg::enqueue(train.step(data[1]));
    auto second = sg::enqueue(train.step(data[2]));
    try {
      auto const third = sg::enqueue(train.step(data[3]));
      FAIL();
    } catch (sg::Error const& error) {
      CHECK(error.code() == sg::Errc::device);
    }
    auto const words = words_of([&] { first.metrics(); });
    CAPTURE(words);
    CHECK(words.find("step 2: the GPUs did not move for 0.3 s: rank 0 is in 0F0") == 0);
    CHECK(words_of([&] { second.metrics(); }) == words);
    CHECK_THROWS_AS(train.parameters(), sg::Error);
  }
  end_left_behind();
  {  // the destructor waits no longer either
    auto train = over(ahead(on_gpus({0, 1, 2}), 2), optimizer(), even_cuts(3),
                      schedule_of({"1f1b", 3, 1, 3, 3}), clipping(0.3));
    hold_from(0);
    static_cast<void>(sg::enqueue(train.step(data[1])));
  }
  CHECK(std::chrono::steady_clock::now() - start <
        std::chrono::seconds(60));  // an end, not a speed
  end_left_behind();
}
