// SPDX-License-Identifier: Apache-2.0
#include <stagger/cuda/kernels.hpp>

#include "catch.hpp"

#include <stagger/schedule/chimera.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/named.hpp>
#include <stagger/schedule/pipe_dream.hpp>
#include <stagger/staleness/weight_stashing.hpp>

#include "cuda/gpus_cases.hpp"
#include "cuda/kernel_cases.hpp"

namespace parameters_test {

using namespace gpus_model;

namespace {

template <class Rule>
void same_as_on_the_host(Case const& c, Rule rule, bool clips, bool recompute, bool capture) {
  CAPTURE(c.name, capture, clips, recompute);
  si::Session const session;
  si::jitter(7);
  astray = 0;
  {
    auto const options = options_with(clips, recompute);
    sg::cuda::GraphCounts counts;
    auto train = enqueued(on_device(capture, &counts), rule, c.cuts(), schedule_of(c), options);
    auto host = on_host(c, rule, options);
    check_same(train, host, [&](int s) { return batch(s, c.parts(), true); });
    REQUIRE(counts.replays == (capture ? 3 : 0));
  }
  CHECK(astray == 0);
  si::reset();
  REQUIRE(session.left() == si::Live{});
}

}  // namespace

TEST_CASE("cuda/Enqueued: parameters on the GPU have the host's bits under every schedule",
          "[cuda]") {
  int number = 0;
  for (auto const& c : catalog_cases) {
    for (bool const capture : {false, true}) {
      if (sanitized && number++ % 5 != 0) continue;
      same_as_on_the_host(c, optimizer(), true, false, capture);
      same_as_on_the_host(c, sg::optimizer::Sgd{.rate = 0.1, .momentum = 0.5}, false, true,
                          capture);
    }
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
  bool const capture = GENERATE(false, true);
  CAPTURE(capture);
  check_refusals(
      {.calls = {si::Call::launch_kernel, si::Call::event_record, si::Call::stream_wait_event,
                 si::Call::memcpy_async, si::Call::memset_async, si::Call::begin_capture,
                 si::Call::graph_instantiate, si::Call::graph_launch},
       .most = 100,
       .stride = 7},
      [&] {
        return enqueued(on_device(capture), optimizer(), even_cuts(3), made(sg::schedule::GPipe{}),
                        clipping());
      },
      [](int s) { return batch(s, 3, true); }, course.bits);
}

TEST_CASE("cuda/Enqueued: memory that is not there is refused in words, and nothing leaks",
          "[cuda]") {
  check_out_of_memory([] {
    auto train =
        enqueued(on_device(), optimizer(), even_cuts(2), made(sg::schedule::Chimera{}), clipping());
    auto const data = batch(0, 2, true);
    sg::run(train.step(data));
  });
}

TEST_CASE("cuda/Enqueued: an asynchronous error ends the step although it was decided", "[cuda]") {
  si::Session const session;
  {
    auto train = enqueued(on_device(GENERATE(false, true)), optimizer(), even_cuts(4),
                          made(sg::schedule::OneFOneB{}), clipping());
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
  check_steady(train, data);
  auto const before = costly_calls();
  auto const kernels_before = si::calls(si::Call::launch_kernel);
  for (int s = 0; s < 2; ++s) sg::run(train.step(data));
  CHECK(costly_calls() == before);
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
  auto first =
      enqueued(on_device(true), optimizer(), even_cuts(3), made(sg::schedule::GPipe{}), clipping());
  for (std::size_t s = 0; s < 2; ++s) sg::run(first.step(data[s]));
  auto second =
      enqueued(on_device(), optimizer(), even_cuts(7), made(sg::schedule::OneFOneB{}), clipping());
  copy_parameters(first, second);
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

TEST_CASE("cuda/parameter_kernels: sums, norms and updates have the bits of the host's", "[cuda]") {
  si::Session const session;
  kernel_cases::check_all(0, 9'001);
}

TEST_CASE("cuda/Enqueued: a program without the kernels it needs is refused by what is missing",
          "[cuda]") {
  si::Session const session;
  auto const message = [](Made schedule, int stages, sg::Options options) {
    auto device = on_device();
    device.kernels = nullptr;
    options.non_finite = sg::NonFinite::ignore;
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
  CHECK(message(made(sg::schedule::GPipe{}), 3, clipping())
            .find("Options::clip_norm needs kernels") == 0);
  CHECK(message(made(sg::schedule::Chimera{}), 2, options_with(false, false))
            .find("stages with two owners, or replicas, need a kernel") == 0);
}

}  // namespace parameters_test
