// SPDX-License-Identifier: Apache-2.0
#include <stagger/engine/detail/ahead.hpp>

#include "catch.hpp"

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <stagger/cuda/detail/in_flight.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/schedule/chimera.hpp>
#include <stagger/schedule/gpipe.hpp>

#include "cuda/gpus_cases.hpp"

namespace gpus_ahead_test {

using namespace gpus_model;

namespace {

struct How {
  int ahead = 1;
  bool capture = false;
  sg::cuda::GraphCounts* counts = nullptr;
  double deadline_s = 60;
};

template <class Gpus> Gpus with(Gpus gpus, How const& how) {
  gpus.ahead = how.ahead;
  gpus.capture = how.capture;
  gpus.counts = how.counts;
  return gpus;
}

/// Three stages on streams of one GPU, with values in objects of the host.
auto three_stages(How const& how) {
  return enqueued(with(on_device(), how), optimizer(), even_cuts(3), schedule_of(three),
                  clipping(how.deadline_s));
}
/// Each on a GPU of its own, with values in tensors.
auto on_three_gpus(How const& how) {
  return on_all(three, with(on_gpus({0, 1, 2}), how), how.deadline_s);
}
/// Calls `body(make)`, where `make(How)` is one of both.
template <class Body> void on(int gpus, Body body) {
  if (gpus == 1)
    body(three_stages);
  else
    body(on_three_gpus);
}

/// Over as many GPUs as ranks, or fewer.
constexpr Case cases[] = {{"1f1b", 4, 1, 6, 4},        {"zb-v", 2, 2, 5, 2},
                          {"chimera", 4, 1, 4, 4},     {"dualpipe", 2, 1, 4, 2},
                          {"gpipe", 3, 1, 4, 2},       {"hanayo", 2, 2, 4, 2},
                          {"zb-h2", 3, 1, 6, 3},       {"looped-bfs", 2, 2, 5, 2},
                          {"interleaved", 2, 2, 4, 2}, {"dualpipe-v", 2, 2, 5, 2}};

std::string text_of(sg::Ticket& ticket) {
  try {
    ticket.metrics();
  } catch (sg::Error const& error) {
    return error.what();
  }
  return "";
}

std::uint64_t all_calls() {
  std::uint64_t sum = 0;
  for (int c = 0; c < static_cast<int>(si::Call::count); ++c)
    sum += si::calls(static_cast<si::Call>(c));
  return sum;
}

}  // namespace

TEST_CASE("cuda/ahead: twenty steps have the host's bits however far ahead the host is", "[cuda]") {
  int const ahead = GENERATE(1, 2, 4);
  bool const capture = GENERATE(false, true);
  bool const two_owners = GENERATE(false, true);
  CAPTURE(ahead, capture, two_owners);
  si::Session const session;
  si::jitter(static_cast<unsigned>(3 + ahead));
  {
    sg::cuda::GraphCounts counts;
    auto const schedule = two_owners ? made(sg::schedule::Chimera{}) : made(sg::schedule::GPipe{});
    auto train = enqueued(with(on_device(), {ahead, capture, &counts}), optimizer(), even_cuts(2),
                          schedule, clipping());
    auto host = pipeline(sg::host::Threads{1}, even_cuts(2), schedule, clipping());
    check_same_ahead(train, host, batches(20, 4, true));
    CHECK(train.steps() == 20);
    CHECK(counts.replays == (capture ? 19 : 0));
  }
  si::reset();
  CHECK(session.left() == si::Live{});
}

TEST_CASE("cuda/ahead: over several GPUs steps have the host's bits however far ahead the host is",
          "[cuda]") {
  bool const capture = GENERATE(false, true);
  int number = 0;
  for (auto const& c : cases) {
    int const ahead = 1 + number++ % 3;
    if (sanitized && number % 3 != 0) continue;
    CAPTURE(c.name, ahead, capture);
    si::Session const session;
    si::jitter(5);
    {
      sg::cuda::GraphCounts counts;
      auto train = on_all(c, with(on_gpus(first(c.gpus)), {ahead, capture, &counts}));
      auto host = on_host(c);
      check_same_ahead(train, host, batches(8, c.microbatches, !capture));
      CHECK(counts.replays == (capture ? 7 : 0));  // the first step is enqueued
      CHECK(counts.captures == (capture ? 7 : 0));
    }
    si::reset();
    REQUIRE(session.left() == si::Live{});
  }
}

TEST_CASE("cuda/ahead: the host goes on while GPUs are held up, and waits at the bound", "[cuda]") {
  int const ahead = GENERATE(1, 2, 3, 4);
  int const gpus = GENERATE(1, 3);
  CAPTURE(ahead, gpus);
  si::Session const session;
  on(gpus, [&](auto make) {
    auto const data = batches(7, 3, false);
    LetGo const let_go;
    auto train = make({ahead});
    sg::run(train.step(data[0]));
    hold_from(1);
    std::vector<sg::Ticket> tickets;
    auto const last = static_cast<std::size_t>(ahead) + 1;
    for (std::size_t s = 1; s < last; ++s) {  // returns although nothing of it can be done
      tickets.push_back(sg::enqueue(train.step(data[s])));
      CHECK_FALSE(tickets.back().done());
    }
    CHECK_FALSE(tickets.front().done());
    std::atomic<bool> asked{false};
    std::thread later([&] {
      asked.wait(false);
      hold_from(2);
    });
    asked = true;
    asked.notify_all();
    tickets.push_back(sg::enqueue(train.step(data[last])));
    CHECK(first_held.load() == 2);  // it has waited for the first step
    CHECK(tickets[0].done());
    CHECK_FALSE(tickets[1].done());
    later.join();
    hold_from(100);
    train.settle();
    for (auto& ticket : tickets) CHECK(ticket.done());
    auto const course = expected_course(data, true);
    CHECK(tickets.back().metrics().loss == course.loss[last]);
    CHECK((bits(train) == course.bits[last]));
  });
  si::reset();
  CHECK(session.left() == si::Live{});
}

TEST_CASE("cuda/ahead: what looks at parameters or runs otherwise waits by itself", "[cuda]") {
  si::Session const session;
  auto const data = batches(6, 3, true);
  auto const course = expected_course(data, true);
  auto train = three_stages({4});
  auto first = sg::enqueue(train.step(data[0]));
  static_cast<void>(sg::enqueue(train.step(data[1])));  // nobody asks
  CHECK((bits(train) == course.bits[1]));
  first = sg::enqueue(train.step(data[2]));
  CHECK(sg::run(train.step(data[3])).loss == course.loss[3]);
  CHECK(first.done());
  CHECK(first.metrics().loss == course.loss[2]);
  auto moved = sg::enqueue(train.step(data[4]));
  auto looked = sg::enqueue(train.evaluate(data[5]));
  sg::Ticket elsewhere = std::move(moved);
  auto host = pipeline(sg::host::Threads{1}, even_cuts(3), made(sg::schedule::GPipe{}), clipping());
  for (std::size_t s = 0; s < 5; ++s) sg::run(host.step(data[s]));
  CHECK(looked.metrics().loss == sg::run(host.evaluate(data[5])).loss);
  CHECK(elsewhere.metrics().loss == course.loss[4]);
  train.record(true);
  auto recorded = sg::enqueue(train.step(data[5]));
  CHECK(recorded.done());
  CHECK(train.timeline().ranks() == 3);
  CHECK((bits(train) == course.bits[5]));
}

TEST_CASE("cuda/ahead: in steady state nothing is made, allocated or synchronised with", "[cuda]") {
  bool const capture = GENERATE(false, true);
  si::Session const session;
  sg::cuda::GraphCounts counts;
  auto train = three_stages({2, capture, &counts});
  TwoBatches on_both(train, 5);
  on_both.steps(4);
  auto const before = costly_calls() + si::calls(si::Call::stream_query);
  auto const launched = si::calls(si::Call::launch_kernel);
  on_both.steps(10);
  train.settle();
  CHECK(costly_calls() + si::calls(si::Call::stream_query) == before);
  if (!capture) return;
  CHECK(si::calls(si::Call::launch_kernel) == launched);
  CHECK(counts.captures == 2);  // one graph for each slot
  CHECK(counts.replays == 13);
}

TEST_CASE("cuda/ahead: in steady state several GPUs make, allocate and synchronise nothing",
          "[cuda]") {
  si::Session const session;
  auto train = on_all({"chimera", 4, 1, 4, 4}, with(on_gpus({0, 1, 2, 3}), {2}));
  TwoBatches on_both(train, 4);
  on_both.steps(4);
  auto const before = costly_calls() + si::calls(si::Call::stream_query);
  on_both.steps(8);
  train.settle();
  CHECK(costly_calls() + si::calls(si::Call::stream_query) == before);
}

TEST_CASE("cuda/ahead: a step that cannot be enqueued leaves those before it and itself out",
          "[cuda]") {
  int const gpus = GENERATE(1, 3);
  bool const capture = GENERATE(false, true);
  auto const data = batches(4, 3, gpus == 1 || !capture);  // no tensor grows in a capture
  auto const course = expected_course(data, true);
  CAPTURE(gpus, capture);
  Refusals const refusals{
      .calls = {si::Call::launch_kernel, si::Call::event_record, si::Call::stream_wait_event,
                si::Call::memcpy_async, si::Call::memset_async, si::Call::begin_capture,
                si::Call::graph_instantiate, si::Call::graph_launch},
      .most = 60,
      .stride = 11};
  on(gpus, [&](auto make) {
    each_refusal(refusals, [&](auto refused_in) {
      auto train = make({3, capture});
      auto first = sg::enqueue(train.step(data[0]));
      auto second = sg::enqueue(train.step(data[1]));
      bool const failed = refused_in([&] { auto const third = sg::enqueue(train.step(data[2])); });
      REQUIRE(first.metrics().loss == course.loss[0]);
      REQUIRE(second.metrics().loss == course.loss[1]);
      REQUIRE((bits(train) == course.bits[failed ? 1 : 2]));
      if (failed) sg::run(train.step(data[2]));
      REQUIRE(sg::enqueue(train.step(data[3])).metrics().loss == course.loss[3]);
    });
  });
}

TEST_CASE("cuda/ahead: a device that fails is told by the ticket of its step, and no call follows",
          "[cuda]") {
  bool const capture = GENERATE(false, true);
  si::Session const session;
  auto const data = batches(5, 3, false);
  LetGo const let_go;
  {
    auto train = three_stages({4, capture});
    sg::run(train.step(data[0]));
    hold_from(1);
    std::vector<sg::Ticket> tickets;
    for (std::size_t s = 1; s < 4; ++s) tickets.push_back(sg::enqueue(train.step(data[s])));
    lost_step = 2;
    hold_from(100);
    auto const text = text_of(tickets[1]);
    lost_step = -1;
    CAPTURE(text);
    // The first may be done before anybody can tell that the second fails.
    CHECK((text.find("step 3: ") == 0 || text.find("step 2: ") == 0));
    CHECK(text.find("when it was last looked at, ") != std::string::npos);
    CHECK(text.find("rank 0 ") != std::string::npos);
    auto const before = all_calls();
    CHECK_FALSE(text_of(tickets[2]).empty());
    for (auto const& step : {data[3], data[4]}) {
      try {
        static_cast<void>(sg::enqueue(train.step(step)));
        FAIL();
      } catch (sg::Error const& error) {
        CHECK(error.code() == sg::Errc::device);
        CHECK(std::string(error.what()).find("make a new pipeline") != std::string::npos);
      }
    }
    CHECK_THROWS_AS(train.parameters(), sg::Error);
    CHECK(all_calls() == before);
  }
}

TEST_CASE("cuda/ahead: what went wrong in a step whose ticket was dropped is thrown once",
          "[cuda]") {
  si::Session const session;
  auto const data = batches(3, 3, false);
  auto train = three_stages({2});
  sg::run(train.step(data[0]));
  lose_in_update = true;
  LetGo const let_go;
  hold_from(1);
  static_cast<void>(sg::enqueue(train.step(data[1])));
  hold_from(100);
  CHECK_THROWS_AS(train.settle(), sg::cuda::Error);
  try {
    train.settle();
    FAIL();
  } catch (sg::Error const& error) {
    CHECK(error.code() == sg::Errc::device);
  }
}

TEST_CASE("cuda/ahead: GPUs that hang are an error in time, named, and may be left behind",
          "[cuda]") {
  int const gpus = GENERATE(1, 3);
  si::Session const session;
  auto const data = batches(4, 3, false);
  LetGo const let_go;
  auto const start = std::chrono::steady_clock::now();
  How const how{.ahead = 2, .deadline_s = 0.2};
  on(gpus, [&](auto make) {
    {
      auto train = make(how);
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
      auto const text = text_of(first);
      CAPTURE(text);
      CHECK(text.find(sg::text("step 2: the GPU", gpus == 1 ? "" : "s",
                               " did not move for 0.2 s: rank 0 is still at 0F0")) == 0);
      CHECK(text_of(second) == text);
      CHECK_THROWS_AS(train.parameters(), sg::Error);
    }
    end_left_behind();
    {  // the destructor waits no longer either
      auto train = make(how);
      hold_from(0);
      static_cast<void>(sg::enqueue(train.step(data[1])));
    }
  });
  CHECK(std::chrono::steady_clock::now() - start <
        std::chrono::seconds(60));  // an end, not a speed
  end_left_behind();
}

TEST_CASE("cuda/ahead: each step in flight is looked at by events of its own", "[cuda]") {
  si::Session const session;
  auto const data = batches(4, 3, false);
  auto const words = [&](std::int64_t held) {
    LetGo const let_go;
    std::string text;
    {
      auto train = three_stages({.ahead = 3, .deadline_s = 0.2});
      sg::run(train.step(data[0]));
      hold_from(held);
      std::vector<sg::Ticket> tickets;
      for (std::size_t s = 1; s < 4; ++s) tickets.push_back(sg::enqueue(train.step(data[s])));
      text = text_of(tickets[static_cast<std::size_t>(held) - 1]);
    }
    end_left_behind();
    return text;
  };
  auto const first = words(1);
  auto const where = first.substr(first.find(": the GPU"));
  for (std::int64_t held = 2; held <= 3;
       ++held)  // in whichever slot it is, it stands where it began
    CHECK(words(held) == sg::text("step ", held + 1, where));
}

TEST_CASE("cuda/ahead: on host threads an enqueued step is done, and no steps ahead are refused",
          "[cuda]") {
  si::Session const session;
  auto const data = batches(2, 3, true);
  auto const course = expected_course(data, true);
  auto on_threads =
      pipeline(sg::host::Threads{1}, even_cuts(3), made(sg::schedule::GPipe{}), clipping());
  for (std::size_t s = 0; s < 2; ++s) {
    auto here = sg::enqueue(on_threads.step(data[s]));
    CHECK(here.done());
    CHECK(here.metrics().loss == course.loss[s]);
  }
  sg::Ticket none;
  CHECK(none.done());
  CHECK_THROWS_AS(three_stages({0}), sg::Error);
}

}  // namespace gpus_ahead_test
