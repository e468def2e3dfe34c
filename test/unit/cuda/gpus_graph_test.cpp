// SPDX-License-Identifier: Apache-2.0
#include <stagger/cuda/detail/graph_cache.hpp>

#include "catch.hpp"

#include <atomic>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpus_cases.hpp"

using namespace gpus_model;

namespace {

constexpr Case cases[] = {{"1f1b", 4, 1, 6, 4},        {"zb-v", 2, 2, 5, 2},
                          {"chimera", 4, 1, 4, 4},     {"dualpipe", 2, 1, 4, 2},
                          {"gpipe", 3, 1, 4, 2},       {"hanayo", 2, 2, 4, 2},
                          {"interleaved", 2, 2, 4, 2}, {"dualpipe-v", 2, 2, 5, 2}};
constexpr Case three{"1f1b", 3, 1, 3, 3};

sg::cuda::Gpus captured(sg::cuda::Gpus gpus, int ahead, sg::cuda::GraphCounts* counts = nullptr) {
  gpus.ahead = ahead;
  gpus.capture = true;
  gpus.counts = counts;
  return gpus;
}

auto on_host(Case const& c) {
  return sg::Pipeline{model()}.with(sg::partition::Cuts{even_cuts(c.ranks * c.chunks)},
                                    schedule_of(c), Loss{}, optimizer(), sg::host::Threads{1},
                                    clipping());
}
auto on_all(Case const& c, sg::cuda::Gpus gpus, double deadline_s = 60) {
  return over(std::move(gpus), optimizer(), even_cuts(c.ranks * c.chunks), schedule_of(c),
              clipping(deadline_s));
}

}  // namespace

TEST_CASE("cuda/Gpus: a graph over all GPUs has the host's bits, however far ahead the host is",
          "[cuda]") {
  int number = 0;
  for (auto const& c : cases) {
    int const ahead = 1 + number++ % 3;
    if (sanitized && number % 3 != 0) continue;
    CAPTURE(c.name, ahead);
    si::Session const session;
    si::jitter(5);
    {
      sg::cuda::GraphCounts counts;
      auto train = on_all(c, captured(on_gpus(first(c.gpus)), ahead, &counts));
      auto host = on_host(c);
      auto const data = batches(8, c.microbatches, false);
      std::vector<sg::Ticket> tickets;
      for (auto const& one : data) tickets.push_back(sg::enqueue(train.step(one)));
      for (std::size_t s = 0; s < data.size(); ++s) {
        auto const here = sg::run(host.step(data[s]));
        auto const there = tickets[s].metrics();
        REQUIRE(there.loss == here.loss);
        REQUIRE(there.gradient_norm == here.gradient_norm);
      }
      REQUIRE((bits(train) == bits(host)));
      CHECK(counts.replays == 7);  // the first step is enqueued
      CHECK(counts.captures == 7);
    }
    si::reset();
    REQUIRE(session.left() == si::Live{});
  }
}

TEST_CASE("cuda/Gpus: replayed, enqueued, evaluated and recorded steps follow each other",
          "[cuda]") {
  int const ahead = GENERATE(1, 2);
  si::Session const session;
  si::jitter(9);
  sg::cuda::GraphCounts counts;
  auto train = on_all(three, captured(on_gpus({0, 1, 2}), ahead, &counts));
  auto host = on_host(three);
  auto const data = batches(16, 3, false);
  for (std::size_t s = 0; s < data.size(); ++s) {
    train.capture(s % 5 < 3);
    auto ticket = sg::enqueue(train.step(data[s]));
    auto const here = sg::run(host.step(data[s]));
    if (s % 4 == 3) {
      REQUIRE(ticket.metrics().loss == here.loss);
      REQUIRE((bits(train) == bits(host)));
    }
    if (s == 6)
      REQUIRE(sg::run(train.evaluate(data[0])).loss == sg::run(host.evaluate(data[0])).loss);
    train.record(s == 9);
  }
  REQUIRE((bits(train) == bits(host)));
  CHECK(counts.replays == 7);
}

TEST_CASE(
    "cuda/Gpus: a graph is replayed while nothing changes, and made anew or updated as it must",
    "[cuda]") {
  si::Session const session;
  sg::cuda::GraphCounts counts;
  auto train = on_all(three, captured(on_gpus({0, 1, 2}), 2, &counts));
  std::vector<Batch> data = {batch(0, 3, false), batch(1, 3, false)};
  std::optional<sg::Ticket> lanes[2];
  auto const steps = [&](int count) {
    for (int s = 0; s < count; ++s) {
      auto const lane = static_cast<std::size_t>(s % 2);
      if (lanes[lane]) lanes[lane]->wait();
      lanes[lane] = sg::enqueue(train.step(data[lane]));
    }
  };
  using si::Call;
  auto const calls_of = [](std::initializer_list<Call> calls) {
    std::uint64_t sum = 0;
    for (Call const call : calls) sum += si::calls(call);
    return sum;
  };
  auto const cost = [&] {
    return calls_of({Call::event_create, Call::stream_create, Call::malloc, Call::malloc_host,
                     Call::malloc_from_pool, Call::pool_create, Call::stream_synchronize,
                     Call::memcpy, Call::memset, Call::graph_instantiate, Call::begin_capture,
                     Call::launch_kernel, Call::memcpy_async, Call::memset_async,
                     Call::stream_wait_event});
  };
  steps(4);
  CHECK(counts.captures == 2);  // one graph for each turn
  CHECK(counts.instantiations == 2);
  auto const before = cost();
  auto const recorded = si::calls(Call::event_record);
  steps(6);
  train.settle();
  CHECK(cost() == before);
  CHECK(si::calls(Call::event_record) == recorded + 6);  // a replay is a launch and an event
  CHECK(counts.captures == 2);
  CHECK(counts.replays == 9);
  CHECK(counts.nodes > 0);

  data[0] = batch(4, 3, false);  // other objects
  steps(2);
  CHECK(counts.captures == 3);
  CHECK(counts.updates == 1);
  auto const more = batch(5, 4, false);  // another program
  for (int s = 0; s < 3; ++s) sg::run(train.step(more));
  CHECK(counts.captures == 4);
  CHECK(counts.instantiations + counts.updates == 4);
}

