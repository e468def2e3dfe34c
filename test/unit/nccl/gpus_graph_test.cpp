// SPDX-License-Identifier: Apache-2.0
#include <stagger/nccl/detail/graph_cache.hpp>

#include "catch.hpp"

#include <atomic>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpus_cases.hpp"
#include "gpus_processes.hpp"

using namespace gpus_model;
using namespace gpus_processes;

namespace {

constexpr Case cases[] = {{"1f1b", 4, 1, 6, 4},        {"zb-v", 2, 2, 5, 2},
                          {"chimera", 4, 1, 4, 4},     {"dualpipe", 2, 1, 4, 2},
                          {"gpipe", 3, 1, 4, 2},       {"hanayo", 2, 2, 4, 2},
                          {"interleaved", 2, 2, 4, 2}, {"dualpipe-v", 2, 2, 5, 2}};
constexpr Case three{"1f1b", 3, 1, 3, 3};

sg::nccl::Gpus captured(sg::nccl::Gpus gpus, int ahead, sg::cuda::GraphCounts* counts = nullptr) {
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
auto on_all(Case const& c, sg::nccl::Gpus gpus, double deadline_s = 60) {
  return over(std::move(gpus), optimizer(), even_cuts(c.ranks * c.chunks), schedule_of(c),
              clipping(deadline_s));
}

}  // namespace

TEST_CASE("nccl/Gpus: a graph over all GPUs has the host's bits, however far ahead the host is",
          "[nccl]") {
  int number = 0;
  for (auto const& c : cases) {
    int const ahead = 1 + number++ % 3;
    if (sanitized && number % 3 != 0) continue;
    CAPTURE(c.name, ahead);
    si::Session const session;
    si::jitter(5);
    si::in_progress_polls(2);
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
    CHECK(si::aborts() == 0);
    si::reset();
    REQUIRE(session.left() == si::Live{});
  }
}

TEST_CASE("nccl/Gpus: replayed, enqueued, evaluated and recorded steps follow each other",
          "[nccl]") {
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
    "nccl/Gpus: a graph is replayed while nothing changes, and made anew or updated as it must",
    "[nccl]") {
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
                     Call::memcpy, Call::memset, Call::comm_init, Call::graph_instantiate,
                     Call::begin_capture, Call::group_end, Call::launch_kernel, Call::memcpy_async,
                     Call::memset_async, Call::stream_wait_event});
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

TEST_CASE("nccl/Gpus: processes record and replay together, whoever's batch has changed",
          "[nccl]") {
  int number = 0;
  for (Case const& c :
       {Case{"1f1b", 4, 1, 6, 4}, Case{"chimera", 2, 1, 4, 2}, Case{"zb-v", 2, 2, 5, 2}}) {
    if (sanitized && number++ != 1) continue;
    CAPTURE(c.name);
    si::Session const session;
    si::jitter(3);
    si::in_progress_polls(1);
    auto host = on_host(c);
    auto const data = batches(4, c.microbatches, false);
    std::vector<sg::Metrics> expected;
    for (int s = 0; s < 8; ++s) {
      expected.push_back(sg::run(host.step(data[static_cast<std::size_t>(s) / 2])));
    }
    auto const after = bits(host);
    auto const wrong =
        in_processes(c.gpus, on_gpus({}), [&](sg::nccl::Gpus gpus, int process) -> std::string {
          sg::cuda::GraphCounts counts;
          auto train = on_all(c, captured(gpus, 1, &counts));
          std::string words;
          for (int s = 0; s < 8; ++s) {
            auto const& one = data[static_cast<std::size_t>(s) / 2];
            // Every second step of process 1 has the same objects as the one before, of others not.
            auto const own = process == 1 ? Batch{} : one;
            auto const got = sg::run(train.step(process == 1 ? one : own));
            auto const& want = expected[static_cast<std::size_t>(s)];
            if (got.loss != want.loss) words += "loss ";
            if (got.gradient_norm != want.gradient_norm) words += "norm ";
          }
          train.gather_parameters();
          if (bits(train) != after) words += "parameters ";
          if (counts.replays != 7) words += "replays ";
          if (counts.captures < 4) words += "captures ";
          return words;
        });
    for (auto const& words : wrong) CHECK(words == "");
    CHECK(si::aborts() == 0);
    std::vector<std::uint64_t> captures(static_cast<std::size_t>(c.gpus));
    auto const failed =
        in_processes(c.gpus, on_gpus({}), [&](sg::nccl::Gpus gpus, int process) -> std::string {
          sg::cuda::GraphCounts counts;
          auto train = on_all(c, captured(gpus, 2, &counts));
          std::vector<sg::Ticket> tickets;
          auto const all = batches(12, c.microbatches, false);
          for (std::size_t s = 0; s < all.size(); ++s)  // process 0 alone has a new one at step 8
            tickets.push_back(sg::enqueue(train.step(all[process == 0 && s == 8 ? 8 : s % 2])));
          train.settle();
          captures[static_cast<std::size_t>(process)] = counts.captures;
          return {};
        });
    for (auto const& words : failed) CHECK(words == "");
    for (auto const count : captures) CHECK(count == 4);  // two turns; step 8, and its turn again
  }
}

