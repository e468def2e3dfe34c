// SPDX-License-Identifier: Apache-2.0
#include <stagger/cuda/kernels.hpp>

#include "catch.hpp"

#include <stagger/schedule/chimera.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/named.hpp>
#include <stagger/schedule/pipe_dream.hpp>
#include <stagger/staleness/weight_stashing.hpp>

#include "enqueued_model.hpp"

using namespace enqueued_model;

namespace {

struct Case {
  char const* name;
  int ranks;
  int chunks;
  int microbatches;
};

/// Every schedule of the catalog that trains and flushes, in shapes that it allows.
constexpr Case cases[] = {
    {"gpipe", 4, 1, 5},        {"1f1b", 4, 1, 6},     {"interleaved", 2, 2, 4},
    {"looped-bfs", 2, 2, 5},   {"zb-h1", 3, 1, 5},    {"zb-h2", 3, 1, 6},
    {"zb-v", 2, 2, 5},         {"v-half", 2, 2, 6},   {"v-min", 2, 2, 6},
    {"v-1f1b", 2, 2, 5},       {"dualpipe", 2, 1, 4}, {"dualpipe-v", 2, 2, 5},
    {"chimera", 2, 1, 4},      {"hanayo", 2, 2, 4},   {"auto", 3, 1, 4},
    {"seq-1f1b", 3, 1, 4},     {"fifo", 3, 1, 4},     {"pipedream", 3, 1, 5},
    {"pipedream-2bw", 3, 1, 4}};

Made schedule_of(Case const& c) {
  std::string const name = c.name;
  return {[name](sg::Shape shape) {
            if (name == "seq-1f1b") shape.microbatches /= 2;  // two slices each
            return sg::schedule::Named{name}.table(shape);
          },
          c.chunks};
}

sg::Options options_with(bool clips, bool recompute) {
  sg::Options options;
  if (clips) options.clip_norm = clip;
  options.recompute = recompute;
  options.seed = run_seed;
  return options;
}

template <class Rule>
void same_as_on_the_host(Case const& c, Rule rule, bool clips, bool recompute, bool capture) {
  CAPTURE(c.name, capture, clips, recompute);
  bool const slices = std::string(c.name) == "seq-1f1b";
  si::Session const session;
  si::jitter(7);
  {
    auto const cuts = even_cuts(c.ranks * c.chunks);
    sg::cuda::GraphCounts counts;
    auto train = enqueued(on_device(capture, &counts), rule, cuts, schedule_of(c),
                          options_with(clips, recompute));
    auto host = sg::Pipeline{model()}.with(sg::partition::Cuts{cuts}, schedule_of(c), Loss{}, rule,
                                           sg::host::Threads{1}, options_with(clips, recompute));
    for (int s = 0; s < 4; ++s) {
      auto const data = batch(s, slices ? 2 * c.microbatches : c.microbatches, true);
      auto const here = sg::run(host.step(data));
      auto const there = sg::run(train.step(data));
      REQUIRE(there.loss == here.loss);
      REQUIRE(there.gradient_norm == here.gradient_norm);
      REQUIRE((bits(train) == bits(host)));
    }
    auto const data = batch(9, slices ? 2 * c.microbatches : c.microbatches, true);
    REQUIRE(sg::run(train.evaluate(data)).loss == sg::run(host.evaluate(data)).loss);
    REQUIRE(counts.replays == (capture ? 3 : 0));
  }
  si::reset();
  REQUIRE(session.left() == si::Live{});
}

}  // namespace

TEST_CASE("cuda/Enqueued: parameters on the GPU have the host's bits under every schedule",
          "[cuda]") {
  int number = 0;
  for (auto const& c : cases) {
    for (bool const capture : {false, true}) {
      if (sanitized && number++ % 5 != 0) continue;
      same_as_on_the_host(c, optimizer(), true, false, capture);
      same_as_on_the_host(c, sg::optimizer::Sgd{.rate = 0.1, .momentum = 0.5}, false, true,
                          capture);
    }
  }
}

TEST_CASE("cuda/Enqueued: the catalog has no schedule that is not run here", "[cuda]") {
  for (auto const& entry : sg::schedule::catalog) {
    CAPTURE(entry.name);
    CHECK((entry.name == "forward-only" ||
           std::any_of(std::begin(cases), std::end(cases),
                       [&](Case const& c) { return entry.name == c.name; })));
  }
}