TEST_CASE("cuda/Gpus: whatever is refused while a step is recorded or replayed, parameters stand",
          "[cuda]") {
  auto const data = batches(4, 3, false);
  auto const course = expected_course(data, true);
  int number = 0;
  for (auto const call :
       {si::Call::launch_kernel, si::Call::event_record, si::Call::stream_wait_event,
        si::Call::memcpy_async, si::Call::memset_async, si::Call::begin_capture,
        si::Call::graph_instantiate, si::Call::graph_launch})
    for (int nth = 1; nth <= 60; nth += nth < 3 ? 1 : 11) {
      if (sanitized && number++ % 9 != 0) continue;
      CAPTURE(static_cast<int>(call), nth);
      si::Session const session;
      {
        auto train = on_all(three, captured(on_gpus({0, 1, 2}), 3));
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

namespace {

/// Throws, or looks at its stream, when it is called for the n-th time.
struct Trap {
  using Input = Values;
  using Output = Values;
  int* armed = nullptr;
  void forward(sg::Context&, Values const& x, Values& y, sg::NothingSaved&) {
    if (*armed > 0 && --*armed == 0) throw std::runtime_error("sprung");
    if (*armed < 0 && ++*armed == 0) static_cast<void>(cudaStreamSynchronize(sg::cuda::stream()));
    y = x;
  }
  void backward_input(sg::Context&, Values const&, Values const& dy, Values& dx,
                      sg::NothingSaved&) {
    dx = dy;
  }
};

}  // namespace

TEST_CASE("cuda/Gpus: a stage that throws or synchronises while it is recorded ends the step alone",
          "[cuda]") {
  int const how = GENERATE(2, -2);
  si::Session const session;
  int armed = 0;
  auto const make = [&](sg::cuda::Gpus gpus) {
    return sg::Pipeline{sg::Sequential{OnGpu<Embedding>{}, OnGpu<Dense>{}, Trap{&armed},
                                       OnGpu<Norm>{}, OnGpu<Dense>{Dense{7}}}}
        .with(sg::partition::Cuts{{2, 4}}, schedule_of(three), LossOnGpu{},
              sg::cuda::Enqueued<sg::optimizer::AdamW, Launch>{optimizer()}, std::move(gpus),
              clipping());
  };
  sg::cuda::GraphCounts counts;
  auto train = make(captured(on_gpus({0, 1, 2}), 2, &counts));
  auto calm = make(on_gpus({0}));
  auto const all = batches(4, 3, false);
  for (std::size_t s = 0; s < 4; ++s) {
    auto const& data = all[s];
    sg::run(calm.step(data));
    if (s == 2) {
      auto const before = bits(train);
      armed = how;
      auto const words = words_of([&] { sg::run(train.step(data)); });
      CAPTURE(words);
      CHECK((has(words, "sprung") || has(words, "while it is captured")));
      armed = 0;
      CHECK((bits(train) == before));
    }
    sg::run(train.step(data));
    REQUIRE((bits(train) == bits(calm)));
  }
  CHECK(counts.replays == 3);
}

TEST_CASE("cuda/Gpus: a replayed step that hangs is told in time by the ticket", "[cuda]") {
  si::Session const session;
  auto const data = batches(3, 3, false);
  LetGo const let_go;  // last: what is left behind has nothing to work on
  {
    auto train = on_all(three, captured(on_gpus({0, 1, 2}), 2), 0.3);
    for (auto const& one : data) sg::run(train.step(one));
    hold_from(3);
    auto first = sg::enqueue(train.step(data[1]));
    auto second = sg::enqueue(train.step(data[2]));
    auto const words = words_of([&] { first.metrics(); });
    CAPTURE(words);
    CHECK(has(words, "step 4: "));
    CHECK(has(words, "did not finish a replayed step within 0.3 s"));
    CHECK(words_of([&] { second.metrics(); }) == words);
    CHECK_THROWS_AS(train.parameters(), sg::Error);
    CHECK_FALSE(words_of([&] { sg::run(train.step(data[0])); }).empty());
  }
  end_left_behind();
}
