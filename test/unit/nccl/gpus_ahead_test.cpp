// SPDX-License-Identifier: Apache-2.0
#include <stagger/nccl/detail/wait_policy.hpp>

#include "catch.hpp"

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gpus_cases.hpp"
#include "gpus_processes.hpp"

using namespace gpus_model;
using namespace gpus_processes;

namespace {

constexpr Case cases[] = {{"1f1b", 4, 1, 6, 4},    {"zb-v", 2, 2, 5, 2},
                          {"chimera", 4, 1, 4, 4}, {"dualpipe", 2, 1, 4, 2},
                          {"gpipe", 3, 1, 4, 2},   {"hanayo", 2, 2, 4, 2},
                          {"zb-h2", 3, 1, 6, 3},   {"looped-bfs", 2, 2, 5, 2}};

sg::nccl::Gpus ahead(sg::nccl::Gpus gpus, int steps) {
  gpus.ahead = steps;
  return gpus;
}

std::uint64_t calls_that_cost() {
  using si::Call;
  std::uint64_t sum = 0;
  for (Call const call :
       {Call::event_create, Call::stream_create, Call::malloc, Call::malloc_host,
        Call::malloc_from_pool, Call::pool_create, Call::stream_synchronize, Call::stream_query,
        Call::memcpy, Call::memset, Call::comm_init, Call::graph_instantiate})
    sum += si::calls(call);
  return sum;
}

}  // namespace