TEST_CASE("cuda/Enqueued: without a flush each stage updates alone, with the host's bits",
          "[cuda]") {
  bool const capture = GENERATE(false, true);
  si::Session const session;
  si::jitter(5);
  {
    auto const with = [](auto device, auto chain, auto loss, auto rule) {
      return sg::Pipeline{std::move(chain)}.with(sg::partition::Cuts{even_cuts(3)},
                                                 sg::schedule::PipeDream{},
                                                 sg::staleness::WeightStashing{}, loss, rule,
                                                 std::move(device), options_with(false, false));
    };
    auto train = with(on_device(capture), enqueued_layers(), EnqueuedLoss{},
                      sg::cuda::Enqueued<sg::optimizer::AdamW, Launch>{optimizer()});
    auto host = with(sg::host::Threads{1}, model(), Loss{}, optimizer());
    for (int s = 0; s < 4; ++s) {
      auto const data = batch(s, 8, true);
      CHECK(sg::run(host.stream(data)).loss == sg::run(train.stream(data)).loss);
      REQUIRE((bits(train) == bits(host)));
    }
    for (int const nth : {1, 8, 16}) {  // an error brings back what was before the stream
      auto const before = bits(train);
      auto const data = batch(nth, 8, true);
      si::fail(si::Call::event_record, nth, cudaErrorLaunchFailure);
      CHECK_THROWS_AS(sg::run(train.stream(data)), sg::cuda::Error);
      REQUIRE((bits(train) == before));
    }
    si::fail(si::Call::comm_init, 1, 0);  // no more of it
    auto const data = batch(7, 8, true);
    sg::run(host.stream(data));
    sg::run(train.stream(data));
    CHECK((bits(train) == bits(host)));
  }
  si::reset();
  CHECK(session.left() == si::Live{});
}

TEST_CASE("cuda/Enqueued: whatever CUDA refuses, parameters are those before or after the step",
          "[cuda]") {
  auto const course = expected_course(batches(4, 3, true), true);
  int number = 0;
  for (bool const capture : {false, true}) {
    for (auto const call :
         {si::Call::launch_kernel, si::Call::event_record, si::Call::stream_wait_event,
          si::Call::memcpy_async, si::Call::memset_async, si::Call::begin_capture,
          si::Call::graph_instantiate, si::Call::graph_launch}) {
      for (int nth = 1; nth <= 100; nth += nth < 4 ? 1 : 7) {
        if (sanitized && number++ % 9 != 0) continue;
        CAPTURE(capture, static_cast<int>(call), nth);
        si::Session const session;
        {
          auto train = enqueued(on_device(capture), optimizer(), even_cuts(3),
                                made(sg::schedule::GPipe{}), options_with(true, false));
          auto const step = [&](int s) {
            auto const data = batch(s, 3, true);
            return sg::run(train.step(data));
          };
          step(0);
          si::fail(call, nth, cudaErrorLaunchFailure);
          bool failed = false;
          try {
            step(1);
          } catch (sg::cuda::Error const& error) {
            failed = true;
            REQUIRE(error.result() == cudaErrorLaunchFailure);
          }
          si::fail(si::Call::comm_init, 1, 0);  // no more of it
          REQUIRE((bits(train) == course.bits[failed ? 0 : 1]));
          if (failed) step(1);
          step(2);
          step(3);
          REQUIRE((bits(train) == course.bits[3]));
        }
        si::reset();
        REQUIRE(session.left() == si::Live{});
      }
    }
  }
}

TEST_CASE("cuda/Enqueued: memory that is not there is refused in words, and nothing leaks",
          "[cuda]") {
  si::Session const session;
  bool refused = true;
  int nth = 1;
  for (; refused; ++nth) {
    si::fail(si::Call::malloc, nth, cudaErrorMemoryAllocation);
    try {
      auto const cuts = even_cuts(2);
      auto train = enqueued(on_device(), optimizer(), cuts, made(sg::schedule::Chimera{}),
                            options_with(true, false));
      auto const data = batch(0, 2, true);
      sg::run(train.step(data));
      refused = false;
    } catch (sg::cuda::Error const& error) {
      REQUIRE(error.result() == cudaErrorMemoryAllocation);
      REQUIRE(std::string(error.what()).find("the GPU has no ") == 0);
    }
    si::fail(si::Call::comm_init, 1, 0);
  }
  CHECK(nth > 20);
  si::reset();
  CHECK(session.left() == si::Live{});
}

