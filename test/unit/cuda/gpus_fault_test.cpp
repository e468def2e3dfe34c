// SPDX-License-Identifier: Apache-2.0
#include <stagger/cuda/gpus.hpp>

#include "catch.hpp"

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <stagger/schedule/chimera.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/one_f_one_b.hpp>

#include "cuda/gpus_cases.hpp"

using namespace gpus_model;

namespace {

sg::Options options_with(double deadline_s, bool clips = false) {
  sg::Options options;
  options.deadline_s = deadline_s;
  if (clips) options.clip_norm = clip;
  return options;
}

constexpr double plenty_s = 60;

}  // namespace

TEST_CASE("cuda/Gpus: GPUs that are not there, or named twice, are refused in words", "[cuda]") {
  si::Session const session;
  auto const make = [](std::vector<int> devices) {
    return words_of([&] {
      static_cast<void>(over(on_gpus(devices), optimizer(), even_cuts(2),
                             made(sg::schedule::GPipe{}), options_with(plenty_s)));
    });
  };
  CHECK(has(make({0, 0}), "GPU 0 is named twice"));
  CHECK(has(make({0, 7}), "there is no GPU 7; this process may use 0 to 3"));
  CHECK(make({3, 1}).empty());
  si::set_machine({.devices = 0});
  CHECK(has(make({}), "no GPU that this process may use"));
}

TEST_CASE("cuda/Gpus: whatever CUDA refuses, parameters are those before or after the step",
          "[cuda]") {
  bool const owners = GENERATE(false, true);
  auto const schedule = owners ? made(sg::schedule::Chimera{}) : made(sg::schedule::OneFOneB{});
  std::vector<std::vector<std::byte>> course;
  {
    auto host = sg::Pipeline{model()}.with(sg::partition::Cuts{even_cuts(2)}, schedule, Loss{},
                                           optimizer(), sg::host::Threads{1}, [] {
                                             auto options = options_with(plenty_s, true);
                                             options.seed = run_seed;
                                             return options;
                                           }());
    for (int s = 0; s < 3; ++s) {
      auto const data = batch(s, 4, true);
      sg::run(host.step(data));
      course.push_back(bits(host));
    }
  }
  int number = 0;
  for (auto const call :
       {si::Call::launch_kernel, si::Call::event_record, si::Call::stream_wait_event,
        si::Call::memcpy_async, si::Call::memset_async, si::Call::set_device,
        si::Call::malloc_from_pool}) {
    for (int nth = 1; nth <= 100; nth += nth < 4 ? 1 : 9) {
      if (sanitized && number++ % 9 != 0) continue;
      CAPTURE(owners, static_cast<int>(call), nth);
      si::Session const session;
      {
        auto train = over(on_gpus({0, 1}), optimizer(), even_cuts(2), schedule,
                          options_with(plenty_s, true));
        auto const step = [&](int s) {
          auto const data = batch(s, 4, true);
          sg::run(train.step(data));
        };
        step(0);
        si::fail(call, nth, cudaErrorLaunchFailure);
        bool const failed = !words_of([&] { step(1); }).empty();
        si::fail(si::Call::comm_init, 1, 0);  // no more of it
        step(failed ? 1 : 2);
        REQUIRE((bits(train) == course[failed ? 1 : 2]));
      }
      si::reset();
      REQUIRE(session.left() == si::Live{});
    }
  }
}

namespace {

/// Throws in a step, on its rank.
struct Trap {
  using Input = Values;
  using Output = Values;
  int* armed = nullptr;
  void forward(sg::Context&, Values const& x, Values& y, sg::NothingSaved&) {
    if (*armed > 0 && --*armed == 0) throw std::runtime_error("sprung");
    y = x;
  }
  void backward_input(sg::Context&, Values const&, Values const& dy, Values& dx,
                      sg::NothingSaved&) {
    dx = dy;
  }
};

}  // namespace

TEST_CASE("cuda/Gpus: a stage that throws leaves parameters as before, and the next step is right",
          "[cuda]") {
  si::Session const session;
  int armed = 0;
  auto const make = [&](sg::cuda::Gpus gpus) {
    return sg::Pipeline{sg::Sequential{OnGpu<Embedding>{}, OnGpu<Dense>{}, Trap{&armed},
                                       OnGpu<Norm>{}, OnGpu<Dense>{Dense{7}}}}
        .with(sg::partition::Cuts{{2, 4}}, made(sg::schedule::OneFOneB{}), LossOnGpu{},
              sg::cuda::Enqueued<sg::optimizer::AdamW, Launch>{optimizer()}, std::move(gpus),
              options_with(plenty_s));
  };
  auto train = make(on_gpus({0, 1, 2}));
  auto calm = make(on_gpus({0}));
  for (int s = 0; s < 3; ++s) {
    auto const data = batch(s, 5, true);
    sg::run(calm.step(data));
    auto const before = bits(train);
    armed = 1 + 2 * s;
    CHECK_THROWS_WITH(sg::run(train.step(data)), "sprung");
    armed = 0;
    CHECK((bits(train) == before));
    sg::run(train.step(data));
    REQUIRE((bits(train) == bits(calm)));
  }
}

TEST_CASE("cuda/Gpus: after the first step of a program nothing is made, allocated or awaited",
          "[cuda]") {
  si::Session const session;
  auto train = over(on_gpus({0, 1, 2, 3}), optimizer(), even_cuts(4), made(sg::schedule::Chimera{}),
                    options_with(plenty_s, true));
  auto const data = batch(0, 4, false);
  auto const still = [] {
    using si::Call;
    std::uint64_t sum = 0;
    for (Call const call : {Call::event_create, Call::stream_create, Call::malloc,
                            Call::malloc_host, Call::malloc_from_pool, Call::pool_create,
                            Call::stream_synchronize, Call::memcpy, Call::memset})
      sum += si::calls(call);
    return sum;
  };
  for (int s = 0; s < 2; ++s) sg::run(train.step(data));
  auto const before = still();
  for (int s = 0; s < 3; ++s) sg::run(train.step(data));
  CHECK(still() == before);
}
