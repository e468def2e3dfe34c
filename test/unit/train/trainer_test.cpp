// SPDX-License-Identifier: Apache-2.0
#include <stagger/train/trainer.hpp>

#include "catch.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <stagger/collective/all_reduce.hpp>
#include <stagger/collective/grouping/layerwise.hpp>
#include <stagger/partition/even.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/interleaved.hpp>
#include <stagger/schedule/pipe_dream.hpp>
#include <stagger/staleness/weight_stashing.hpp>

#include "engine/typed_oracle.hpp"

namespace trainer_test {

using namespace small_model;

namespace {

template <class... P>
using With = decltype(sg::Pipeline{model()}.with(Loss{}, optimizer(), std::declval<P>()...));

/// All ranks on the last place.
struct Last {
  using policy_tag = sg::PlacementTag;
  [[nodiscard]] std::vector<int> place(int ranks, int places) const {
    return std::vector<int>(static_cast<std::size_t>(ranks), places - 1);
  }
};

// Staleness is seen: a synchronous trainer takes steps, the other one streams.
static_assert(std::same_as<With<>, Trainer>);
static_assert(std::same_as<With<sg::schedule::PipeDream, sg::staleness::WeightStashing>,
                           sg::Trainer<Tokens, Matrix, sg::optimizer::AdamW, Loss, false>>);

// A program that copies one is told so (test/compile_fail/trainer_copied.cpp); a trait is not misled.
static_assert(!std::is_copy_constructible_v<Trainer> && !std::is_copy_assignable_v<Trainer> &&
              std::is_nothrow_move_constructible_v<Trainer>);

/// y = a x, written in unusual ways that are right.
class Unusual {
 public:
  using Input = float;
  using Output = float;
  explicit Unusual(double initial) : a_{"a", {initial}} {}  // no other constructor
  auto parameters() { return std::tie(a_); }                // double among floats
  void forward(sg::Context& context, float const& x, float& y, auto&&) const {
    y = static_cast<float>(context[a_][0]) * x;
  }
  void backward(sg::Context& context, float x, float dy, float& dx, sg::NothingSaved) const {
    dx = static_cast<float>(context[a_][0]) * dy;
    context.gradient(a_)[0] += static_cast<double>(x) * static_cast<double>(dy);
  }

 private:
  sg::Parameter<double> a_;
};

struct Square {
  using policy_tag = sg::LossTag;
  using Target = float;
  double terms(float) const { return 1; }
  double value(sg::Context&, float y, float target) const { return (y - target) * (y - target); }
  double value_and_gradient(sg::Context& context, float y, float target, double scale,
                            float& dy) const {
    dy = static_cast<float>(2 * scale) * (y - target);
    return value(context, y, target);
  }
};

}  // namespace

TEST_CASE(
    "train/Trainer: const functions, doubles among floats and layers without a default are trained",
    "[train]") {
  sg::Pipeline const model{Unusual{2}, Unusual{3}};
  auto one = model.on_one_device(Square{}, sg::optimizer::Sgd{});
  auto train = model.with(Square{}, sg::schedule::GPipe{}, sg::host::Threads{2});
  sg::Batch<float, float> const data{{1, 2}, {5, 10}};
  for (int step = 0; step < 2; ++step) CHECK(sg::run(train.step(data)).loss == one.step(data).loss);
  CHECK(one.evaluate(data).loss < 2);  // (6 - 5)^2 and (12 - 10)^2 at first, 2.5 on the average
  REQUIRE(train.parameters().size() == 2);
  for (std::size_t i = 0; i < 2; ++i)
    CHECK(train.parameters()[i].values<double>()[0] == one.parameters()[i].values<double>()[0]);
}

TEST_CASE(
    "train/Trainer: a program that was asked for stays, however many others the trainer makes",
    "[train]") {
  auto train =
      sg::Pipeline{model()}.with(sg::partition::Even{2}, Loss{}, optimizer(), sg::host::Threads{1});
  sg::Program const& program = train.program(3);
  sg::Program const before = program;
  for (int microbatches = 4; microbatches < 24; ++microbatches) {
    auto const data = batch(0, microbatches, true);
    static_cast<void>(sg::run(train.step(data)));
    static_cast<void>(sg::run(train.evaluate(data)));
  }
  auto moved = std::move(train);
  CHECK(program.microbatches == 3);
  REQUIRE(program.ranks.size() == before.ranks.size());
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    REQUIRE(program.ranks[r].code.size() == before.ranks[r].code.size());
    for (std::size_t i = 0; i < program.ranks[r].code.size(); ++i) {
      CHECK(program.ranks[r].code[i].op == before.ranks[r].code[i].op);
      CHECK(program.ranks[r].code[i].microbatch == before.ranks[r].code[i].microbatch);
    }
  }
}