TEST_CASE("cuda/Enqueued: an asynchronous error ends the step although it was decided", "[cuda]") {
  si::Session const session;
  {
    auto train = enqueued(on_device(GENERATE(false, true)), optimizer(), even_cuts(4),
                          made(sg::schedule::OneFOneB{}), options_with(true, false));
    for (int s = 0; s < 3; ++s) {
      auto const data = batch(s, 4, true);
      sg::run(train.step(data));
    }
    auto const data = batch(3, 4, true);
    lose_in_update = true;
    try {
      sg::run(train.step(data));
      FAIL();
    } catch (sg::cuda::Error const& error) {
      CHECK(error.result() == cudaErrorIllegalAddress);
    }
    try {
      sg::run(train.step(data));
      FAIL();
    } catch (sg::Error const& error) {
      CHECK(error.code() == sg::Errc::device);
    }
  }
}

TEST_CASE("cuda/Enqueued: in steady state nothing is made, allocated or synchronised with",
          "[cuda]") {
  si::Session const session;
  bool const capture = GENERATE(false, true);
  auto train = enqueued(on_device(), optimizer(), even_cuts(4), made(sg::schedule::OneFOneB{}),
                        options_with(true, true));
  auto const& counts = train.capture(capture);
  auto data = batch(0, 6, false);
  auto const still = [] {
    using si::Call;
    std::uint64_t sum = 0;
    for (Call const call :
         {Call::event_create, Call::stream_create, Call::malloc, Call::malloc_host,
          Call::malloc_from_pool, Call::pool_create, Call::stream_synchronize, Call::memcpy,
          Call::memset, Call::graph_instantiate})
      sum += si::calls(call);
    return sum;
  };
  for (int s = 0; s < 2; ++s) sg::run(train.step(data));
  auto const before = still();
  auto const kernels_before = si::calls(si::Call::launch_kernel);
  for (int s = 0; s < 5; ++s) sg::run(train.step(data));
  CHECK(still() == before);
  if (!capture) return;
  CHECK(si::calls(si::Call::launch_kernel) == kernels_before);
  CHECK(counts.captures == 1);
  CHECK(counts.replays == 6);
  auto const other = batch(1, 6, false);  // other memory: the graph takes it over
  sg::run(train.step(other));
  CHECK(counts.captures == 2);
  CHECK(counts.updates == 1);
  CHECK(counts.instantiations == 1);
}

TEST_CASE("cuda/Enqueued: the host may write parameters between steps, and goes on from them",
          "[cuda]") {
  si::Session const session;
  auto const data = batches(4, 3, true);
  auto const course = expected_course(data, true);
  auto first = enqueued(on_device(true), optimizer(), even_cuts(3), made(sg::schedule::GPipe{}),
                        options_with(true, false));
  for (std::size_t s = 0; s < 2; ++s) sg::run(first.step(data[s]));
  auto second = enqueued(on_device(), optimizer(), even_cuts(7), made(sg::schedule::OneFOneB{}),
                         options_with(true, false));
  auto const from = first.parameters();
  auto const to = second.parameters();
  for (std::size_t i = 0; i < from.size(); ++i) {
    REQUIRE(from[i].name == to[i].name);
    std::copy(from[i].value.begin(), from[i].value.end(), to[i].value.begin());
    for (std::size_t k = 0; k < 2; ++k)
      std::copy(from[i].state[k].begin(), from[i].state[k].end(), to[i].state[k].begin());
  }
  CHECK((bits(second) == course.bits[1]));  // asked for again before a step takes them
  second.resume(first.steps());
  for (std::size_t s = 2; s < 4; ++s) sg::run(second.step(data[s]));
  CHECK((bits(second) == course.bits[3]));
  first.optimizer().rate = 0;  // its numbers count although the graph is not recorded again
  first.optimizer().weight_decay = 0;
  auto const values = [](auto& train) { return train.parameters()[0].template values<float>()[0]; };
  float const before = values(first);
  sg::run(first.step(data[2]));
  CHECK(values(first) == before);
}

TEST_CASE("cuda/Enqueued: a program without the kernels it needs is refused by what is missing",
          "[cuda]") {
  si::Session const session;
  auto const message = [](Made schedule, int stages, sg::Options options) {
    auto device = on_device();
    device.kernels = nullptr;
    auto train = enqueued(device, optimizer(), even_cuts(stages), std::move(schedule), options);
    auto const data = batch(0, 2, true);
    try {
      sg::run(train.step(data));
    } catch (sg::Error const& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(message(made(sg::schedule::GPipe{}), 3, options_with(false, false)).empty());
  CHECK(message(made(sg::schedule::GPipe{}), 3, options_with(true, false))
            .find("Options::clip_norm needs kernels") == 0);
  CHECK(message(made(sg::schedule::Chimera{}), 2, options_with(false, false))
            .find("stages with two owners, or replicas, need a kernel") == 0);
}
