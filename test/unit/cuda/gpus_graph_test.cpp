// SPDX-License-Identifier: Apache-2.0
#include <stagger/cuda/detail/graph_cache.hpp>

#include "catch.hpp"

#include <string>
#include <vector>

#include "cuda/gpus_cases.hpp"

namespace gpus_graph_test {

using namespace gpus_model;

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
  TwoBatches on_both(train, 3);
  using si::Call;
  auto const cost = [&] {
    return calls_of({Call::event_create, Call::stream_create, Call::malloc, Call::malloc_host,
                     Call::malloc_from_pool, Call::pool_create, Call::stream_synchronize,
                     Call::memcpy, Call::memset, Call::graph_instantiate, Call::begin_capture,
                     Call::launch_kernel, Call::memcpy_async, Call::memset_async,
                     Call::stream_wait_event});
  };
  on_both.steps(4);
  CHECK(counts.captures == 2);  // one graph for each slot
  CHECK(counts.instantiations == 2);
  auto const before = cost();
  auto const recorded = si::calls(Call::event_record);
  on_both.steps(6);
  train.settle();
  CHECK(cost() == before);
  CHECK(si::calls(Call::event_record) == recorded + 6);  // a replay is a launch and an event
  CHECK(counts.captures == 2);
  CHECK(counts.replays == 9);
  CHECK(counts.nodes > 0);

  on_both.data[0] = batch(4, 3, false);  // other objects
  on_both.steps(2);
  CHECK(counts.captures == 3);
  CHECK(counts.updates == 1);
  auto const more = batch(5, 4, false);  // another program
  for (int s = 0; s < 3; ++s) sg::run(train.step(more));
  CHECK(counts.captures == 4);
  CHECK(counts.instantiations + counts.updates == 4);
}

TEST_CASE("cuda/Gpus: no graph of a program is replayed after steps of others", "[cuda]") {
  si::Session const session;
  sg::cuda::GraphCounts counts;
  auto train = on_all(three, captured(on_gpus({0, 1, 2}), 1, &counts));
  auto host = on_host(three);
  auto const first = batch(6, 3, false);
  auto const steps = [&](auto const& data, int count) {
    for (int s = 0; s < count; ++s)
      REQUIRE(sg::run(train.step(data)).loss == sg::run(host.step(data)).loss);
  };
  steps(first, 3);
  CHECK(counts.captures == 1);
  CHECK(counts.replays == 2);
  for (int microbatches = 4; microbatches < 13; ++microbatches)  // more programs than are kept
    steps(batch(microbatches, microbatches, false), 1);
  CHECK(counts.captures == 1);
  steps(first, 3);
  CHECK(counts.captures == 2);
  CHECK(counts.replays == 4);
  REQUIRE((bits(train) == bits(host)));
}

TEST_CASE("cuda/Gpus: a stage that throws or synchronises while it is recorded ends the step alone",
          "[cuda]") {
  int const how = GENERATE(2, -2);
  si::Session const session;
  int armed = 0;
  sg::cuda::GraphCounts counts;
  auto train = with_trap(captured(on_gpus({0, 1, 2}), 2, &counts), &armed);
  auto calm = with_trap(on_gpus({0}), &armed);
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

}  // namespace gpus_graph_test
