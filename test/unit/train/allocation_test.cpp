// SPDX-License-Identifier: Apache-2.0
#include <stagger/train/trainer.hpp>

#include "catch.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/collective/grouped_pushes.hpp>
#include <stagger/collective/grouping/layerwise.hpp>
#include <stagger/collective/parameter_server.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/schedule/fifo.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/proof/peak_in_flight.hpp>
#include <stagger/schedule/v_1f1b.hpp>
#include <stagger/schedule/zero_bubble_h1.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/staleness/local_sgd.hpp>
#include <stagger/staleness/overlapped_synchronous.hpp>
#include <stagger/staleness/wave_synchronous.hpp>

#include "count_allocations.hpp"
#include "engine/row_oracle.hpp"
#include "engine/split_model.hpp"
#include "scalar_worker.hpp"

namespace allocation_test {

using namespace small_model;

#ifdef COUNTS_ALLOCATIONS

namespace {

/// Calls `body(make)` for devices, schedules and options; `make()` is a new pipeline.
template <class Body> void everywhere(Body body) {
  using namespace sg::schedule;
  for (Made const& schedule : {made(GPipe{}), made(OneFOneB{}), made(ZeroBubbleH1{}),
                               split(made(OneFOneB{}), 2), made(V1F1B{})}) {
    for (bool const recompute : {false, true}) {
      sg::Options options;
      options.recompute = recompute;
      options.record = recompute;
      options.clip_norm = clip;
      CAPTURE(recompute, schedule.each);
      for (int const threads : {1, 2}) {
        CAPTURE(threads);
        body([&] { return pipeline(sg::host::Threads{threads}, even_cuts(4), schedule, options); });
      }
      body([&] {
        return pipeline(sg::sim::VirtualClock{.costs = sg::schedule::Costs::uniform(1, 1, 1, 0.5),
                                              .jitter = 0.5},
                        even_cuts(4), schedule, options);
      });
    }
  }
}

}  // namespace

TEST_CASE("train/allocation: what counts counts", "[train]") {
  CHECK(allocations_of([] {
          sg::Tensor<float> t({100});
          float* volatile seen = t.data();
          (void)seen;
        }) == 1);
  CHECK(allocations_of([] {
          std::vector<int> v(10);
          int* volatile seen = v.data();  // an allocation that nobody sees may be left out
          (void)seen;
        }) == 1);
  CHECK(allocations_of([] {}) == 0);
}

TEST_CASE("train/allocation: none in any step after the first", "[train]") {
  everywhere([](auto make) {
    auto train = make();
    auto const data = batch(0, 8, true);
    sg::run(train.step(data));
    stagger::stop_source stop;
    REQUIRE(allocations_of([&] {
              for (int s = 0; s < 5; ++s) sg::run(train.step(data, stop.get_token()));
            }) == 0);
  });
}

TEST_CASE("train/allocation: none to keep a batch that is moved into its step", "[train]") {
  auto train = pipeline(sg::host::Threads{2}, even_cuts(4), made(sg::schedule::OneFOneB{}), {});
  std::vector<Batch> data;
  for (int s = 0; s < 6; ++s) data.push_back(batch(s, 8, true));
  for (auto const& each : data) sg::run(train.step(each));  // so that every size was seen
  sg::run(train.step(std::move(data[0])));
  auto const all = [&]() -> sg::Task<> {
    for (int s = 2; s < 6; ++s) co_await train.step(std::move(data[static_cast<std::size_t>(s)]));
  };
  auto task = all();
  REQUIRE(allocations_of([&] {
            sg::run(train.step(std::move(data[1])));
            sg::run(std::move(task));
          }) == 0);
  CHECK(data[5].inputs.empty());
}

TEST_CASE("train/allocation: none once every size and number of microbatches was seen", "[train]") {
  everywhere([](auto make) {
    auto train = make();
    std::vector<Batch> data;
    for (int s = 0; s < 6; ++s) data.push_back(batch(s, 4 + s % 3 * 2, true));
    std::vector<Matrix> outputs(4);
    auto const round = [&] {
      for (auto const& each : data) {
        sg::run(train.step(each));
        sg::run(train.evaluate(each));
      }
      sg::run(train.predict(data[0].inputs, outputs));
    };
    round();
    REQUIRE(allocations_of([&] {
              round();
              round();
            }) == 0);
  });
}

TEST_CASE("train/allocation: none where replicas take rows of each other", "[train]") {
  auto const data = row_model::batch(0, 5, 4, true);
  std::vector<Matrix> outputs(5);
  for (int const threads : {1, 2})
    for (bool const recompute : {false, true}) {
      sg::Options options;
      options.recompute = recompute;
      options.replicas = {1, 3, 2, 2};
      auto train = row_model::pipeline(sg::host::Threads{threads}, even_cuts(4),
                                       made(sg::schedule::OneFOneB{}), options);
      auto const round = [&] {
        sg::run(train.step(data));
        sg::run(train.evaluate(data));
        sg::run(train.predict(data.inputs, outputs));
      };
      round();
      REQUIRE(allocations_of([&] {
                round();
                round();
              }) == 0);
      for (int again = 0; again < 5; ++again) round();  // the grouping is decided
      REQUIRE(allocations_of([&] {
                round();
                round();
              }) == 0);
    }
}

namespace {

auto in_step(sg::collective::ParameterServer const& server) {
  return sg::Pipeline{model()}.with(sg::partition::Even{2}, server.worker(0), Loss{}, optimizer(),
                                    sg::host::Threads{2});
}
auto in_waves(sg::collective::ParameterServer const& server, int worker,
              sg::staleness::Adds adds = sg::staleness::Adds::in_worker_order) {
  return sg::Pipeline{model()}.with(
      sg::partition::Even{2}, sg::schedule::Fifo{.in_flight = 3},
      sg::staleness::WaveSynchronous{.in_flight = 3, .distance = 0, .adds = adds},
      server.worker(worker), Loss{}, optimizer(), sg::host::Threads{2});
}

}  // namespace

TEST_CASE("train/allocation: none in a step of a worker whose groups share layers", "[train]") {
  auto const data = split_model::batch<float>(0, 2, 8);
  for (int const period : {1, 2}) {
    sg::collective::ParameterServer const server({.workers = 1});
    auto train =
        split_model::pipeline<float>(sg::host::Threads{2}, {.counts = {4}},
                                     sg::staleness::LocalSgd{.period = period}, server.worker(0));
    auto const round = [&] {
      for (int step = 0; step < period; ++step) sg::run(train.step(data));
      sg::run(train.evaluate(data));
    };
    round();
    REQUIRE(allocations_of(round) == 0);
    for (int again = 0; again < 20; ++again) round();  // the grouping of sums is decided
    REQUIRE(allocations_of(round) == 0);
  }
}

TEST_CASE("train/allocation: none in a step or a stream of a worker after the first", "[train]") {
  auto const few = batch(0, 4, false);
  auto const many = batch(1, 10, false);
  SECTION("steps") {
    sg::collective::ParameterServer const server({.workers = 1});
    auto train = in_step(server);
    auto const round = [&] {
      sg::run(train.step(few));
      sg::run(train.evaluate(few));
      sg::run(train.step(many));
    };
    round();
    CHECK(allocations_of(round) == 0);
  }
  for (auto const adds : {sg::staleness::Adds::in_worker_order, sg::staleness::Adds::on_arrival})
    SECTION(adds == sg::staleness::Adds::on_arrival ? "streams on arrival" : "streams in order") {
      sg::collective::ParameterServer const server({.workers = 1});
      auto train = in_waves(server, 0, adds);
      auto const round = [&] {
        sg::run(train.stream(few));
        sg::run(train.evaluate(few));
        sg::run(train.stream(many));
      };
      round();
      CHECK(allocations_of(round) == 0);
    }
}

TEST_CASE("train/allocation: none in a step of two workers, nor in their server, after the first",
          "[train]") {
  int number = 0;
  scalar_worker::each_model_of_steps([&](auto const& model) {
    CAPTURE(number++);
    sg::collective::ParameterServer const server({.workers = 2});
    auto a = scalar_worker::stepping(model, server.worker(0));
    auto b = scalar_worker::stepping(model, server.worker(1));
    CHECK(scalar_worker::allocations_of_a_round(
              a, b, [](auto& train, auto& batch) { return train.step(batch); },
              [](auto body) { return allocations_of(body); }) == 0);
  });
}

TEST_CASE("train/allocation: none in a step whose gradient groups are pushed while backward runs",
          "[train]") {
  using sg::collective::GroupedPushes;
  sg::collective::ParameterServer const server({.workers = 2});
  auto const make = [&](int n) {
    GroupedPushes const pushes{server.worker(n), sg::collective::grouping::Layerwise{}};
    return scalar_worker::stepping(sg::staleness::Synchronous{}, pushes);
  };
  auto a = make(0);
  auto b = make(1);
  CHECK(scalar_worker::allocations_of_a_round(
            a, b, [](auto& train, auto& batch) { return train.step(batch); },
            [](auto body) { return allocations_of(body); }) == 0);
}

TEST_CASE("train/allocation: prepare takes the engine's part of the first step", "[train]") {
  auto train = pipeline(sg::host::Threads{1}, even_cuts(4), made(sg::schedule::OneFOneB{}), {});
  train.prepare(8);
  auto const slots = allocations_of([&] { train.prepare(8); });
  CHECK(slots == 0);
}

namespace {

/// A layer and a loss that allocate nothing.
struct Scale {
  using Input = float;
  using Output = float;
  struct Saved {};
  sg::Parameter<> factor{"factor", {0.5F, 2.0F}};
  auto parameters() { return std::tie(factor); }
  void forward(sg::Context& context, float const& x, float& y, Saved&) {
    y = context[factor][0] * x;
  }
  void backward(sg::Context& context, float const& x, float const& dy, float& dx, Saved&) {
    dx = context[factor][0] * dy;
    context.gradient(factor)[0] += x * dy;
  }
};
struct Distance {
  using policy_tag = sg::LossTag;
  using Target = float;
  double terms(float const&) const { return 1; }
  double value(sg::Context&, float const& y, float const& t) const { return (y - t) * (y - t); }
  double value_and_gradient(sg::Context& context, float const& y, float const& t, double scale,
                            float& dy) const {
    dy = static_cast<float>(2 * scale) * (y - t);
    return value(context, y, t);
  }
};

}  // namespace

namespace {

/// How far workers have come in their first layer, and how far each may go.
class Pace {
 public:
  static constexpr int workers = 3;
  static constexpr int everyone = -1;
  int Nm = 2;
  int D = 1;
  int count = 0;        // minibatches of a stream
  int slow = everyone;  // goes on only when the others have come as far as they may; or all in step

