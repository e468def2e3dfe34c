// SPDX-License-Identifier: Apache-2.0
#include <stagger/cuda/loopback.hpp>

#include "catch.hpp"

#include <atomic>
#include <chrono>
#include <limits>

#include <stagger/cuda/tensor.hpp>

#include "cuda_stand_in/stand_in.hpp"
#include "engine/trap_model.hpp"

using namespace trap_model;
namespace si = cuda_stand_in;

namespace {

sg::cuda::Loopback on_host(bool capture = false) {
  sg::cuda::Loopback device;
  device.work = sg::cuda::Work::host;
  device.capture = capture;
  return device;
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

TEST_CASE("cuda/Loopback: what a stage throws ends the step, and the next step is right",
          "[cuda]") {
  bool const capture = GENERATE(false, true);
  int const microbatches = 3;
  auto const course = undisturbed(microbatches, 4);
  auto const all = calls(microbatches);
  int number = 0;
  for (auto const& trap : all) {
    if (sanitized && number++ % 7 != 0) continue;
    CAPTURE(name(trap), capture);
    si::Session const session;
    si::jitter(4);
    {
      auto const hook = make_hook();
      auto train = pipeline(on_host(capture), hook);
      auto const step = [&](int s) {
        auto const data = batch(microbatches, s);
        return sg::run(train.step(data));
      };
      step(0);
      step(1);
      *hook = [&](Call const& call) {
        if (call == trap) throw Trapped("trapped");
      };
      REQUIRE_THROWS_AS(step(2), Trapped);
      REQUIRE(bits(train) == course[2]);
      *hook = [](Call const&) {};
      step(2);
      step(3);
      REQUIRE(bits(train) == course[4]);
    }
    REQUIRE(session.left() == si::Live{});
  }
}

TEST_CASE(
    "cuda/Loopback: any CUDA call may fail at any time, the step says which, the next is right",
    "[cuda]") {
  int const microbatches = 3;
  auto const course = undisturbed(microbatches, 3);
  for (bool const capture : {false, true}) {
    for (auto const call :
         {si::Call::launch_host_func, si::Call::event_record, si::Call::stream_wait_event,
          si::Call::begin_capture, si::Call::graph_instantiate, si::Call::graph_launch}) {
      for (int const nth : {1, 2, 5, 17, 40}) {
        CAPTURE(capture, static_cast<int>(call), nth);
        si::Session const session;
        {
          auto train = pipeline(on_host(capture), make_hook());
          auto const step = [&](int s) {
            auto const data = batch(microbatches, s);
            return sg::run(train.step(data));
          };
          step(0);
          auto const before = si::calls(call);
          si::fail(call, nth, cudaErrorLaunchFailure);
          bool failed = false;
          try {
            step(1);
          } catch (sg::cuda::Error const& error) {
            failed = true;
            REQUIRE(error.result() == cudaErrorLaunchFailure);
          }
          REQUIRE(failed == (si::calls(call) - before >= static_cast<std::uint64_t>(nth)));
          si::fail(si::Call::comm_init, 1, 0);  // no more of it
          REQUIRE(bits(train) == course[failed ? 1 : 2]);
          if (failed) step(1);
          step(2);
          REQUIRE(bits(train) == course[3]);
        }
        REQUIRE(session.left() == si::Live{});
      }
    }
  }
}

TEST_CASE("cuda/Loopback: construction that fails says why and leaks nothing", "[cuda]") {
  si::Session const session;
  for (auto const call : {si::Call::set_device, si::Call::pool_create, si::Call::stream_create}) {
    si::fail(call, 1, cudaErrorMemoryAllocation);
    CHECK_THROWS_AS(pipeline(on_host(), make_hook()), sg::cuda::Error);
  }
  auto device = on_host();
  device.device = 9;
  try {
    static_cast<void>(pipeline(device, make_hook()));
    FAIL();
  } catch (sg::Error const& error) {
    CHECK(std::string(error.what()) == "there is no GPU 9; this process may use 0 to 3");
  }
  for (int nth = 1; nth <= 12; ++nth) {  // the first step makes streams and events
    auto train = pipeline(on_host(), make_hook());
    auto const data = batch(2);
    si::fail(nth <= 4 ? si::Call::stream_create : si::Call::event_create, nth,
             cudaErrorMemoryAllocation);
    CHECK_THROWS_AS(sg::run(train.step(data)), sg::cuda::Error);
    sg::run(train.step(data));
    CHECK(bits(train) == undisturbed(2, 1).back());
  }
  CHECK(session.left() == si::Live{});
}

TEST_CASE("cuda/Loopback: parameters on the GPU need an optimizer that is enqueued", "[cuda]") {
  si::Session const session;
  auto train = pipeline(sg::cuda::Loopback{}, make_hook());
  auto const data = batch(2);
  try {
    sg::run(train.step(data));
    FAIL();
  } catch (sg::Error const& error) {
    CHECK(error.code() == sg::Errc::bad_configuration);
    CHECK(std::string(error.what())
              .find("parameters on a GPU need an optimizer whose update is a kernel") == 0);
  }
}

TEST_CASE("cuda/Loopback: a lost device ends the step and every later one", "[cuda]") {
  si::Session const session;
  {
    auto const hook = make_hook();
    auto train = pipeline(on_host(), hook);
    auto const data = batch(4);
    sg::run(train.step(data));
    *hook = [](Call const& call) {
      if (call.microbatch == 2 && call.layer == 2) si::lose_device(cudaErrorIllegalAddress);
    };
    try {
      sg::run(train.step(data));
      FAIL();
    } catch (sg::cuda::Error const& error) {
      CHECK(error.result() == cudaErrorIllegalAddress);
    }
    auto const calls_so_far = [] {
      std::uint64_t sum = 0;
      for (int c = 0; c < static_cast<int>(si::Call::count); ++c)
        sum += si::calls(static_cast<si::Call>(c));
      return sum;
    };
    auto const before = calls_so_far();
    try {
      sg::run(train.step(data));
      FAIL();
    } catch (sg::Error const& error) {
      CHECK(error.code() == sg::Errc::device);
    }
    CHECK(calls_so_far() == before);  // no call after the device was lost
  }
}

TEST_CASE("cuda/Loopback: cancelling ends a step while the device works", "[cuda]") {
  si::Session const session;
  stagger::stop_source stop;
  auto const hook = make_hook();
  auto train = pipeline(on_host(), hook);
  *hook = [&](Call const& call) {
    if (call.layer == 3) stop.request_stop();
  };
  auto const data = batch(4);
  try {
    sg::run(train.step(data, stop.get_token()));
    FAIL();
  } catch (sg::Error const& error) {
    CHECK(error.code() == sg::Errc::cancelled);
  }
  CHECK(bits(train) == undisturbed(4, 0).back());
}

TEST_CASE(
    "cuda/Loopback: a host action that overruns the deadline is named, and the step ends with it",
    "[cuda]") {
  si::Session const session;
  std::atomic<bool> told{false};
  auto const hook = make_hook();
  sg::Options options;
  options.deadline_s = 0.05;
  auto train = pipeline(on_host(), hook, small_model::made(sg::schedule::OneFOneB{}), options);
  auto const data = batch(3);
  sg::run(train.step(data));
  // The step can only end once the action does, so the action lasts until the deadline must have
  // passed; longer, where the machine was too busy to notice.
  std::chrono::milliseconds lasts{400};
  *hook = [&](Call const& call) {
    if (call == Call{What::forward, 1, 2}) std::this_thread::sleep_for(lasts);
  };
  for (; !told && lasts < std::chrono::seconds(60); lasts *= 4) {
    try {
      sg::run(train.step(data));
    } catch (sg::Error const& error) {
      told = true;
      CHECK(error.code() == sg::Errc::deadline);
      CHECK(std::string(error.what()).find("rank 1 is in 1F2") != std::string::npos);
    }
  }
  CHECK(told);
}

TEST_CASE("cuda/Loopback: stages that enqueue run ahead of the device, message by message",
          "[cuda]") {
  si::Session const session;
  si::jitter(GENERATE(0U, 3U));
  {
    AddOne const stage;
    auto run = sg::Pipeline{stage, stage, stage}.with(sg::cuda::Loopback{});
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

TEST_CASE("cuda/Loopback: a recorded step of stages that enqueue has the device's own times",
          "[cuda]") {
  si::Session const session;
  {
    AddOne const stage;
    auto run = sg::Pipeline{stage, stage, stage}.with(sg::cuda::Loopback{});
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
        REQUIRE(timeline.rows[r].size() == 4);
        double last_s = 0;
        for (std::size_t m = 0; m < 4; ++m) {
          auto const& span = timeline.rows[r][m];
          CHECK(span.action.microbatch == static_cast<int>(m));
          CHECK(span.start_s >= last_s);
          CHECK(span.end_s >= span.start_s);
          if (r > 0) CHECK(span.start_s >= timeline.rows[r - 1][m].end_s);  // its input was there
          last_s = span.end_s;
        }
      }
    }
    auto const events = si::calls(si::Call::event_create);
    predict();
    CHECK(si::calls(si::Call::event_create) == events);
    run.record(false);
    predict();
    CHECK(run.timeline().rows[0].empty());
  }
  si::reset();
  CHECK(session.left() == si::Live{});
}

TEST_CASE("cuda/Loopback: a device that hangs is an error in time, and may be left behind",
          "[cuda]") {
  si::Session const session;
  Stuck const stuck;
  AddOne const stage;
  auto const start = std::chrono::steady_clock::now();
  {
    sg::Options options;
    options.deadline_s = 0.1;
    auto run = sg::Pipeline{stage, stuck, stage}.with(sg::cuda::Loopback{}, options);
    auto const inputs = device_inputs(2, {1});
    std::vector<sg::cuda::Tensor<>> outputs(2);
    try {
      sg::run(run.predict(inputs, outputs));
      FAIL();
    } catch (sg::Error const& error) {
      CHECK(error.code() == sg::Errc::deadline);
      CHECK(
          std::string(error.what()).find("rank 1 is in 1F0; rank 2 waits before 2F0 for rank 1") !=
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