TEST_CASE("train/Trainer: schedule, cuts, placement, grouping and device are chosen at run time",
          "[train]") {
  auto const cut = sg::partition::Even{4};
  std::vector<Batch> data;
  for (int s = 0; s < 3; ++s) data.push_back(batch(s, 4, true));
  auto const course = expected_course(data, false);
  auto const made = [&](int choice) -> Trainer {
    auto const whole = sg::Pipeline{model()};
    sg::Options const seeded{.seed = run_seed};
    switch (choice) {
      case 0:
        return whole.with(Loss{}, optimizer(), seeded);
      case 1:
        return whole.with(cut, sg::schedule::GPipe{}, Loss{}, optimizer(), seeded, Last{},
                          sg::host::Threads{3});
      case 2:
        return whole.with(cut, sg::schedule::Interleaved{}, Loss{}, optimizer(), seeded,
                          sg::sim::VirtualClock{});
      default:
        return whole.with(cut, Loss{}, optimizer(), seeded, sg::host::Threads{2},
                          sg::collective::AllReduce<sg::collective::grouping::Layerwise>{});
    }
  };
  std::vector<Trainer> trainers;
  for (int choice = 0; choice < 4; ++choice) trainers.push_back(made(choice));
  std::vector<int> stages;
  for (Trainer& train : trainers) {
    stages.push_back(train.stages());
    CHECK(first_difference(train, data, course) == -1);
  }
  CHECK(stages == std::vector{1, 4, 4, 4});

  // One in the place of another: the one that was there is gone, with all that it kept.
  trainers[0] = made(1);
  CHECK(trainers[0].stages() == 4);
  CHECK(trainers[0].steps() == 0);
  Trainer moved = std::move(trainers[0]);
  moved.optimizer().rate = 0;
  auto const values = [&] {
    std::vector<std::byte> all;
    for (auto const& state : moved.parameters())
      all.insert(all.end(), state.value.begin(), state.value.end());
    return all;
  };
  auto const before = values();
  sg::run(moved.step(data[0]));
  CHECK(moved.steps() == 1);
  CHECK(values() == before);
}

TEST_CASE("train/Trainer: goes on from no step that overflows, nor does one device", "[train]") {
  sg::Pipeline const model{Unusual{2}, Unusual{3}};
  auto one = model.on_one_device(Square{}, sg::optimizer::AdamW{});
  auto train = model.with(Square{}, sg::optimizer::AdamW{});
  constexpr std::int64_t last = std::int64_t{1} << 48U;
  for (std::int64_t const step : {std::int64_t{-1}, last + 1, INT64_MAX, INT64_MIN}) {
    std::string const sentence = "training cannot go on from step " + std::to_string(step) +
                                 "; count the steps from 0 to 281474976710656";
    CHECK_THROWS_WITH(train.resume(step), sentence);
    CHECK_THROWS_WITH(one.resume(step), sentence);
  }
  CHECK(train.steps() == 0);
  CHECK(one.steps() == 0);
  train.resume(last);
  one.resume(last);
  sg::Batch<float, float> const data{{1, 2}, {5, 10}};
  sg::run(train.step(data));
  one.step(data);
  CHECK(train.steps() == last + 1);
  for (std::size_t i = 0; i < 2; ++i) {
    double const value = train.parameters()[i].values<double>()[0];
    CHECK(value == one.parameters()[i].values<double>()[0]);
    CHECK(value < 2 + static_cast<double>(i));  // a number, and a step below the initial value
  }
}