  /// Before a stream.
  void reset() { began_ = ended_ = {}; }
  /// Of minibatch m, of which the worker has ended all up to m - Nm.
  void begin(int worker, int m) {
    std::unique_lock lock(mutex_);
    ++began_[static_cast<std::size_t>(worker)];
    changed_.notify_all();
    if (slow == everyone)
      wait(lock, [&](std::size_t n) { return began_[n] > m; });
    else if (worker == slow)
      wait(lock, [&](std::size_t n) {
        int const waves = std::max(0, (m + 1) / Nm - 1) + D + 1;
        return n == static_cast<std::size_t>(worker) || ended_[n] >= std::min(count, waves * Nm);
      });
  }
  void end(int worker) {
    std::lock_guard const lock(mutex_);
    ++ended_[static_cast<std::size_t>(worker)];
    changed_.notify_all();
  }
  [[nodiscard]] bool stuck() const { return stuck_; }

 private:
  template <class Holds> void wait(std::unique_lock<std::mutex>& lock, Holds holds_of) {
    bool const came = changed_.wait_for(lock, std::chrono::seconds(30), [&] {
      for (std::size_t n = 0; n < workers; ++n)
        if (!holds_of(n)) return false;
      return true;
    });
    stuck_ = stuck_ || !came;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<int, workers> began_{};  // forwards
  std::array<int, workers> ended_{};  // backwards
  bool stuck_ = false;
};

struct PacedScale : Scale {
  Pace* pace;
  int worker;
  PacedScale(Pace* of, int number) : pace(of), worker(number) {}
  void forward(sg::Context& context, float const& x, float& y, Saved& saved) {
    pace->begin(worker, static_cast<int>(context.microbatch()));
    Scale::forward(context, x, y, saved);
  }
  void backward(sg::Context& context, float const& x, float const& dy, float& dx, Saved& saved) {
    Scale::backward(context, x, dy, dx, saved);
    pace->end(worker);
  }
};

}  // namespace

TEST_CASE("train/allocation: none when a worker gets as far ahead as it may for the first time",
          "[train]") {
  Pace pace;
  pace.count = 17;  // the last wave is a partial one
  sg::collective::ParameterServer const server({.workers = Pace::workers});
  auto const make = [&](int n) {
    return sg::Pipeline{PacedScale(&pace, n), Scale{}}.with(
        sg::schedule::Fifo{.in_flight = pace.Nm},
        sg::staleness::WaveSynchronous{
            .in_flight = pace.Nm, .distance = pace.D, .adds = sg::staleness::Adds::in_worker_order},
        server.worker(n), Distance{}, sg::host::Threads{2});
  };
  sg::Batch<float, float> const batch{
      std::vector<float>(static_cast<std::size_t>(pace.count), 0.25F),
      std::vector<float>(static_cast<std::size_t>(pace.count), 0.5F)};
  std::vector<decltype(make(0))> trainers;
  for (int n = 0; n < Pace::workers; ++n) trainers.push_back(make(n));
  constexpr int streams = 5;
  std::barrier together(Pace::workers + 1);
  std::vector<std::thread> threads;
  for (auto& trainer : trainers)
    threads.emplace_back([&] {
      for (int i = 0; i < streams; ++i) {
        together.arrive_and_wait();
        static_cast<void>(sg::run(trainer.stream(batch)));
        together.arrive_and_wait();
      }
    });
  std::vector<long> made;
  for (int i = 0; i < streams; ++i) {
    pace.slow = i < 2 ? Pace::everyone : i - 2;
    pace.reset();
    made.push_back(allocations_of([&] {
      together.arrive_and_wait();
      together.arrive_and_wait();
    }));
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_FALSE(pace.stuck());
  made.erase(made.begin());  // the first stream
  CHECK(made == std::vector<long>(streams - 1));
}

TEST_CASE("train/allocation: workers on one clock allocate nothing for a minibatch", "[train]") {
  using sg::staleness::Adds;
  for (Adds const adds : {Adds::in_worker_order, Adds::on_arrival})
    for (double const rate : {std::numeric_limits<double>::infinity(), 10.0}) {
      CAPTURE(rate);
      sg::sim::Clock const clock({.rate = rate});
      sg::collective::ParameterServer const server({.workers = 2});
      auto const worker = [&](int n) {
        sg::sim::VirtualClock device;
        device.costs = sg::schedule::Costs::uniform(1 + n, 2, 0);
        device.clock = clock;
        return sg::Pipeline{Scale{}, Scale{}}.with(
            sg::schedule::Fifo{.in_flight = 3},
            sg::staleness::WaveSynchronous{.in_flight = 3, .distance = 1, .adds = adds},
            server.worker(n), Distance{}, device);
      };
      auto a = worker(0);
      auto b = worker(1);
      auto const allocations_for = [&](std::size_t count) {
        sg::Batch<float, float> const batch{std::vector<float>(count, 0.25F),
                                            std::vector<float>(count, 0.5F)};
        std::vector<sg::Step> steps;
        steps.push_back(a.stream(batch));
        steps.push_back(b.stream(batch));
        static_cast<void>(sg::run_together(std::move(steps)));  // lays the program out
        steps.push_back(a.stream(batch));
        steps.push_back(b.stream(batch));
        static_cast<void>(sg::run_together(std::move(steps)));  // fills what is kept
        steps.push_back(a.stream(batch));
        steps.push_back(b.stream(batch));
        std::uint64_t const memory = a.memory().parameters + b.memory().parameters;
        long const made =
            allocations_of([&] { static_cast<void>(sg::run_together(std::move(steps))); });
        REQUIRE(a.memory().parameters + b.memory().parameters == memory);
        return made;
      };
      long const few = allocations_for(9);
      REQUIRE(allocations_for(90) == few);
      REQUIRE(few < 20);  // of run_together
    }
}

TEST_CASE("train/allocation: none in a step some of whose layers are late", "[train]") {
  namespace osp = sg::staleness::overlapped;
  sg::staleness::OverlappedSynchronous<osp::RandomImportance, osp::FirstFit, osp::ShareLate,
                                       osp::MeanGradient> const model{.budget = {0.6}};
  sg::Batch<float, float> const batch{{0.25F, 0.5F}, {0.5F, 0.25F}};
  sg::collective::ParameterServer const alone({.workers = 1});
  auto train = sg::Pipeline{Scale{}, Scale{}, Scale{}, Scale{}}.with(
      model, alone.worker(0), Distance{}, sg::host::Threads{2});
  for (int step = 0; step < 4; ++step) static_cast<void>(run(train.step(batch)));
  for (int step = 0; step < 8; ++step) {
    sg::Step next = train.step(batch);
    REQUIRE(allocations_of([&] { static_cast<void>(run(std::move(next))); }) == 0);
  }

  sg::sim::Clock const clock({.rate = 10});
  sg::collective::ParameterServer const server({.workers = 2});
  auto const worker = [&](int n) {
    sg::sim::VirtualClock device;
    device.clock = clock;
    return sg::Pipeline{Scale{}, Scale{}, Scale{}, Scale{}}.with(model, server.worker(n),
                                                                 Distance{}, device);
  };
  auto a = worker(0);
  auto b = worker(1);
  auto const allocations_in_a_step = [&] {
    std::vector<sg::Step> steps;
    steps.push_back(a.step(batch));
    steps.push_back(b.step(batch));
    return allocations_of([&] { static_cast<void>(sg::run_together(std::move(steps))); });
  };
  for (int step = 0; step < 20; ++step) static_cast<void>(allocations_in_a_step());
  long const few = allocations_in_a_step();
  REQUIRE(few < 20);  // of run_together
  for (int step = 0; step < 8; ++step) REQUIRE(allocations_in_a_step() == few);
}

#endif

TEST_CASE(
    "train/memory: live activations of 1F1B do not grow with the microbatches, those of GPipe do",
    "[train]") {
  auto const live = [](Made const& schedule, int microbatches, bool recompute) {
    sg::Options options;
    options.recompute = recompute;
    auto train = pipeline(sg::host::Threads{1}, even_cuts(4), schedule, options);
    auto const data = batch(0, microbatches, false);
    sg::run(train.step(data));
    return train.memory().activations;
  };
  for (bool const recompute : {false, true}) {
    CAPTURE(recompute);
    CHECK(live(made(sg::schedule::OneFOneB{}), 8, recompute) ==
          live(made(sg::schedule::OneFOneB{}), 64, recompute));
    CHECK(live(made(sg::schedule::OneFOneB{}), 64, recompute) <
          live(made(sg::schedule::GPipe{}), 64, recompute) / 4);
  }
  auto const eight = live(made(sg::schedule::GPipe{}), 8, false);
  CHECK(live(made(sg::schedule::GPipe{}), 64, false) == 8 * eight);
  CHECK(live(made(sg::schedule::GPipe{}), 64, true) < live(made(sg::schedule::GPipe{}), 64, false));
}

TEST_CASE("train/memory: bytes by use are those that were laid out", "[train]") {
  // Dense alone: 16 floats and 4 doubles, each on a boundary of 64 bytes, as value, gradient and
  // two states.
  auto train = sg::Pipeline{Dense{}, Dense{}}.with(sg::loss::MeanSquaredError<>{}, optimizer(),
                                                   made(sg::schedule::GPipe{}));
  CHECK(train.memory().parameters == 2 * 4 * (64 + 64));
  CHECK(train.memory().activations == 0);
  sg::Batch<Matrix, Matrix> data;
  for (int m = 0; m < 3; ++m) {
    data.inputs.emplace_back(Matrix({4, width}));
    data.inputs.back().fill(0.5F);
    data.targets.push_back(data.inputs.back());
  }
  sg::run(train.step(data));
  // Of 64 bytes each: the second stage's 3 inputs and 3 outputs, and the gradient of the model's
  // input, which nobody reads. Nothing is saved; NothingSaved has one byte.
  CHECK(train.memory().activations == 3 * 64 + 3 * 64 + 64 + 2 * 3);
  // The last stage's gradient is used up at once; between the stages there is one to spare.
  CHECK(train.memory().gradients == 64 + 2 * 64);
  CHECK_THROWS_WITH(train.peak_in_flight(), Catch::Contains("was not recorded"));
  train.record(true);
  sg::run(train.step(data));
  CHECK(train.peak_in_flight() == std::vector<int>{3, 3});
}

TEST_CASE("train/memory: microbatches are recorded as in flight until their weight gradient",
          "[train]") {
  auto const late = split(made(sg::schedule::OneFOneB{}), 3);
  auto train = pipeline(sg::host::Threads{2}, even_cuts(3), late, {});
  train.record(true);
  sg::run(train.step(batch(0, 6, false)));
  auto const table = late.table({.ranks = 3, .microbatches = 6});
  CHECK(train.peak_in_flight() == sg::schedule::peak_in_flight(table));
  CHECK(train.peak_in_flight().back() == 4);  // 1 with whole backwards
}

}  // namespace allocation_test
