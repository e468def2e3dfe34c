// SPDX-License-Identifier: Apache-2.0
#include <stagger/nccl/gpus.hpp>

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

#include "gpus_model.hpp"
#include "gpus_processes.hpp"

using namespace gpus_model;
using namespace gpus_processes;

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

sg::Options options_with(double deadline_s, bool clips = false) {
  sg::Options options;
  options.deadline_s = deadline_s;
  if (clips) options.clip_norm = clip;
  return options;
}

constexpr double plenty_s = 60;

/// Never gives it back.
void keep(void const* thing) {
  static auto& all = *new std::vector<void const*>;
  all.push_back(thing);
}

}  // namespace

TEST_CASE("nccl/Gpus: GPUs that are not there, or named twice, are refused in words", "[nccl]") {
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

TEST_CASE("nccl/Gpus: a process that never comes is an error in time", "[nccl]") {
  si::Session const session;
  {
    auto const invited = invitation();
    auto gpus = process(on_gpus({}), 0, 2, invited);
    gpus.meet_s = 0.2;
    auto const start = std::chrono::steady_clock::now();
    auto const words = words_of([&] {
      static_cast<void>(over(gpus, optimizer(), even_cuts(2), made(sg::schedule::GPipe{}),
                             options_with(plenty_s)));
    });
    CHECK(has(words, "rank 0 of 2 waited 0.2 s to join a communicator"));
    CHECK(seconds_since(start) < 30);  // a machine may be busy
  }
  si::reset();
  CHECK(session.left() == si::Live{});
}

TEST_CASE("nccl/Gpus: processes with another pipeline are refused by what differs", "[nccl]") {
  si::Session const session;
  struct Way {
    char const* words;  // of process 1, which alone does otherwise
    void (*change)(sg::nccl::Gpus&, sg::Options&, std::vector<int>&);
  };
  Way const ways[] = {
      {"Options::recompute: here (process 1) it is true",
       [](auto&, auto& options, auto&) { options.recompute = true; }},
      {"Options::spare_slots: here (process 1) it is 3",
       [](auto&, auto& options, auto&) { options.spare_slots = 3; }},
      {"Gpus::capture: here (process 1) it is true",
       [](auto& gpus, auto&, auto&) { gpus.capture = true; }},
      {"Gpus::shapes_change: here (process 1) it is true",
       [](auto& gpus, auto&, auto&) { gpus.shapes_change = true; }},
      {"Gpus::ahead: here (process 1) it is 5", [](auto& gpus, auto&, auto&) { gpus.ahead = 5; }},
      {"the first layers of the stages: here (process 1) it is 0 1 7",
       [](auto&, auto&, auto& cuts) { cuts = {1}; }}};
  for (Way const& way : ways) {
    CAPTURE(way.words);
    auto const told = in_processes(2, on_gpus({}), [&](sg::nccl::Gpus gpus, int p) {
      auto options = options_with(plenty_s);
      auto cuts = even_cuts(2);
      if (p == 1) way.change(gpus, options, cuts);
      return words_of([&] {
        static_cast<void>(over(gpus, optimizer(), cuts, made(sg::schedule::GPipe{}), options));
      });
    });
    CHECK(has(told[0], "processes disagree on "));
    CHECK(has(told[1], way.words));
  }
}

TEST_CASE("nccl/Gpus: processes whose optimizers have other numbers take no step", "[nccl]") {
  si::Session const session;
  auto const told = in_processes(2, on_gpus({}), [&](sg::nccl::Gpus gpus, int p) {
    auto rule = optimizer();
    if (p == 1) rule.rate *= 2;
    auto train =
        over(gpus, rule, even_cuts(2), made(sg::schedule::GPipe{}), options_with(plenty_s));
    auto const data = batch(0, 3, false);
    return words_of([&] { sg::run(train.step(data)); });
  });
  for (auto const& words : told)
    CHECK(has(words, "processes disagree on the optimizer's numbers, such as its learning rate"));
}

TEST_CASE("nccl/Gpus: a process that stops taking steps is an error in time, and abort may hang",
          "[nccl]") {
  bool const hangs = GENERATE(false, true);
  si::Session const session;
  {
    auto const invited = invitation();
    std::atomic<bool> over_now{false};
    std::thread other([&] {
      auto train = over(process(on_gpus({}), 1, 2, invited), optimizer(), even_cuts(2),
                        made(sg::schedule::GPipe{}), options_with(plenty_s));
      auto const data = batch(0, 3, false);
      sg::run(train.step(data));
      over_now.wait(false);
    });
    {
      auto const make = [&] {
        return over(process(on_gpus({}), 0, 2, invited), optimizer(), even_cuts(2),
                    made(sg::schedule::GPipe{}), options_with(0.5));
      };
      auto own = std::make_unique<decltype(make())>(make());
      auto batch_of_it = std::make_unique<Batch>(batch(0, 3, false));
      auto& train = *own;
      auto const& data = *batch_of_it;
      sg::run(train.step(data));
      si::abort_hangs(hangs);
      auto const start = std::chrono::steady_clock::now();
      auto const words = words_of([&] { sg::run(train.step(data)); });
      CHECK((has(words, "the GPUs did not move for 0.5 s: rank 0 ") ||
             has(words, "waited 0.5 s to")));
      CHECK(seconds_since(start) < 30);
      CHECK(has(words_of([&] { sg::run(train.step(data)); }), "lost in an earlier step"));
      if (hangs) si::lose_device(cudaErrorIllegalAddress);  // what it still has is not run
      if (hangs && sanitized) {  // kernels of the stand-in use what is the host's on a GPU
        keep(own.release());
        keep(batch_of_it.release());
      }
    }
    si::abort_hangs(false);
    over_now = true;
    over_now.notify_all();
    other.join();
  }
}

TEST_CASE(
    "nccl/Gpus: an asynchronous error of NCCL ends the step with its words, and no call "
    "follows",
    "[nccl]") {
  si::Session const session;
  {
    auto train = over(on_gpus({0, 1, 2}), optimizer(), even_cuts(3), made(sg::schedule::OneFOneB{}),
                      options_with(plenty_s));
    auto const data = batch(0, 4, true);
    sg::run(train.step(data));
    auto const before = bits(train);
    si::break_communicators(1, 2, ncclRemoteError);
    try {
      sg::run(train.step(data));
      FAIL("no error");
    } catch (sg::nccl::Error const& error) {
      CHECK(error.code() == sg::Errc::peer_failed);
      CHECK(has(error.what(), "an injected error"));
    }
    CHECK((bits(train) == before));
    auto const calls = si::calls(si::Call::group_end);
    CHECK(has(words_of([&] { sg::run(train.step(data)); }), "lost in an earlier step"));
    CHECK(si::calls(si::Call::group_end) == calls);
  }
  si::reset();
  CHECK(session.left() == si::Live{});
}

TEST_CASE("nccl/Gpus: whatever CUDA or NCCL refuse, parameters are those before or after the step",
          "[nccl]") {
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
        si::Call::malloc_from_pool, si::Call::group_end}) {
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
        bool const of_nccl = call == si::Call::group_end;
        si::fail(
            call, nth,
            of_nccl ? static_cast<int>(ncclSystemError) : static_cast<int>(cudaErrorLaunchFailure));
        bool const failed = !words_of([&] { step(1); }).empty();
        si::fail(si::Call::comm_init, 1, 0);  // no more of it
        bool const again = words_of([&] { step(failed ? 1 : 2); }).empty();
        if (!failed) REQUIRE(again);
        if (again) REQUIRE((bits(train) == course[failed ? 1 : 2]));
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

TEST_CASE("nccl/Gpus: a stage that throws leaves parameters as before, and the next step is right",
          "[nccl]") {
  si::Session const session;
  int armed = 0;
  auto const make = [&](sg::nccl::Gpus gpus) {
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

TEST_CASE("nccl/Gpus: after the first step of a program nothing is made, allocated or awaited",
          "[nccl]") {
  si::Session const session;
  auto train = over(on_gpus({0, 1, 2, 3}), optimizer(), even_cuts(4), made(sg::schedule::Chimera{}),
                    options_with(plenty_s, true));
  auto const data = batch(0, 4, false);
  auto const still = [] {
    using si::Call;
    std::uint64_t sum = 0;
    for (Call const call : {Call::event_create, Call::stream_create, Call::malloc,
                            Call::malloc_host, Call::malloc_from_pool, Call::pool_create,
                            Call::stream_synchronize, Call::memcpy, Call::memset, Call::comm_init})
      sum += si::calls(call);
    return sum;
  };
  for (int s = 0; s < 2; ++s) sg::run(train.step(data));
  auto const before = still();
  for (int s = 0; s < 3; ++s) sg::run(train.step(data));
  CHECK(still() == before);
}
