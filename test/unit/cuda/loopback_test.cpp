// SPDX-License-Identifier: Apache-2.0
#include <stagger/cuda/loopback.hpp>

#include "catch.hpp"

#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/interleaved.hpp>
#include <stagger/schedule/v_half.hpp>
#include <stagger/schedule/zero_bubble_h1.hpp>

#include "cuda_stand_in/stand_in.hpp"
#include "engine/typed_oracle.hpp"

using namespace small_model;
namespace si = cuda_stand_in;

namespace {

sg::cuda::Loopback on_host(bool capture = false, sg::cuda::GraphCounts* counts = nullptr) {
  sg::cuda::Loopback device;
  device.work = sg::cuda::Work::host;
  device.capture = capture;
  device.counts = counts;
  return device;
}

struct Named {
  char const* name;
  Made schedule;
};

std::vector<Named> schedules() {
  using namespace sg::schedule;
  return {{"gpipe", made(GPipe{})},
          {"1f1b", made(OneFOneB{})},
          {"1f1b deep", made(OneFOneB{.warmup = Warmup::deep})},
          {"gpipe, W late", split(made(GPipe{}), 3)},
          {"1f1b split", split(made(OneFOneB{}), 0)},
          {"zb-h1", made(ZeroBubbleH1{})}};
}

std::uint64_t device_calls_that_must_stand_still() {
  using si::Call;
  std::uint64_t sum = 0;
  for (Call const call : {Call::event_create, Call::stream_create, Call::malloc, Call::malloc_host,
                          Call::malloc_from_pool, Call::pool_create, Call::stream_synchronize})
    sum += si::calls(call);
  return sum;
}

}  // namespace

TEST_CASE("cuda/Loopback: parameters have the bits of typed loops, enqueued or replayed",
          "[cuda]") {
  bool const capture = GENERATE(false, true);
  unsigned const jitter = GENERATE(0U, 9U);
  int number = 0;
  for (int const microbatches : {1, 5}) {
    auto const data = batches(5, microbatches, true);
    auto const course = expected_course(data, true);
    for (auto const& [name, schedule] : schedules()) {
      for (int const stages : {1, 4, 7}) {
        if (sanitized && number++ % 5 != 0) continue;
        CAPTURE(name, capture, jitter, microbatches, stages);
        si::Session const session;
        si::jitter(jitter);
        sg::Options options;
        options.clip_norm = clip;
        options.recompute = stages == 4;
        {
          auto train = pipeline(on_host(capture), even_cuts(stages), schedule, options);
          REQUIRE(first_difference(train, data, course) == -1);
        }
        REQUIRE(session.left() == si::Live{});
      }
    }
  }
}

TEST_CASE("cuda/Loopback: chunks and interleaved stages have the bits of typed loops", "[cuda]") {
  auto const data = batches(4, 6, true);
  auto const course = expected_course(data, false);
  si::Session const session;
  si::jitter(3);
  std::vector<Made> const two_chunks{made(sg::schedule::Interleaved{.chunks_per_rank = 2}),
                                     made(sg::schedule::VHalf{})};
  for (auto const& schedule : two_chunks) {
    auto train = pipeline(on_host(true), even_cuts(4), schedule, {});
    REQUIRE(first_difference(train, data, course) == -1);
  }
}

TEST_CASE("cuda/Loopback: in steady state nothing is made, allocated or synchronised with",
          "[cuda]") {
  si::Session const session;
  sg::cuda::GraphCounts counts;
  bool const capture = GENERATE(false, true);
  auto train =
      pipeline(on_host(capture, &counts), even_cuts(4), made(sg::schedule::OneFOneB{}), {});
  auto const data = batches(8, 6, false);
  for (int s = 0; s < 2; ++s) sg::run(train.step(data[static_cast<std::size_t>(s)]));
  auto const before = device_calls_that_must_stand_still();
  auto const launches = si::calls(si::Call::launch_host_func);
  auto const waits = si::calls(si::Call::stream_wait_event);
  for (auto const& batch : data) sg::run(train.step(batch));
  CHECK(device_calls_that_must_stand_still() == before);
  if (capture) {
    CHECK(si::calls(si::Call::launch_host_func) == launches);  // one call for each iteration
    CHECK(si::calls(si::Call::graph_launch) == 9);
    CHECK(counts.captures == 1);
    CHECK(counts.instantiations == 1);
    CHECK(counts.replays == 9);
    CHECK(counts.nodes == 4 * (6 * 2 + 2));  // F and B of each, the last gradient, the update
  } else {
    // One wait for each message that the layout did not find implied, and none for what is in
    // order.
    CHECK(si::calls(si::Call::stream_wait_event) - waits == (waits / 2) * 8);
    CHECK(counts.captures == 0);
  }
}

TEST_CASE("cuda/Loopback: another number of microbatches is recorded anew, evaluation is not",
          "[cuda]") {
  si::Session const session;
  sg::cuda::GraphCounts counts;
  auto train = pipeline(on_host(true, &counts), even_cuts(3), made(sg::schedule::GPipe{}), {});
  auto host = pipeline(sg::host::Threads{1}, even_cuts(3), made(sg::schedule::GPipe{}), {});
  auto const both = [&](int microbatches, int steps) {
    for (int s = 0; s < steps; ++s) {
      auto const data = batch(s, microbatches, true);
      auto const a = sg::run(train.step(data));
      auto const b = sg::run(host.step(data));
      REQUIRE(a.loss == b.loss);
      REQUIRE(bits(train) == bits(host));
      REQUIRE(sg::run(train.evaluate(data)).loss == sg::run(host.evaluate(data)).loss);
    }
  };
  both(3, 3);
  CHECK(counts.replays == 0);  // between two evaluations, each step is the first of its program
  auto const steps = [&](int microbatches, int count) {
    for (int s = 0; s < count; ++s) {
      auto const data = batch(s, microbatches, true);
      REQUIRE(sg::run(train.step(data)).loss == sg::run(host.step(data)).loss);
    }
    REQUIRE(bits(train) == bits(host));
  };
  steps(3, 4);
  CHECK(counts.captures == 1);
  CHECK(counts.replays == 3);
  steps(5, 3);
  CHECK(counts.captures == 2);
  CHECK(counts.updates == 0);
  CHECK(counts.instantiations == 2);
  steps(3, 3);
  steps(5, 3);
  CHECK(counts.captures == 4);
}

TEST_CASE("cuda/Loopback: a coroutine may await its steps", "[cuda]") {
  si::Session const session;
  auto const data = batches(4, 3, true);
  auto const course = expected_course(data, false);
  auto train = pipeline(on_host(true), even_cuts(4), made(sg::schedule::OneFOneB{}), {});
  auto const loop = [](auto& trainer, auto const& all) -> sg::Task<double> {
    double loss = 0;
    for (auto const& one : all) {
      sg::Metrics const metrics = co_await trainer.step(one);
      loss = metrics.loss;
    }
    co_return loss;
  };
  CHECK(sg::run(loop(train, data)) == course.loss.back());
  CHECK(bits(train) == course.bits.back());
}