TEST_CASE("nccl/Gpus: steps have the host's bits however far ahead the host is", "[nccl]") {
  int number = 0;
  for (auto const& c : cases) {
    int const steps_ahead = 1 + number++ % 3;
    if (sanitized && number % 3 != 0) continue;
    CAPTURE(c.name, steps_ahead);
    si::Session const session;
    si::jitter(5);
    si::in_progress_polls(1);
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

TEST_CASE("nccl/Gpus: the host goes on while GPUs are held up, and waits at the bound", "[nccl]") {
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

TEST_CASE("nccl/Gpus: processes run ahead, each for itself, with the host's bits", "[nccl]") {
  int number = 0;
  for (Case const& c :
       {Case{"1f1b", 4, 1, 6, 4}, Case{"chimera", 2, 1, 4, 2}, Case{"zb-v", 2, 2, 5, 2}}) {
    if (sanitized && number++ != 1) continue;
    CAPTURE(c.name);
    si::Session const session;
    si::jitter(3);
    si::in_progress_polls(1);
    auto const cuts = even_cuts(c.ranks * c.chunks);
    auto const data = batches(7, c.microbatches, false);
    auto host = sg::Pipeline{model()}.with(sg::partition::Cuts{cuts}, schedule_of(c), Loss{},
                                           optimizer(), sg::host::Threads{1}, clipping());
    std::vector<sg::Metrics> expected;
    for (auto const& one : data) expected.push_back(sg::run(host.step(one)));
    auto const after = bits(host);
    auto const wrong =
        in_processes(c.gpus, on_gpus({}), [&](sg::nccl::Gpus gpus, int) -> std::string {
          auto train = over(ahead(gpus, 2), optimizer(), cuts, schedule_of(c), clipping());
          std::string words;
          std::vector<sg::Ticket> tickets;
          for (auto const& one : data) tickets.push_back(sg::enqueue(train.step(one)));
          train.gather_parameters();  // waits by itself
          if (bits(train) != after) words += "parameters ";
          for (std::size_t s = 0; s < data.size(); ++s) {
            auto const got = tickets[s].metrics();
            if (got.loss != expected[s].loss) words += "loss ";
            if (got.gradient_norm != expected[s].gradient_norm) words += "norm ";
          }
          return words;
        });
    for (auto const& words : wrong) CHECK(words == "");
  }
}

TEST_CASE("nccl/Gpus: enqueued steps make, allocate and synchronise nothing", "[nccl]") {
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

TEST_CASE("nccl/Gpus: a step that cannot be enqueued leaves those before it and itself out",
          "[nccl]") {
  auto const data = batches(4, 3, true);
  auto const course = expected_course(data, true);
  int number = 0;
  for (auto const call :
       {si::Call::launch_kernel, si::Call::event_record, si::Call::stream_wait_event,
        si::Call::memcpy_async, si::Call::memset_async, si::Call::group_end})
    for (int nth = 1; nth <= 60; nth += nth < 3 ? 1 : 11) {
      if (sanitized && number++ % 9 != 0) continue;
      CAPTURE(static_cast<int>(call), nth);
      si::Session const session;
      {
        auto train = over(ahead(on_gpus({0, 1, 2}), 3), optimizer(), even_cuts(3),
                          schedule_of({"1f1b", 3, 1, 3, 3}), clipping());
        auto first = sg::enqueue(train.step(data[0]));
        auto second = sg::enqueue(train.step(data[1]));
        bool const of_nccl = call == si::Call::group_end;
        si::fail(
            call, nth,
            of_nccl ? static_cast<int>(ncclSystemError) : static_cast<int>(cudaErrorLaunchFailure));
        bool const failed =
            !words_of([&] { auto const third = sg::enqueue(train.step(data[2])); }).empty();
        si::fail(si::Call::comm_init, 1, 0);  // no more of it
        REQUIRE(first.metrics().loss == course.loss[0]);
        REQUIRE(second.metrics().loss == course.loss[1]);
        bool decided = false;  // then parameters are lost, and it says so
        try {
          REQUIRE((bits(train) == course.bits[failed ? 1 : 2]));
        } catch (sg::Error const& error) {
          REQUIRE(error.code() == sg::Errc::device);
          decided = true;
        }
        auto const words = words_of([&] {
          if (failed) sg::run(train.step(data[2]));
          REQUIRE(sg::enqueue(train.step(data[3])).metrics().loss == course.loss[3]);
        });
        CAPTURE(words);
        if (of_nccl && failed) REQUIRE_FALSE(words.empty());  // its communicators are gone
        if (decided) REQUIRE_FALSE(words.empty());
        REQUIRE((words.empty() || has(words, "lost in an earlier step")));
      }
      si::reset();
      REQUIRE(session.left() == si::Live{});
    }
}

TEST_CASE("nccl/Gpus: GPUs that hang are an error in time, told by the ticket of the step",
          "[nccl]") {
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

TEST_CASE("nccl/Gpus: a process that ends while steps are in flight is told by their tickets",
          "[nccl]") {
  bool const hangs = GENERATE(false, true);
  si::Session const session;
  auto const data = batches(4, 3, false);
  auto const course = expected_course(data, true);
  std::atomic<bool> other_is_done{false};
  auto const wrong =
      in_processes(2, on_gpus({}), [&](sg::nccl::Gpus gpus, int process) -> std::string {
        auto train = over(ahead(gpus, 2), optimizer(), even_cuts(2),
                          schedule_of({"gpipe", 2, 1, 3, 2}), clipping(process == 0 ? 0.5 : 60));
        std::string words;
        auto first = sg::enqueue(train.step(data[0]));
        auto second = sg::enqueue(train.step(data[1]));
        if (process == 1) {
          if (first.metrics().loss != course.loss[0]) words += "first ";
          if (second.metrics().loss != course.loss[1]) words += "second ";
          train.settle();
          other_is_done = true;
          other_is_done.notify_all();
          return words;  // and takes no third step
        }
        train.settle();
        si::abort_hangs(hangs);
        std::optional<sg::Ticket> third;
        auto const told = words_of([&] {
          third = sg::enqueue(train.step(data[2]));
          third->metrics();
        });
        if (!has(told, "did not move for 0.5 s") && !has(told, "waited 0.5 s to") &&
            !has(told, "aborted"))
          words += "told: " + told;
        if (first.metrics().loss != course.loss[0]) words += "first ";
        if (!has(words_of([&] { sg::run(train.step(data[3])); }), "lost in an earlier step"))
          words += "next ";
        other_is_done.wait(false);
        if (hangs) si::lose_device(cudaErrorIllegalAddress);  // what it still has is not run
        si::abort_hangs(false);
        return words;
      });
  for (auto const& words : wrong) CHECK(words == "");
}

TEST_CASE("nccl/Gpus: an error of NCCL in flight is told by the ticket", "[nccl]") {
  si::Session const session;
  auto const data = batches(3, 3, false);
  LetGo const let_go;
  {
    auto train = over(ahead(on_gpus({0, 1, 2}), 2), optimizer(), even_cuts(3),
                      schedule_of({"1f1b", 3, 1, 3, 3}), clipping());
    sg::run(train.step(data[0]));
    hold_from(1);
    auto ticket = sg::enqueue(train.step(data[1]));
    si::break_communicators(1, 2, ncclRemoteError);
    hold_from(100);
    try {
      ticket.metrics();
      FAIL("no error");
    } catch (sg::nccl::Error const& error) {
      CHECK(error.code() == sg::Errc::peer_failed);
      CHECK(has(error.what(), "step 2: "));
      CHECK(has(error.what(), "an injected error"));
    }
    CHECK_THROWS_AS(train.parameters(), sg::Error);
  }
  si::reset();
  CHECK(session.left() == si::Live{});
}
