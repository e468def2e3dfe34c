// SPDX-License-Identifier: Apache-2.0
#include <stagger/train/profiler.hpp>

#include "catch.hpp"

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/zero_bubble_h1.hpp>

#include "engine/small_model.hpp"

namespace profiler_test {

using namespace small_model;

namespace {

auto one_device() { return sg::Pipeline{model()}.on_one_device(Loss{}, sg::optimizer::AdamW{}); }

/// Moves on only while a layer works.
struct Clock {
  using duration = std::chrono::nanoseconds;
  using time_point = std::chrono::time_point<Clock, duration>;
  static time_point now() { return time_point(time); }
  static void work(int nanoseconds) { time += duration(nanoseconds); }
  static inline duration time{0};
};

/// A layer that takes a given time, every second pass ten times as long.
struct Work {
  using Input = float;
  using Output = float;
  int forward_ns = 0;
  int input_ns = 0;
  int weight_ns = 0;
  int passes = 0;
  void forward(sg::Context&, float const& x, float& y, sg::NothingSaved&) {
    Clock::work(++passes % 3 == 0 ? 10 * forward_ns : forward_ns);
    y = x;
  }
  void backward_input(sg::Context&, float const&, float const& dy, float& dx, sg::NothingSaved&) {
    Clock::work(input_ns);
    dx = dy;
  }
  void backward_weight(sg::Context&, float const&, float const&, sg::NothingSaved&) {
    Clock::work(weight_ns);
  }
};

struct TimedLoss {
  using policy_tag = sg::LossTag;
  using Target = float;
  double terms(float const&) const { return 1; }
  double value(sg::Context&, float const&, float const&) const { return 0; }
  double value_and_gradient(sg::Context&, float const&, float const&, double, float& dy) const {
    Clock::work(7);
    dy = 1;
    return 0;
  }
};

}  // namespace

TEST_CASE("train/Profiler: bytes are those the layers hold", "[train]") {
  auto one = one_device();
  Batch const batch = small_model::batch(0, 1, false);  // 3 rows
  auto const profile = sg::Profiler({.repeats = 3, .samples = 3, .name = "small", .device = "here"})
                           .measure(one, batch.inputs[0], batch.targets[0]);
  CHECK(profile.name == "small");
  CHECK(profile.device == "here");
  CHECK(profile.batch == 3);
  REQUIRE(profile.size() == layers);
  auto const& at = profile.layers;
  CHECK(at[1].name == "1");
  CHECK(at[0].parameter_bytes == classes * width * sizeof(float));
  CHECK(at[1].parameter_bytes == width * width * sizeof(float) + width * sizeof(double));
  CHECK(at[4].parameter_bytes == 0);
  // A Tensor rounds what it holds up to whole lines of 64 bytes.
  std::uint64_t const matrix = (3 * width * sizeof(float) + 63) / 64 * 64;
  CHECK(at[1].activation_bytes == matrix);
  CHECK(at[1].stash() == matrix + sizeof(sg::NothingSaved));
  CHECK(at[2].stash() > at[1].activation_bytes);  // it keeps more than its input
  for (auto const& layer : at) {
    CHECK(std::isfinite(layer.forward_s));
    CHECK(layer.forward_s > 0);
    CHECK(layer.backward_s > 0);
  }
  CHECK(at[1].backward_weight_s.has_value());
  CHECK(*at[1].backward_weight_s < at[1].backward_s);
  CHECK_FALSE(at[2].backward_weight_s.has_value());  // its backward does not split
}

TEST_CASE("train/Profiler: a profile is for the rows of the input, or says that there are none",
          "[train]") {
  auto one = one_device();
  std::vector<int> each;
  for (int l = 1; l < layers; ++l) each.push_back(l);
  auto train = sg::Pipeline{model()}.with(sg::partition::Cuts{each}, sg::schedule::GPipe{}, Loss{},
                                          sg::sim::VirtualClock{}, sg::Options{.record = true});
  Batch batch = small_model::batch(0, 2, false);  // 3 rows each
  sg::ProfilerOptions given{.repeats = 1, .discarded = 0};
  CHECK(sg::Profiler(given).measure(one, batch.inputs[0], batch.targets[0]).batch == 3);
  CHECK(sg::Profiler(given).measure(train, batch).batch == 3);
  Batch ragged = small_model::batch(0, 2, true);
  REQUIRE(ragged.inputs[0].rows() != ragged.inputs[1].rows());
  CHECK_THROWS_WITH(
      sg::Profiler(given).measure(train, ragged),
      Catch::StartsWith("microbatch 1 has ") && Catch::EndsWith("; give ProfilerOptions::samples"));
  auto number = sg::Pipeline{Work{1, 1, 1}}.on_one_device(TimedLoss{});
  CHECK_THROWS_WITH(sg::Profiler(given).measure(number, 1.0F, 2.0F),
                    "how many samples are measured is unknown, since the input has no rows; give "
                    "ProfilerOptions::samples");
  given.samples = 6;
  CHECK(sg::Profiler(given).measure(train, ragged).batch == 6);
  CHECK(sg::Profiler(given).measure(number, 1.0F, 2.0F).batch == 6);
}

TEST_CASE("train/Profiler: the model trains on as if it had not been measured", "[train]") {
  auto measured = one_device();
  auto untouched = one_device();
  for (int step = 0; step < 3; ++step) {
    Batch const batch = small_model::batch(step, 2, true);
    (void)sg::Profiler({.repeats = 2}).measure(measured, batch.inputs[0], batch.targets[0]);
    (void)measured.step(batch);
    (void)untouched.step(batch);
    REQUIRE(bits(measured) == bits(untouched));
  }
}

TEST_CASE("train/Profiler: each layer has the median of its own times", "[train]") {
  auto one = sg::Pipeline{Work{100, 20, 3}, Work{5000, 600, 0}}.on_one_device(TimedLoss{});
  auto const profile = sg::Profiler({.repeats = 9, .samples = 1, .layer_names = {"low", "high"}})
                           .measure<Clock>(one, 1.0F, 2.0F);
  auto const& at = profile.layers;
  CHECK(at[0].name == "low");
  CHECK(at[0].forward_s == Approx(100e-9));
  CHECK(at[0].backward_s == Approx(23e-9));
  CHECK(at[0].backward_weight_s.value() == Approx(3e-9));
  CHECK(at[1].forward_s == Approx(5000e-9));
  CHECK(at[1].backward_s == Approx(607e-9));  // with the loss
  CHECK_FALSE(at[1].backward_weight_s.has_value());
}

TEST_CASE("train/Profiler: a pipeline of single layers is measured by its device's clock",
          "[train]") {
  sg::schedule::Costs costs;
  for (int l = 0; l < layers; ++l)
    costs.stages.push_back({.forward_s = 1.0 + l,
                            .backward_input_s = 2.0 + 3 * l,
                            .backward_weight_s = 0.5 + 0.25 * l});
  std::vector<int> each;
  for (int l = 1; l < layers; ++l) each.push_back(l);
  auto const made = [&](auto schedule, std::vector<int> cuts, bool record) {
    return sg::Pipeline{model()}.with(sg::partition::Cuts{std::move(cuts)}, schedule, Loss{},
                                      sg::sim::VirtualClock{.costs = costs},
                                      sg::Options{.recompute = true, .record = record});
  };
  auto one = one_device();
  Batch const batch = small_model::batch(0, 4, false);
  sg::Profiler const profiler({.repeats = 3, .samples = 3, .device = "virtual"});
  auto const known = profiler.measure(one, batch.inputs[0], batch.targets[0]);
  auto whole = made(sg::schedule::GPipe{}, each, true);
  auto split = made(sg::schedule::ZeroBubbleH1{}, each, true);
  auto const by_whole = profiler.measure(whole, batch);
  auto const by_split = profiler.measure(split, batch);
  REQUIRE(by_split.size() == layers);
  CHECK(by_split.device == "virtual");
  for (std::size_t l = 0; l < static_cast<std::size_t>(layers); ++l) {
    CAPTURE(l);
    auto const& stage = costs.stages[l];
    for (auto const* layer : {&by_whole.layers[l], &by_split.layers[l]}) {
      CHECK(layer->forward_s == Approx(stage.forward_s));
      CHECK(layer->backward_s == Approx(stage.backward_input_s + stage.backward_weight_s));
      CHECK(layer->activation_bytes == known.layers[l].activation_bytes);
      CHECK(layer->stash() == known.layers[l].stash());
      CHECK(layer->parameter_bytes == known.layers[l].parameter_bytes);
    }
    CHECK_FALSE(by_whole.layers[l].backward_weight_s.has_value());
    CHECK(by_split.layers[l].backward_weight_s.value() == Approx(stage.backward_weight_s));
  }

  costs.stages.resize(2);
  auto halves = made(sg::schedule::GPipe{}, {3}, true);
  CHECK_THROWS_WITH(profiler.measure(halves, batch),
                    "a pipeline of 2 stages with 7 layers cannot be measured layer by layer; make "
                    "each layer a stage");
}

namespace {

/// A layer that takes scratch memory in several pieces, of so many floats.
struct Scratch {
  using Input = float;
  using Output = float;
  std::vector<std::size_t> forward_takes, backward_takes;
  static void take(sg::Context& context, std::vector<std::size_t> const& sizes) {
    for (std::size_t const size : sizes) static_cast<void>(context.scratch<float>(size));
  }
  void forward(sg::Context& context, float const& x, float& y, sg::NothingSaved&) const {
    take(context, forward_takes);
    y = x;
  }
  void backward(sg::Context& context, float const&, float const& dy, float& dx,
                sg::NothingSaved&) const {
    take(context, backward_takes);
    dx = dy;
  }
};

}  // namespace

TEST_CASE("train/Profiler: scratch memory is that of the largest action, to the byte", "[train]") {
  auto const chain = [] {
    return sg::Sequential{Scratch{{16, 160}, {32, 320, 16}}, Scratch{{640, 16}, {320}},
                          Scratch{{}, {}}, Scratch{{64}, {128}}};
  };
  auto one = sg::Pipeline{chain()}.on_one_device(TimedLoss{}, sg::optimizer::Sgd{});
  sg::Footprint const of = sg::Profiler().footprint(one, 1.0F, 1.0F);
  std::uint64_t const largest[] = {32 + 320 + 16, 640 + 16, 0, 128};
  for (std::size_t l = 0; l < 4; ++l) CHECK(of.layers[l].scratch == largest[l] * sizeof(float));
  // And the engine has no more of it, with a layer on each rank.
  auto train = sg::Pipeline{chain()}.with(sg::partition::Cuts{{1, 2, 3}}, sg::schedule::GPipe{},
                                          TimedLoss{}, sg::optimizer::Sgd{});
  sg::Batch<float, float> const data{{1.0F, 2.0F}, {1.0F, 2.0F}};
  for (int step = 0; step < 2; ++step) sg::run(train.step(data));
  CHECK(train.memory().scratch == (32 + 320 + 16 + 640 + 16 + 128) * sizeof(float));
}

TEST_CASE("train/Profiler: what cannot be measured is refused", "[train]") {
  CHECK_THROWS_WITH(sg::Profiler({.repeats = 0}),
                    "a model cannot be measured in 0 passes after 2 discarded ones, with 1 sample; "
                    "use at least 1 pass, 0 discarded ones and 1 sample");
  auto one = one_device();
  Batch const batch = small_model::batch(0, 1, false);
  CHECK_THROWS_WITH(
      sg::Profiler({.layer_names = {"a", "b"}}).measure(one, batch.inputs[0], batch.targets[0]),
      "2 names were given for 7 layers; give one for each, or none");
}

}  // namespace profiler_test
