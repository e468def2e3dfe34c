// SPDX-License-Identifier: Apache-2.0
#include <stagger/engine/detail/ahead.hpp>

#include "catch.hpp"

#include <chrono>
#include <optional>
#include <thread>

#include <stagger/host/threads.hpp>
#include <stagger/schedule/chimera.hpp>
#include <stagger/schedule/gpipe.hpp>

#include "enqueued_model.hpp"

using namespace enqueued_model;

namespace {

sg::cuda::Gpus device_ahead(int ahead, bool capture = false,
                            sg::cuda::GraphCounts* counts = nullptr) {
  auto device = on_device(capture, counts);
  device.ahead = ahead;
  return device;
}

sg::Options clipping() {
  sg::Options options;
  options.clip_norm = clip;
  return options;
}

auto three_stages(sg::cuda::Gpus device, sg::Options options = clipping()) {
  return enqueued(device, optimizer(), even_cuts(3), made(sg::schedule::OneFOneB{}), options);
}

std::string text_of(sg::Ticket& ticket) {
  try {
    ticket.metrics();
  } catch (sg::Error const& error) {
    return error.what();
  }
  return "";
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
  int const microbatches = 4;
  std::vector<Batch> data;
  for (int s = 0; s < 20; ++s) data.push_back(batch(s, microbatches, true));
  si::Session const session;
  si::jitter(static_cast<unsigned>(3 + ahead));
  {
    sg::cuda::GraphCounts counts;
    auto const schedule = two_owners ? made(sg::schedule::Chimera{}) : made(sg::schedule::GPipe{});
    auto train = enqueued(device_ahead(ahead, capture, &counts), optimizer(), even_cuts(2),
                          schedule, clipping());
    auto host = pipeline(sg::host::Threads{1}, even_cuts(2), schedule, clipping());
    std::vector<sg::Ticket> tickets;
    for (auto const& one : data) tickets.push_back(sg::enqueue(train.step(one)));
    for (std::size_t s = 0; s < data.size(); ++s) {
      auto const here = sg::run(host.step(data[s]));
      auto const there = tickets[s].metrics();
      REQUIRE(there.loss == here.loss);
      REQUIRE(there.terms == here.terms);
      REQUIRE(there.gradient_norm == here.gradient_norm);
    }
    REQUIRE((bits(train) == bits(host)));
    CHECK(train.steps() == 20);
    CHECK(counts.replays == (capture ? 19 : 0));
  }
  si::reset();
  CHECK(session.left() == si::Live{});
}

TEST_CASE("cuda/ahead: the host goes on while the device is held up, and waits at the bound",
          "[cuda]") {
  int const ahead = GENERATE(1, 2, 4);
  si::Session const session;
  {
    auto const data = batches(7, 3, false);
    auto train = three_stages(device_ahead(ahead));
    LetGo const let_go;
    sg::run(train.step(data[0]));
    hold_from(1);
    std::vector<sg::Ticket> tickets;
    for (int s = 1; s <= ahead; ++s) {  // returns although nothing of it can be done
      tickets.push_back(sg::enqueue(train.step(data[static_cast<std::size_t>(s)])));
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
    tickets.push_back(sg::enqueue(train.step(data[static_cast<std::size_t>(ahead) + 1])));
    CHECK(first_held.load() == 2);  // it has waited for the first step
    CHECK(tickets[0].done());
    CHECK_FALSE(tickets[1].done());
    later.join();
    hold_from(100);
    train.settle();
    for (auto& ticket : tickets) CHECK(ticket.done());
    auto const course = expected_course(data, true);
    auto const last = static_cast<std::size_t>(ahead) + 1;
    CHECK(tickets.back().metrics().loss == course.loss[last]);
    CHECK((bits(train) == course.bits[last]));
  }
  si::reset();
  CHECK(session.left() == si::Live{});
}

TEST_CASE("cuda/ahead: what looks at parameters or runs otherwise waits by itself", "[cuda]") {
  si::Session const session;
  auto const data = batches(6, 3, true);
  auto const course = expected_course(data, true);
  auto train = three_stages(device_ahead(4));
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
  CHECK(train.timeline().rows.size() == 3);
  CHECK((bits(train) == course.bits[5]));
}

TEST_CASE("cuda/ahead: in steady state nothing is made, allocated or synchronised with", "[cuda]") {
  bool const capture = GENERATE(false, true);
  si::Session const session;
  sg::cuda::GraphCounts counts;
  auto train = three_stages(device_ahead(2, capture, &counts));
  std::vector<Batch> const data = {batch(0, 5, false), batch(1, 5, false)};  // one for each turn
  std::optional<sg::Ticket> lanes[2];
  auto const steps = [&](int count) {
    for (int s = 0; s < count; ++s) {
      auto const lane = static_cast<std::size_t>(s % 2);
      if (lanes[lane]) lanes[lane]->wait();  // here a program would write a new batch
      lanes[lane] = sg::enqueue(train.step(data[lane]));
    }
  };
  steps(4);
  auto const before = calls_that_cost();
  auto const launched = si::calls(si::Call::launch_kernel);
  steps(10);
  train.settle();
  CHECK(calls_that_cost() == before);
  if (!capture) return;
  CHECK(si::calls(si::Call::launch_kernel) == launched);
  CHECK(counts.captures == 2);  // one graph for each turn
  CHECK(counts.replays == 13);
}

TEST_CASE("cuda/ahead: a step that cannot be enqueued leaves those before it and itself out",
          "[cuda]") {
  auto const data = batches(4, 3, true);
  auto const course = expected_course(data, true);
  int number = 0;
  for (bool const capture : {false, true})
    for (auto const call :
         {si::Call::launch_kernel, si::Call::event_record, si::Call::stream_wait_event,
          si::Call::memcpy_async, si::Call::memset_async, si::Call::graph_launch})
      for (int nth = 1; nth <= 60; nth += nth < 3 ? 1 : 13) {
        if (sanitized && number++ % 9 != 0) continue;
        CAPTURE(capture, static_cast<int>(call), nth);
        si::Session const session;
        {
          auto train = three_stages(device_ahead(3, capture));
          auto first = sg::enqueue(train.step(data[0]));
          auto second = sg::enqueue(train.step(data[1]));
          si::fail(call, nth, cudaErrorLaunchFailure);
          bool failed = false;
          try {
            auto const third = sg::enqueue(train.step(data[2]));
          } catch (sg::cuda::Error const& error) {
            failed = true;
            REQUIRE(error.result() == cudaErrorLaunchFailure);
          }
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

TEST_CASE("cuda/ahead: a device that fails is told by the ticket of its step, and no call follows",
          "[cuda]") {
  bool const capture = GENERATE(false, true);
  si::Session const session;
  auto const data = batches(5, 3, false);
  LetGo const let_go;
  {
    auto train = three_stages(device_ahead(4, capture));
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
  auto train = three_stages(device_ahead(2));
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

TEST_CASE("cuda/ahead: a device that hangs is an error in time, named, and may be left behind",
          "[cuda]") {
  si::Session const session;
  auto const data = batches(4, 3, false);
  LetGo const let_go;
  auto const start = std::chrono::steady_clock::now();
  {
    auto options = clipping();
    options.deadline_s = 0.2;
    auto train = three_stages(device_ahead(2), options);
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
    CHECK(text.find("step 2: the GPU did not move for 0.2 s: rank 0 is in 0F0") == 0);
    CHECK(text_of(second) == text);
  }
  end_left_behind();
  {  // the destructor waits no longer either
    auto options = clipping();
    options.deadline_s = 0.2;
    auto train = three_stages(device_ahead(2), options);
    hold_from(0);
    static_cast<void>(sg::enqueue(train.step(data[1])));
  }
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
      auto options = clipping();
      options.deadline_s = 0.2;
      auto train = three_stages(device_ahead(3), options);
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
  for (std::int64_t held = 2; held <= 3; ++held)  // whichever turn it has, it stands where it began
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
  CHECK_THROWS_AS(three_stages(device_ahead(0)), sg::Error);
}