TEST_CASE("nccl/Gpus: whatever is refused while a step is recorded or replayed, parameters stand",
          "[nccl]") {
  auto const data = batches(4, 3, false);
  auto const course = expected_course(data, true);
  int number = 0;
  for (auto const call :
       {si::Call::launch_kernel, si::Call::event_record, si::Call::stream_wait_event,
        si::Call::memcpy_async, si::Call::memset_async, si::Call::begin_capture,
        si::Call::graph_instantiate, si::Call::graph_launch, si::Call::group_end})
    for (int nth = 1; nth <= 60; nth += nth < 3 ? 1 : 11) {
      if (sanitized && number++ % 9 != 0) continue;
      CAPTURE(static_cast<int>(call), nth);
      si::Session const session;
      {
        auto train = on_all(three, captured(on_gpus({0, 1, 2}), 3));
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
        bool corrupted = false;  // an event behind the updates
        try {
          REQUIRE((bits(train) == course.bits[failed ? 1 : 2]));
        } catch (sg::Error const& error) {
          REQUIRE(error.code() == sg::Errc::device);
          corrupted = true;
        }
        auto const words = words_of([&] {
          if (failed) sg::run(train.step(data[2]));
          REQUIRE(sg::enqueue(train.step(data[3])).metrics().loss == course.loss[3]);
        });
        CAPTURE(words);
        if ((of_nccl && failed) || corrupted) REQUIRE_FALSE(words.empty());
        REQUIRE((words.empty() || has(words, "lost in an earlier step")));
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

TEST_CASE("nccl/Gpus: a stage that throws or synchronises while it is recorded ends the step alone",
          "[nccl]") {
  int const how = GENERATE(2, -2);
  si::Session const session;
  int armed = 0;
  auto const make = [&](sg::nccl::Gpus gpus) {
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

TEST_CASE("nccl/Gpus: what goes wrong in a graph that in_flight is told in time by the ticket",
          "[nccl]") {
  bool const hangs = GENERATE(false, true);
  si::Session const session;
  auto const data = batches(3, 3, false);
  LetGo const let_go;  // last: what is left behind has nothing to work on
  {
    auto train = on_all(three, captured(on_gpus({0, 1, 2}), 2), hangs ? 0.3 : 60);
    for (auto const& one : data) sg::run(train.step(one));
    hold_from(3);
    auto first = sg::enqueue(train.step(data[1]));
    auto second = sg::enqueue(train.step(data[2]));
    if (!hangs) {
      si::break_communicators(1, 2, ncclRemoteError);
      hold_from(100);
    }
    auto const words = words_of([&] { first.metrics(); });
    CAPTURE(words);
    CHECK(has(words, "step 4: "));
    CHECK(has(words, hangs ? "did not finish a replayed step within 0.3 s" : "an injected error"));
    CHECK(words_of([&] { second.metrics(); }) == words);
    CHECK_THROWS_AS(train.parameters(), sg::Error);
    CHECK_FALSE(words_of([&] { sg::run(train.step(data[0])); }).empty());
  }
  end_left_behind();
}

TEST_CASE("nccl/Gpus: a process that stops replaying is an error in time, and abort may hang",
          "[nccl]") {
  bool const hangs = GENERATE(false, true);
  si::Session const session;
  auto const data = batches(4, 3, false);
  auto const course = expected_course(data, true);
  std::atomic<bool> other_is_done{false};
  auto const wrong =
      in_processes(2, on_gpus({}), [&](sg::nccl::Gpus gpus, int process) -> std::string {
        auto train = on_all({"gpipe", 2, 1, 3, 2}, captured(gpus, 2), process == 0 ? 0.5 : 60);
        std::string words;
        std::vector<sg::Ticket> tickets;
        for (std::size_t s = 0; s < 3; ++s) tickets.push_back(sg::enqueue(train.step(data[s])));
        train.settle();
        for (std::size_t s = 0; s < 3; ++s)
          if (tickets[s].metrics().loss != course.loss[s]) words += "loss ";
        if (process == 1) {
          other_is_done = true;
          other_is_done.notify_all();
          return words;  // and takes no fourth step
        }
        si::abort_hangs(hangs);
        auto const told = words_of([&] { sg::run(train.step(data[3])); });
        if (!has(told, "0.5 s")) words += "told: " + told;
        if (!has(words_of([&] { sg::run(train.step(data[3])); }), "lost in an earlier step"))
          words += "next ";
        other_is_done.wait(false);
        if (hangs) si::lose_device(cudaErrorIllegalAddress);  // what it still has is not run
        si::abort_hangs(false);
        return words;
      });
  for (auto const& words : wrong) CHECK(words == "");
}

TEST_CASE("nccl/Gpus: shapes that change are told to other processes, which no graph can",
          "[nccl]") {
  si::Session const session;
  auto const wrong = in_processes(2, on_gpus({}), [&](sg::nccl::Gpus gpus, int) -> std::string {
    gpus.shapes_change = true;
    auto train = on_all({"gpipe", 2, 1, 3, 2}, gpus);
    auto const words = words_of([&] { train.capture(); });
    return has(words, "which a graph cannot") ? "" : words + " was said";
  });
  for (auto const& words : wrong) CHECK(words == "");
}
