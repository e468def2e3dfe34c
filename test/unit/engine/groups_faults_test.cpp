// SPDX-License-Identifier: Apache-2.0
// Members of a group that fail in the middle of a step, on threads.
#include <stagger/engine/groups.hpp>

#include "catch.hpp"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include <stagger/core/stop_token.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/partition/layer_split.hpp>
#include <stagger/train/pipeline.hpp>

#include "split_model.hpp"

namespace groups_faults_test {

using namespace split_model;

namespace {

/// An action of the member that has the columns from this one on.
struct Call {
  bool backward;
  int microbatch;
  std::size_t first_column;
  friend bool operator==(Call const&, Call const&) = default;
};
/// What the test does within an action; shared by all copies of the layer.
using Hook = std::shared_ptr<std::function<void(Call const&)>>;

/// Passes its columns on.
struct Trap {
  using Input = Matrix<double>;
  using Output = Matrix<double>;
  static constexpr bool element_wise = true;
  Hook hook;
  void forward(sg::Context& context, Input const& x, Output& y, sg::NothingSaved&) const {
    (*hook)({false, context.microbatch(), context.first_column()});
    y = x;
  }
  void backward_input(sg::Context& context, Input const&, Output const& dy, Input& dx,
                      sg::NothingSaved&) const {
    (*hook)({true, context.microbatch(), context.first_column()});
    dx = dy;
  }
};

constexpr int microbatches = 3;
constexpr std::size_t second_half = 4;  // the first of the columns of member 1

/// A layer of each rank's own rows, two split ones with a trap in between, and one that is whole.
auto chain(Hook const& hook) {
  return sg::Sequential{Linear<double>{inputs, 7, 1, false}, Linear<double>{7, 8, 2}, Trap{hook},
                        Linear<double>{8, 9, 3}, Linear<double>{9, outputs, 4, false}};
}
Hook make_hook() {
  return std::make_shared<std::function<void(Call const&)>>([](Call const&) {});
}
auto group(Hook const& hook, sg::Options options = {}) {
  options.replicas = {2};
  return sg::Pipeline{chain(hook)}.with(sg::partition::LayerSplit{.group = 2, .threshold = 0},
                                        sg::loss::MeanSquaredError<double>{}, optimizer(),
                                        sg::host::Threads{2}, options);
}

}  // namespace

TEST_CASE("engine/groups: a member that throws ends the step, and changes nothing", "[engine]") {
  auto const hook = make_hook();
  auto train = group(hook);
  auto calm = group(make_hook());
  int step = 0;
  for (bool const backward : {false, true})
    for (int microbatch = 0; microbatch < microbatches; ++microbatch)
      for (std::size_t const first_column : {std::size_t{0}, second_half}) {
        CAPTURE(backward, microbatch, first_column);
        auto const data = batch<double>(step, microbatches, 7);
        *hook = [&](Call const& call) {
          if (call == Call{backward, microbatch, first_column})
            throw std::runtime_error("no such word");
        };
        REQUIRE_THROWS_WITH(sg::run(train.step(data)), "no such word");
        REQUIRE(bits(train) == bits(calm));
        CHECK(train.steps() == step);
        *hook = [](Call const&) {};
        CHECK(sg::run(train.step(data)).loss == sg::run(calm.step(data)).loss);
        REQUIRE(bits(train) == bits(calm));
        ++step;
      }
}

TEST_CASE(
    "engine/groups: a step is cancelled from another thread in any action, and changes nothing",
    "[engine]") {
  auto const update = GENERATE(sg::partition::Update::accumulate, sg::partition::Update::each_pass);
  auto const trapped = [&](Hook const& hook) {
    sg::Options options;
    options.replicas = {2};
    return sg::Pipeline{sg::Sequential{Linear<double>{inputs, 7, 1, false}, Trap{hook},
                                       Linear<double>{7, 8, 2}, Trap{hook}, Linear<double>{8, 9, 3},
                                       Trap{hook}, Linear<double>{9, outputs, 4, false}}}
        .with(sg::partition::LayerSplit<>{.group = 2, .threshold = 0, .update = update},
              sg::loss::MeanSquaredError<double>{}, optimizer(), sg::host::Threads{2}, options);
  };
  auto const hook = make_hook();
  auto train = trapped(hook);
  auto calm = trapped(make_hook());
  std::atomic<int> calls{0};
  auto const count = [&](int stop_at, sg::stop_source const& source) {
    calls = 0;
    *hook = [&calls, stop_at, source](Call const&) {
      if (++calls == stop_at) std::thread([source] { source.request_stop(); }).join();
    };
  };
  int step = 0;
  int all = 1;
  for (int stop_at = 1; stop_at <= all; ++stop_at) {
    CAPTURE(update == sg::partition::Update::each_pass, stop_at);
    auto const data = batch<double>(step, microbatches, 7);
    sg::stop_source const source;
    count(stop_at, source);
    try {
      sg::run(train.step(data, source.get_token()));
      FAIL_CHECK("the step was not cancelled");
    } catch (sg::Error const& error) {
      CHECK(error.code() == sg::Errc::cancelled);
      CHECK(std::string(error.what()) ==
            "the step was cancelled; parameters are those after step " + std::to_string(step));
    }
    CHECK(calls >= stop_at);
    REQUIRE(bits(train) == bits(calm));
    CHECK(train.steps() == step);
    count(0, source);
    CHECK(sg::run(train.step(data)).loss == sg::run(calm.step(data)).loss);
    REQUIRE(bits(train) == bits(calm));
    all = calls;
    ++step;
  }
  CHECK(all == 3 * microbatches * 2 * 2);  // forward and backward of each trap of each member
}

TEST_CASE("engine/groups: a member that overruns the deadline is named, with who waits for it",
          "[engine]") {
  // The sleep is the time under test. Where the watchdog was not given a core in that time, all of
  // it is tried again with a longer deadline.
  auto const data = batch<double>(0, microbatches, 7);
  std::string const waits =
      "rank 0 waits before gathering rows for 0F1 (part 3 of 4) for rank 1, which last finished "
      "gathering rows for 0F1 (part 2 of 4)";
  std::string said;
  for (double deadline_s = 0.01; deadline_s < 5; deadline_s *= 2) {
    auto const hook = make_hook();
    auto train = group(hook, {.deadline_s = deadline_s});
    auto calm = group(make_hook());
    *hook = [&](Call const& call) {
      if (call == Call{false, 1, second_half})
        std::this_thread::sleep_for(std::chrono::duration<double>(8 * deadline_s));
    };
    try {
      sg::run(train.step(data));
      continue;
    } catch (sg::Error const& error) {
      REQUIRE(error.code() == sg::Errc::deadline);
      said = error.what();
    }
    REQUIRE(bits(train) == bits(calm));
    CHECK(train.steps() == 0);
    *hook = [](Call const&) {};
    auto const next = batch<double>(1, microbatches, 7);
    try {
      CHECK(sg::run(train.step(next)).loss == sg::run(calm.step(next)).loss);
    } catch (sg::Error const& error) {
      REQUIRE(error.code() == sg::Errc::deadline);
      continue;  // a rank was not given a core either
    }
    REQUIRE(bits(train) == bits(calm));
    if (said.find(waits) != std::string::npos) break;  // all others have run as far as they can
  }
  CHECK_THAT(said, Catch::StartsWith("no rank moved for "));
  CHECK_THAT(said, Catch::Contains(waits));
  CHECK_THAT(said, Catch::Contains("rank 1 is still at 0F1 (part 2 of 4)"));
  CHECK_THAT(said, Catch::Contains("raise Options::deadline_s"));
}

}  // namespace groups_faults_test
