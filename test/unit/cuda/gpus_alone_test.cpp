// SPDX-License-Identifier: Apache-2.0
#include <stagger/cuda/gpus_backend.hpp>

#include "catch.hpp"

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <stagger/cuda/tensor.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/schedule/gpipe.hpp>

#include "cuda/checks.hpp"

namespace gpus_alone_test {

using namespace enqueued_model;

namespace {

auto on_one_gpu(bool capture = false, sg::cuda::GraphCounts* counts = nullptr, int stages = 3) {
  return enqueued(on_device(capture, counts), optimizer(), even_cuts(stages),
                  made(sg::schedule::OneFOneB{}), clipping());
}

/// Adds one to every element, on the device: what a kernel would do.
struct AddOne {
  using Input = sg::cuda::Tensor<>;
  using Output = sg::cuda::Tensor<>;
  struct Kernel {
    float const* x;
    float* y;
    std::size_t size;
    std::atomic<int>* ran;
  };
  std::shared_ptr<std::atomic<int>> ran = std::make_shared<std::atomic<int>>(0);
  std::shared_ptr<std::vector<std::unique_ptr<Kernel>>> kernels =
      std::make_shared<std::vector<std::unique_ptr<Kernel>>>();  // arguments, which a real kernel
                                                                 // launch copies
  void forward(sg::Context&, Input const& x, Output& y, sg::NothingSaved&) {
    y.resize_like(x);
    kernels->push_back(std::make_unique<Kernel>(Kernel{x.data(), y.data(), x.size(), ran.get()}));
    sg::cuda::check(cudaLaunchHostFunc(
                        sg::cuda::stream(),
                        [](void* data) {
                          auto const& kernel = *static_cast<Kernel*>(data);
                          for (std::size_t i = 0; i < kernel.size; ++i)
                            kernel.y[i] = kernel.x[i] + 1;
                          ++*kernel.ran;
                        },
                        kernels->back().get()),
                    "launch a kernel");
  }
  void backward_input(sg::Context&, Input const&, Output const&, Input&, sg::NothingSaved&) {}
};

/// Holds its stream until the test lets it go.
struct Stuck {
  using Input = sg::cuda::Tensor<>;
  using Output = sg::cuda::Tensor<>;
  std::shared_ptr<std::atomic<bool>> open = std::make_shared<std::atomic<bool>>(false);
  void forward(sg::Context&, Input const& x, Output& y, sg::NothingSaved&) {
    y.resize_like(x);
    cudaLaunchHostFunc(
        sg::cuda::stream(), [](void* gate) { static_cast<std::atomic<bool>*>(gate)->wait(false); },
        open.get());
  }
  void backward_input(sg::Context&, Input const&, Output const&, Input&, sg::NothingSaved&) {}
};

std::vector<sg::cuda::Tensor<>> device_inputs(int microbatches, std::vector<float> const& values) {
  std::vector<sg::cuda::Tensor<>> inputs;
  for (int m = 0; m < microbatches; ++m) {
    inputs.emplace_back(std::initializer_list<std::size_t>{values.size()});
    std::copy(values.begin(), values.end(),
              inputs.back().data());  // the stand-in's memory is the host's
  }
  return inputs;
}

}  // namespace

TEST_CASE("cuda/Gpus: what a stage throws ends the step, and the next step is right", "[cuda]") {
  bool const capture = GENERATE(false, true);
  auto const data = batches(4, 3, true);
  auto const course = expected_course(data, true);
  int nth = 1;
  for (bool thrown = true; thrown; nth += sanitized ? 5 : 1) {
    CAPTURE(nth, capture);
    si::Session const session;
    si::jitter(4);
    {
      auto train = on_one_gpu(capture);
      sg::run(train.step(data[0]));
      throw_in = nth;
      try {
        sg::run(train.step(data[1]));
        thrown = false;
      } catch (std::runtime_error const& error) {
        REQUIRE(std::string(error.what()) == "trapped");
        REQUIRE((bits(train) == course.bits[0]));
      }
      throw_in = 0;
      if (thrown) sg::run(train.step(data[1]));
      sg::run(train.step(data[2]));
      sg::run(train.step(data[3]));
      REQUIRE((bits(train) == course.bits[3]));
    }
    si::reset();
    REQUIRE(session.left() == si::Live{});
  }
  CHECK(nth > 40);  // as many functions of layers does a step call
}

TEST_CASE("cuda/Gpus: a step costs a wait for each message and a node for each kernel", "[cuda]") {
  si::Session const session;
  sg::cuda::GraphCounts counts;
  bool const capture = GENERATE(false, true);
  auto train = on_one_gpu(capture, &counts, 4);
  auto const data = batch(0, 6, false);
  for (int s = 0; s < 2; ++s) sg::run(train.step(data));
  auto const waits = si::calls(si::Call::stream_wait_event);
  auto const records = si::calls(si::Call::event_record);
  for (int s = 0; s < 8; ++s) sg::run(train.step(data));
  if (capture) {
    CHECK(si::calls(si::Call::stream_wait_event) == waits);
    CHECK(si::calls(si::Call::event_record) == records + 8);  // a replay is a launch and an event
    CHECK(si::calls(si::Call::graph_launch) == 9);
    CHECK(counts.replays == 9);
    CHECK(counts.captures == 1);
  } else {
    // One wait for each message that the layout did not find implied, and none for what is in
    // order; and two for each rank's stream, which follows the first one and is followed by it.
    CHECK(si::calls(si::Call::stream_wait_event) - waits == (waits / 2) * 8);
    std::size_t needed = 2 * 4;
    for (auto const& rank : train.program(6).ranks) needed += rank.waits.size();
    CHECK(si::calls(si::Call::stream_wait_event) - waits == needed * 8);
    CHECK(counts.captures == 0);
  }
}

TEST_CASE("cuda/Gpus: another number of microbatches is recorded anew, evaluation is not",
          "[cuda]") {
  si::Session const session;
  sg::cuda::GraphCounts counts;
  auto train = on_one_gpu(true, &counts);
  auto host = pipeline(sg::host::Threads{1}, even_cuts(3), made(sg::schedule::GPipe{}), clipping());
  auto const both = [&](int microbatches, int steps) {
    for (int s = 0; s < steps; ++s) {
      auto const data = batch(s, microbatches, true);
      REQUIRE(sg::run(train.step(data)).loss == sg::run(host.step(data)).loss);
      REQUIRE((bits(train) == bits(host)));
      REQUIRE(sg::run(train.evaluate(data)).loss == sg::run(host.evaluate(data)).loss);
    }
  };
  both(3, 3);
  CHECK(counts.replays == 0);  // between two evaluations, each step is the first of its program
  std::vector<Batch> kept;     // so that no batch lies where another one lay
  auto const steps = [&](int microbatches, int count) {
    for (int s = 0; s < count; ++s) {
      kept.push_back(batch(s, microbatches, true));
      REQUIRE(sg::run(train.step(kept.back())).loss == sg::run(host.step(kept.back())).loss);
    }
    REQUIRE((bits(train) == bits(host)));
  };
  kept.reserve(16);
  steps(3, 4);
  CHECK(counts.captures == 3);
  CHECK(counts.replays == 3);
  CHECK(counts.instantiations == 1);
  steps(5, 3);
  CHECK(counts.captures == 5);
  CHECK(counts.instantiations == 2);
  steps(3, 3);
  steps(5, 3);
  CHECK(counts.captures == 9);
}

TEST_CASE("cuda/Gpus: a coroutine may await its steps", "[cuda]") {
  si::Session const session;
  auto const data = batches(4, 3, true);
  auto const course = expected_course(data, true);
  auto train = on_one_gpu(true);
  auto const loop = [](auto& trainer, auto const& all) -> sg::Task<double> {
    double loss = 0;
    for (auto const& one : all) {
      sg::Metrics const metrics = co_await trainer.step(one);
      loss = metrics.loss;
    }
    co_return loss;
  };
  CHECK(sg::run(loop(train, data)) == course.loss.back());
  CHECK((bits(train) == course.bits.back()));
}

TEST_CASE("cuda/Gpus: construction that fails says why and leaks nothing", "[cuda]") {
  si::Session const session;
  for (auto const call : {si::Call::set_device, si::Call::pool_create, si::Call::stream_create}) {
    si::fail(call, 1, cudaErrorMemoryAllocation);
    CHECK_THROWS_AS(on_one_gpu(), sg::cuda::Error);
  }
  auto const data = batch(0, 2, true);
  for (int nth = 1; nth <= 12; ++nth) {  // the first step makes streams and events
    auto train = on_one_gpu();
    si::fail(nth <= 3 ? si::Call::stream_create : si::Call::event_create, nth,
             cudaErrorMemoryAllocation);
    CHECK_THROWS_AS(sg::run(train.step(data)), sg::cuda::Error);
    CHECK(sg::run(train.step(data)).loss == expected_course({data}, true).loss[0]);
  }
  CHECK(session.left() == si::Live{});
}

TEST_CASE("cuda/Gpus: parameters on the GPU need an optimizer that is enqueued", "[cuda]") {
  si::Session const session;
  auto train = sg::Pipeline{enqueued_layers()}.with(sg::partition::Cuts{even_cuts(3)},
                                                    made(sg::schedule::GPipe{}), EnqueuedLoss{},
                                                    optimizer(), on_device());
  auto const data = batch(0, 2, true);
  try {
    sg::run(train.step(data));
    FAIL();
  } catch (sg::Error const& error) {
    CHECK(error.code() == sg::Errc::bad_configuration);
    CHECK(std::string(error.what())
              .find("parameters on a GPU need an optimizer whose update is a kernel") == 0);
  }
}

TEST_CASE("cuda/Gpus: cancelling ends a step while it is enqueued", "[cuda]") {
  si::Session const session;
  stagger::stop_source stop;
  auto const data = batches(2, 4, true);
  auto const course = expected_course(data, true);
  auto train = on_one_gpu();
  sg::run(train.step(data[0]));
  stop_at = 9;
  stopped_by = &stop;
  try {
    sg::run(train.step(data[1], stop.get_token()));
    FAIL();
  } catch (sg::Error const& error) {
    CHECK(error.code() == sg::Errc::cancelled);
  }
  CHECK((bits(train) == course.bits[0]));
  sg::run(train.step(data[1]));
  CHECK((bits(train) == course.bits[1]));
}

TEST_CASE("cuda/Gpus: on one GPU each rank has a stream, and the profiler is told each action",
          "[cuda]") {
  si::Session const session;
  static std::vector<std::string> names;
  static int open = 0;
  names.clear();
  auto device = on_device();
  device.ranges.begin = [](char const* name) { names.emplace_back(name), ++open; };
  device.ranges.end = [] { --open; };
  auto const streams = session.left().streams;
  auto train = enqueued(device, optimizer(), even_cuts(3), made(sg::schedule::GPipe{}), clipping());
  auto const data = batch(0, 2, true);
  sg::run(train.step(data));
  CHECK(session.left().streams - streams == 3 + 2);  // the GPU's first, and the pool's
  CHECK(open == 0);
  CHECK(std::count(names.begin(), names.end(), "1F0") == 1);
  CHECK(std::count(names.begin(), names.end(), "0B1") == 1);
  CHECK(names.size() == 3 * 2 * 2);
}

TEST_CASE("cuda/Gpus: stages that enqueue run ahead of the device, message by message", "[cuda]") {
  si::Session const session;
  si::jitter(GENERATE(0U, 3U));
  {
    AddOne const stage;
    auto run = sg::Pipeline{stage, stage, stage}.with(sg::cuda::Gpus{.devices = {0}});
    auto const inputs = device_inputs(5, {1, 2, 3});
    std::vector<sg::cuda::Tensor<>> outputs(5);
    for (int turn = 0; turn < 3; ++turn) {
      sg::run(run.predict(inputs, outputs));
      for (auto const& y : outputs) {
        REQUIRE(y.size() == 3);
        REQUIRE(y.data()[0] == 4);
        REQUIRE(y.data()[2] == 6);
      }
    }
    CHECK(si::calls(si::Call::malloc_from_pool) <= 5 + 2 * 5);
  }
  si::reset();
  CHECK(session.left() == si::Live{});
}

TEST_CASE("cuda/Gpus: a recorded step of stages that enqueue has the device's own times",
          "[cuda]") {
  si::Session const session;
  {
    AddOne const stage;
    auto run = sg::Pipeline{stage, stage, stage}.with(sg::cuda::Gpus{.devices = {0}});
    auto const inputs = device_inputs(4, {1, 2});
    std::vector<sg::cuda::Tensor<>> outputs(4);
    auto const predict = [&] { sg::run(run.predict(inputs, outputs)); };
    predict();
    run.record(true);
    for (int turn = 0; turn < 2; ++turn) {
      predict();
      auto const timeline = run.timeline();
      REQUIRE(timeline.ranks() == 3);
      for (std::size_t r = 0; r < 3; ++r) {
        REQUIRE(timeline.row(r).size() == 4);
        double last_s = 0;
        for (std::size_t m = 0; m < 4; ++m) {
          auto const& span = timeline.row(r)[m];
          CHECK(span.action.microbatch == static_cast<int>(m));
          CHECK(span.start_s >= last_s);
          CHECK(span.end_s >= span.start_s);
          if (r > 0) CHECK(span.start_s >= timeline.row(r - 1)[m].end_s);  // its input was there
          last_s = span.end_s;
        }
      }
    }
    auto const events = si::calls(si::Call::event_create);
    predict();
    CHECK(si::calls(si::Call::event_create) == events);
    run.record(false);
    predict();
    CHECK_THROWS_WITH(run.timeline(), Catch::Contains("was not recorded"));
  }
  si::reset();
  CHECK(session.left() == si::Live{});
}

TEST_CASE("cuda/Gpus: a device that hangs is an error in time, and may be left behind", "[cuda]") {
  si::Session const session;
  Stuck const stuck;
  AddOne const stage;
  auto const start = std::chrono::steady_clock::now();
  {
    sg::Options options;
    options.deadline_s = 0.1;
    auto run = sg::Pipeline{stage, stuck, stage}.with(sg::cuda::Gpus{.devices = {0}}, options);
    auto const inputs = device_inputs(2, {1});
    std::vector<sg::cuda::Tensor<>> outputs(2);
    try {
      sg::run(run.predict(inputs, outputs));
      FAIL();
    } catch (sg::Error const& error) {
      CHECK(error.code() == sg::Errc::deadline);
      CAPTURE(error.what());
      CHECK(std::string(error.what())
                .find("rank 1 is still at 1F0; rank 2 waits before 2F0 for rank 1") !=
            std::string::npos);
    }
    CHECK_THROWS_AS(sg::run(run.predict(inputs, outputs)), sg::Error);
    stuck.open->store(true);  // what was left behind comes to its end
    stuck.open->notify_all();
    while (stage.ran->load() < 4) std::this_thread::yield();
  }
  CHECK(std::chrono::steady_clock::now() - start <
        std::chrono::seconds(60));  // an end, not a speed
}

}  // namespace gpus_alone_test
