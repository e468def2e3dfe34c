// SPDX-License-Identifier: Apache-2.0
#include <stagger/host/threads.hpp>

#include "catch.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>

#include <stagger/engine/replicas.hpp>
#include <stagger/host/detail/threads_backend.hpp>
#include <stagger/placement/explicit_map.hpp>
#include <stagger/schedule/chimera.hpp>
#include <stagger/schedule/gpipe.hpp>

#include "engine/random_table.hpp"
#include "engine/trap_model.hpp"

namespace threads_test {

using namespace trap_model;

namespace {

/// Which threads ran each of the four layers in one step.
std::vector<std::set<std::thread::id>> runners(auto& train, Hook const& hook) {
  std::vector<std::set<std::thread::id>> seen(layers);
  std::mutex mutex;
  *hook = [&](Call const& call) {
    std::lock_guard const lock(mutex);
    seen[static_cast<std::size_t>(call.layer)].insert(std::this_thread::get_id());
  };
  auto const data = batch(6);
  sg::run(train.step(data));
  *hook = [](Call const&) {};
  return seen;
}

/// y = w x for each number of a microbatch's rows.
struct Rows {
  using Input = std::vector<float>;
  using Output = std::vector<float>;
  sg::Parameter<> weight{"weight", {0.5F}};
  auto parameters() { return std::tie(weight); }
  void forward(sg::Context& context, Input const& x, Output& y, sg::NothingSaved&) {
    y = x;
    for (float& each : y) each *= context[weight][0];
  }
  void backward(sg::Context& context, Input const& x, Output const& dy, Input& dx,
                sg::NothingSaved&) {
    dx = dy;
    for (std::size_t i = 0; i < x.size(); ++i) {
      context.gradient(weight)[0] += x[i] * dy[i];
      dx[i] *= context[weight][0];
    }
  }
};

struct RowSum {
  using policy_tag = sg::LossTag;
  using Target = float;
  double terms(float const&) const { return 1; }
  double value(sg::Context&, std::vector<float> const& y, float const& t) const { return y[0] - t; }
  double value_and_gradient(sg::Context& context, std::vector<float> const& y, float const& t,
                            double scale, std::vector<float>& dy) const {
    dy.assign(y.size(), static_cast<float>(scale));
    return value(context, y, t);
  }
};

/// Keeps a core busy without reading a clock.
void spin(int turns) {
  std::atomic<int> left{turns};
  while (left.fetch_sub(1, std::memory_order_relaxed) > 0) {
  }
}

}  // namespace

TEST_CASE("host/Threads: each rank stays on its place's thread, the first place is the caller's",
          "[host]") {
  auto const hook = make_hook();
  auto train = sg::Pipeline{Layer{hook}, Layer{hook}, Layer{hook}, Layer{hook}}.with(
      Loss{hook}, sg::host::Threads{3}, sg::placement::ExplicitMap{{2, 0, 1, 0}});
  auto const seen = runners(train, hook);
  for (auto const& ids : seen) CHECK(ids.size() == 1);
  CHECK(*seen[1].begin() == std::this_thread::get_id());
  CHECK(seen[3] == seen[1]);
  CHECK(seen[0] != seen[1]);
  CHECK(seen[2] != seen[1]);
  CHECK(seen[0] != seen[2]);
  CHECK(runners(train, hook) == seen);
}

TEST_CASE(
    "host/Threads: stages of random length, in any order on more threads than cores, lose no "
    "message",
    "[host]") {
  // A lost wake-up would leave all threads asleep; the deadline would end the step with an error.
  random_table::Random random(5);
  int const rounds = sanitized ? 6 : 40;
  for (int i = 0; i < rounds; ++i) {
    int const microbatches = 1 + random_table::below(random, 8);
    int const steps = 25;
    auto const course = undisturbed(microbatches, steps);
    auto const hook = make_hook();
    auto const policy = i % 2 == 0
                            ? small_model::made(sg::schedule::OneFOneB{})
                            : small_model::split(small_model::made(sg::schedule::GPipe{}), 1);
    auto train = pipeline(sg::host::Threads{2 + i % 3}, hook, policy);
    std::atomic<unsigned> dice{static_cast<unsigned>(random())};
    *hook = [&](Call const&) {
      unsigned const n = dice.fetch_add(0x9e3779b9U) >> 16U;
      if (n % 16 == 0)
        std::this_thread::sleep_for(
            std::chrono::microseconds(n % 200));  // long enough to park the others
      if (n % 16 < 4) spin(static_cast<int>(n % 2000));
    };
    for (int s = 0; s < steps; ++s) {
      auto const data = batch(microbatches, s);
      sg::run(train.step(data));
      if (s % 5 == 0) sg::run(train.evaluate(data));
    }
    REQUIRE(bits(train) == course.back());
  }
}

TEST_CASE("host/Threads: pipelines come and go, with and without a step", "[host]") {
  auto const course = undisturbed(3, 2);
  for (int i = 0; i < (sanitized ? 30 : 200); ++i) {
    auto train = pipeline(sg::host::Threads{1 + i % 4}, make_hook());
    for (int s = 0; s < i % 3; ++s) {
      auto const data = batch(3, s);
      sg::run(train.step(data));
    }
    REQUIRE(bits(train) == course[static_cast<std::size_t>(i % 3)]);
  }
}

TEST_CASE("host/Threads: pipelines on threads of their own do not meet", "[host]") {
  auto const course = undisturbed(4, 30);
  std::atomic<int> right{0};
  std::vector<std::thread> users;
  for (int u = 0; u < 3; ++u)
    users.emplace_back([&, u] {
      auto train = pipeline(sg::host::Threads{1 + u}, make_hook());
      for (int s = 0; s < 30; ++s) {
        auto const data = batch(4, s);
        sg::run(train.step(data));
      }
      if (bits(train) == course.back()) ++right;
    });
  for (auto& user : users) user.join();
  CHECK(right == 3);
}

TEST_CASE("host/Threads: steps of one pipeline may be run from one thread after the other",
          "[host]") {
  auto const course = undisturbed(3, 6);
  auto const hook = make_hook();
  auto train = pipeline(sg::host::Threads{2}, hook);
  for (int s = 0; s < 6; ++s) {
    std::thread([&] {
      auto const data = batch(3, s);
      sg::run(train.step(data));
    }).join();
  }
  CHECK(bits(train) == course.back());
}

TEST_CASE("host/Threads: the watcher looks at no rank that another program has taken away",
          "[host]") {
  // With an even number of microbatches each stage has two owners, and reducers beside them. The
  // watcher looks some ten thousand times a second; the sanitizers are the judges.
  auto const hook = make_hook();
  Made const mixed{[](sg::Shape shape) {
    return shape.microbatches % 2 == 0 ? sg::schedule::Chimera{}.table(shape)
                                       : sg::schedule::GPipe{}.table(shape);
  }};
  sg::Options options;
  options.deadline_s = 1e-3;
  options.replicas = {1, 1};
  auto train = sg::Pipeline{Rows{}, Rows{}}.with(RowSum{}, mixed, sg::host::Threads{2}, options);
  REQUIRE(train.program(4).ranks.size() != train.program(3).ranks.size());
  auto const minibatch = [](std::size_t microbatches) {
    sg::Batch<std::vector<float>, float> made;
    made.inputs.assign(microbatches, {1, 2});
    made.targets.assign(microbatches, 1);
    return made;
  };
  auto const four = minibatch(4);
  auto const three = minibatch(3);
  int const rounds = sanitized ? 300 : 3000;
  for (int i = 0; i < rounds; ++i) {
    try {
      sg::run(train.step(i % 2 == 0 ? four : three));
    } catch (sg::Error const& error) {  // this machine had no core for a rank for a millisecond
      REQUIRE(error.code() == sg::Errc::deadline);
    }
  }
  CHECK(train.steps() > 0);
}

TEST_CASE("host/Threads: a step that clips reports the norm that one device reports", "[host]") {
  // All ranks know the norm, one of them reports it: the thread sanitizer is the judge of that.
  auto const hook = make_hook();
  sg::Options options;
  options.clip_norm = 1e-3;
  auto train =
      pipeline(sg::host::Threads{4}, hook, small_model::made(sg::schedule::OneFOneB{}), options);
  auto one = sg::Pipeline{Layer{hook}, Layer{hook, 0.8F}, Layer{hook, 0.7F}, Layer{hook, 0.6F}}
                 .on_one_device(Loss{hook}, optimizer(), options);
  for (int s = 0; s < 20; ++s) {
    auto const data = batch(3, s);
    double const norm = one.step(data).gradient_norm;
    CHECK(norm > *options.clip_norm);
    CHECK(sg::run(train.step(data)).gradient_norm == norm);
  }
  CHECK(bits(train) == bits(one));
}

TEST_CASE("host/Threads: a recorded step has every action once, in order, within its time",
          "[host]") {
  auto const hook = make_hook();
  sg::Options options;
  options.record = true;
  auto train =
      pipeline(sg::host::Threads{2}, hook, small_model::made(sg::schedule::OneFOneB{}), options);
  auto const data = batch(5);
  auto const start = std::chrono::steady_clock::now();
  sg::run(train.step(data));
  double const taken_s =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  auto const table = sg::schedule::OneFOneB{}.table({4, 5, 1});
  auto const timeline = train.timeline();
  REQUIRE(timeline.ranks() == 4);
  for (int r = 0; r < 4; ++r) {
    auto const row = timeline.row(r);
    REQUIRE(row.size() == table.row(r).size());
    double last_s = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      CHECK(row[i].action == table.row(r)[i]);
      CHECK(row[i].start_s >= last_s);
      CHECK(row[i].end_s >= row[i].start_s);
      last_s = row[i].end_s;
    }
    CHECK(last_s <= taken_s);
  }
  CHECK(train.peak_in_flight() == std::vector<int>{4, 3, 2, 1});
  train.record(false);
  sg::run(train.step(data));
  CHECK_THROWS_WITH(train.timeline(), Catch::Contains("was not recorded"));
}

TEST_CASE("host/Worker: a thread that parks misses no signal", "[host]") {
  sg::host::detail::Worker worker;
  worker.park([] { return true; });  // returns at once
  CHECK(worker.wakeups == 0);
  worker.wake_if_parked();  // it is not
  CHECK(worker.wakeups == 0);

  // A signal that is given while the thread looks for work, and right after it has looked.
  worker.park([&] {
    worker.wake_if_parked();
    return false;
  });
  CHECK(worker.wakeups == 1);
  std::atomic<bool> looked{false};
  std::thread thread([&] {
    worker.park([&] {
      looked = true;
      looked.notify_all();
      return false;
    });
  });
  looked.wait(false);
  worker.wake_if_parked();
  thread.join();
  CHECK(worker.wakeups == 2);
  CHECK_FALSE(worker.parked);
}

}  // namespace threads_test