TEST_CASE("train/Trainer: one device refuses the norms that a pipeline refuses", "[train]") {
  sg::Pipeline const model{Unusual{2}};
  for (double const norm : {0.0, -1.0, -std::numeric_limits<double>::infinity(),
                            std::numeric_limits<double>::quiet_NaN()}) {
    sg::Options const options{.clip_norm = norm};
    auto const sentence = Catch::Contains("gradients cannot be clipped to a norm of");
    CHECK_THROWS_WITH(model.with(Square{}, options), sentence);
    CHECK_THROWS_WITH(model.on_one_device(Square{}, options), sentence);
  }
}

/// y = (a0 + a1 + a2) x, whose parameters are tied or a list.
template <bool listed> struct Sum {
  using Input = float;
  using Output = float;
  std::vector<sg::Parameter<float>> all;
  explicit Sum(std::vector<std::string> const& names) {
    for (auto const& name : names) all.emplace_back(name, std::vector{0.5F}, name != "b");
  }
  auto parameters() {
    if constexpr (listed)
      return std::span(all);
    else
      return std::tie(all[0], all[1], all[2]);
  }
  void forward(sg::Context& context, float const& x, float& y, auto&) const {
    y = 0;
    for (auto const& a : all) y += context[a][0] * x;
  }
  void backward(sg::Context& context, float const& x, float const& dy, float& dx, auto&) const {
    dx = 0;
    float factor = 1;
    for (auto const& a : all) {
      dx += context[a][0] * dy;
      context.gradient(a)[0] += factor * x * dy;
      factor /= 3;
    }
  }
};
static_assert(sg::Stage<Sum<true>> && sg::Stage<Sum<false>>);
static_assert(sg::detail::is_tie<std::span<sg::Parameter<double>, 3>>);

TEST_CASE("train/Trainer: parameters that a layer lists at run time are trained like tied ones",
          "[train]") {
  using List = Sum<true>;
  std::vector<std::string> const names{"w", "b", "c"};
  sg::optimizer::AdamW const optimizer{.rate = 0.1F};
  sg::Batch<float, float> const data{{1, 2, -1}, {5, 10, 3}};
  auto list =
      sg::Pipeline{List(names), List(names)}.with(Square{}, optimizer, sg::host::Threads{2});
  auto tied = sg::Pipeline{Sum<false>(names), Sum<false>(names)}.with(Square{}, optimizer,
                                                                      sg::host::Threads{2});
  for (int step = 0; step < 3; ++step) {
    sg::run(list.step(data));
    sg::run(tied.step(data));
  }
  auto const of_list = list.parameters();
  auto const of_tied = tied.parameters();
  REQUIRE(of_list.size() == 6);
  REQUIRE(of_tied.size() == 6);
  for (std::size_t i = 0; i < of_list.size(); ++i) {
    CHECK(of_list[i].name == of_tied[i].name);
    CHECK(of_list[i].values<float>()[0] == of_tied[i].values<float>()[0]);
    CHECK(of_list[i].values<float>()[0] != 0.5F);
  }
  CHECK(sg::Pipeline{List({}), List(names)}.with(Square{}).parameters().size() == 3);
  CHECK_THROWS_WITH(
      sg::Pipeline{List({"w", "b", "w"})}.with(Square{}),
      Catch::Contains("parameters() of layer 0 lists 'w' twice; list each Parameter once"));
}

}  // namespace trainer_test
