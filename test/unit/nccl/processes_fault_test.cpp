// SPDX-License-Identifier: Apache-2.0
#include <stagger/nccl/gpus.hpp>

#include "catch.hpp"

#include <atomic>
#include <barrier>
#include <chrono>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/one_f_one_b.hpp>

#include "cuda/gpus_cases.hpp"
#include "processes.hpp"

namespace processes_fault_test {

using namespace gpus_model;
using namespace processes;

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Never gives it back.
void keep(void const* thing) {
  static auto& all = *new std::vector<void const*>;
  all.push_back(thing);
}

}  // namespace

TEST_CASE("nccl/Gpus: a process that never comes is an error in time", "[nccl]") {
  si::Session const session;
  {
    auto const invited = invitation();
    auto gpus = process(a_process(), 0, 2, invited);
    gpus.join_deadline_s = 0.2;
    auto const start = std::chrono::steady_clock::now();
    auto const words = words_of([&] {
      static_cast<void>(
          over(gpus, optimizer(), even_cuts(2), made(sg::schedule::GPipe{}), options_with(false)));
    });
    CHECK(has(words, "rank 0 of 2 waited 0.2 s to join a communicator"));
    CHECK(seconds_since(start) < 30);  // a machine may be busy
  }
  si::reset();
  CHECK(session.left() == si::Live{});
}

TEST_CASE("nccl/Gpus: a deadline that is no time is refused, also of a rendezvous", "[nccl]") {
  si::Session const session;
  for (double const seconds : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    auto const words = [&](char const* name) {
      return sg::text(name, " is ", seconds,
                      " s, in which nothing can be waited for; use a positive time");
    };
    auto gpus = process(a_process(), 0, 2, invitation());
    gpus.join_deadline_s = seconds;
    CHECK(words_of([&] {
            static_cast<void>(over(gpus, optimizer(), even_cuts(2), made(sg::schedule::GPipe{}),
                                   options_with(false)));
          }) == words("Gpus::join_deadline_s"));
    CHECK(words_of([&] { static_cast<void>(sg::nccl::invite({}, {.deadline_s = seconds})); }) ==
          words("Rendezvous::deadline_s"));
  }
}

TEST_CASE("nccl/Gpus: processes with another pipeline are refused by what differs", "[nccl]") {
  si::Session const session;
  struct Way {
    char const* words;  // of process 1, which alone does otherwise
    void (*change)(sg::nccl::Gpus&, sg::Options&, std::vector<int>&);
  };
  Way const ways[] = {{"Options::recompute: rank 0 has 'false', rank 1 has 'true'",
                       [](auto&, auto& options, auto&) { options.recompute = true; }},
                      {"Options::spare_slots: rank 0 has 'as laid out', rank 1 has '3'",
                       [](auto&, auto& options, auto&) { options.spare_slots = 3; }},
                      {"Gpus::capture: rank 0 has 'false', rank 1 has 'true'",
                       [](auto& gpus, auto&, auto&) { gpus.capture = true; }},
                      {"Gpus::shapes_change: rank 0 has 'false', rank 1 has 'true'",
                       [](auto& gpus, auto&, auto&) { gpus.shapes_change = true; }},
                      {"Gpus::ahead: rank 0 has '2', rank 1 has '5'",
                       [](auto& gpus, auto&, auto&) { gpus.ahead = 5; }},
                      {"rank 1 has '0 1 7'", [](auto&, auto&, auto& cuts) { cuts = {1}; }}};
  for (Way const& way : ways) {
    CAPTURE(way.words);
    auto const told = in_processes(2, a_process(), [&](sg::nccl::Gpus gpus, int p) {
      auto options = options_with(false);
      auto cuts = even_cuts(2);
      if (p == 1) way.change(gpus, options, cuts);
      return words_of([&] {
        static_cast<void>(over(gpus, optimizer(), cuts, made(sg::schedule::GPipe{}), options));
      });
    });
    for (auto const& words : told) {
      CHECK(has(words, "ranks disagree on "));
      CHECK(has(words, way.words));
    }
  }
}

TEST_CASE("nccl/Gpus: processes whose optimizers have other numbers take no step", "[nccl]") {
  si::Session const session;
  auto const told = in_processes(2, a_process(), [&](sg::nccl::Gpus gpus, int p) {
    auto rule = optimizer();
    if (p == 1) rule.rate *= 2;
    auto train = over(gpus, rule, even_cuts(2), made(sg::schedule::GPipe{}), options_with(false));
    auto const data = batch(0, 3, false);
    return words_of([&] { sg::run(train.step(data)); });
  });
  for (auto const& words : told)
    CHECK(has(words, "ranks disagree on the optimizer's numbers, such as its learning rate"));
}

TEST_CASE("nccl/Gpus: a process that stops taking steps is an error in time, and abort may hang",
          "[nccl]") {
  bool const hangs = GENERATE(false, true);
  si::Session const session;
  {
    auto const invited = invitation();
    std::atomic<bool> over_now{false};
    std::thread other([&] {
      auto train = over(process(a_process(), 1, 2, invited), optimizer(), even_cuts(2),
                        made(sg::schedule::GPipe{}), options_with(false));
      auto const data = batch(0, 3, false);
      sg::run(train.step(data));
      over_now.wait(false);
    });
    {
      auto const make = [&] {
        return over(process(a_process(), 0, 2, invited), optimizer(), even_cuts(2),
                    made(sg::schedule::GPipe{}), options_with(false, false, 0.5));
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
  std::barrier all(3);
  std::atomic<int> told{0};
  auto const wrong = in_processes(3, a_process(), [&](sg::nccl::Gpus gpus, int p) -> std::string {
    auto train =
        over(gpus, optimizer(), even_cuts(3), made(sg::schedule::OneFOneB{}), options_with(false));
    auto const data = batch(0, 4, true);
    sg::run(train.step(data));
    auto const before = bits(train);
    all.arrive_and_wait();
    if (p == 0) si::break_communicators(1, 2, ncclRemoteError);
    all.arrive_and_wait();
    std::string words;
    try {
      sg::run(train.step(data));
      words = "no error ";
    } catch (sg::nccl::Error const& error) {
      if (error.code() != sg::Errc::peer_failed) words += error.what();
      if (has(error.what(), "an injected error")) ++told;
    }
    if (bits(train) != before) words += "parameters ";
    all.arrive_and_wait();
    auto const calls = si::calls(si::Call::group_end);
    if (!has(words_of([&] { sg::run(train.step(data)); }), "lost in an earlier step"))
      words += "next ";
    all.arrive_and_wait();
    if (si::calls(si::Call::group_end) != calls) words += "calls ";
    return words;
  });
  for (auto const& words : wrong) CHECK(words == "");
  CHECK(told > 0);
}

TEST_CASE("nccl/Gpus: whatever CUDA or NCCL refuse in one process, parameters stand in all",
          "[nccl]") {
  int number = 0;
  for (auto const call : {si::Call::launch_kernel, si::Call::event_record, si::Call::memcpy_async,
                          si::Call::group_end})
    for (int const nth : {1, 2, 9, 20}) {
      if (sanitized && number++ % 5 != 0) continue;
      CAPTURE(static_cast<int>(call), nth);
      si::Session const session;
      std::barrier all(2);
      std::atomic<int> failed{0};
      auto const wrong =
          in_processes(2, a_process(), [&](sg::nccl::Gpus gpus, int p) -> std::string {
            auto train = over(gpus, optimizer(), even_cuts(2), made(sg::schedule::OneFOneB{}),
                              clipping(0.5));
            auto const data = batch(0, 4, true);
            sg::run(train.step(data));
            auto const before = bits(train);
            all.arrive_and_wait();
            if (p == 0)
              si::fail(call, nth,
                       call == si::Call::group_end ? static_cast<int>(ncclSystemError)
                                                   : static_cast<int>(cudaErrorLaunchFailure));
            all.arrive_and_wait();
            auto const words = words_of([&] { sg::run(train.step(data)); });
            if (!words.empty()) ++failed;
            all.arrive_and_wait();
            if (words.empty()) return "";
            try {
              if (bits(train) != before) return "parameters";
            } catch (sg::Error const& error) {  // the update was under way
              if (error.code() != sg::Errc::device) return error.what();
            }
            auto const next = words_of([&] { sg::run(train.step(data)); });
            return has(next, "lost in an earlier step") ? "" : next;
          });
      for (auto const& words : wrong) CHECK(words == "");
      CHECK((failed == 0 || failed == 2));
    }
}

}  // namespace processes_fault_test
