// SPDX-License-Identifier: Apache-2.0
#include <stagger/train/pipeline.hpp>

#include "catch.hpp"

#include <limits>

#include <stagger/placement/explicit_map.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/interleaved.hpp>

#include "engine/trap_model.hpp"

namespace bad_input_test {

using namespace trap_model;

namespace {

double const not_a_number = std::numeric_limits<double>::quiet_NaN();

struct Placed {
  using policy_tag = sg::PlacementTag;
  std::vector<int> answer;
  [[nodiscard]] std::vector<int> place(int, int) const { return answer; }
};

struct Cutter {
  using policy_tag = sg::PartitionTag;
  std::vector<int> answer;
  [[nodiscard]] std::vector<int> cuts(int) const { return answer; }
};

/// Claims to be proven, and has each backward before its forward.
struct Hasty {
  using policy_tag = sg::ScheduleTag;
  static constexpr bool flushes = true;
  static constexpr bool proven = true;
  [[nodiscard]] static constexpr int chunks() { return 1; }
  [[nodiscard]] static sg::schedule::Table table(sg::Shape shape) {
    sg::schedule::Table table{.stages = shape.stages(), .microbatches = shape.microbatches};
    for (int rank = 0; rank < shape.ranks; ++rank) {
      table.begin_row();
      for (int m = 0; m < shape.microbatches; ++m)
        for (auto const kind : {sg::schedule::Kind::backward, sg::schedule::Kind::forward})
          table.add({.kind = kind, .stage = rank, .microbatch = m});
    }
    return table;
  }
};

/// One sentence of what is wrong with the policies given to four stages.
template <class... P> std::string refusal(P... policy) {
  auto const hook = make_hook();
  try {
    auto train = sg::Pipeline{sg::Sequential{std::vector<Layer>(4, Layer{hook})}}.with(Loss{hook},
                                                                                       policy...);
    auto const data = batch(2);
    sg::run(train.step(data));
    return "";
  } catch (sg::Error const& error) {
    return error.what();
  }
}

sg::Options options(double deadline_s, std::optional<double> clip_norm) {
  sg::Options result;
  result.deadline_s = deadline_s;
  result.clip_norm = clip_norm;
  return result;
}

/// A stage with two parameters of which it lists as many as `Listed` says, and the second is used
/// in forward, or in backward alone.
template <int Listed, bool InForward> struct Affine {
  using Input = float;
  using Output = float;
  sg::Parameter<> a{"a", {1}};
  sg::Parameter<> b{"b", {0.5F}};
  auto parameters()
    requires(Listed > 0)
  {
    if constexpr (Listed == 1)
      return std::tie(a);
    else
      return std::tie(a, b);
  }
  void forward(sg::Context& context, float const& x, float& y, sg::NothingSaved&) {
    y = (Listed > 0 ? context[a][0] : 1) * x + (InForward ? context[b][0] : 0);
  }
  void backward(sg::Context& context, float const&, float const& dy, float& dx, sg::NothingSaved&) {
    dx = dy;
    context.gradient(b)[0] += dy;
  }
};

/// A stage that lists the parameters it was given: its own, or another's.
struct Lists {
  using Input = float;
  using Output = float;
  std::shared_ptr<sg::Parameter<>> first;
  std::shared_ptr<sg::Parameter<>> second;
  auto parameters() { return std::tie(*first, *second); }
  void forward(sg::Context& context, float const& x, float& y, sg::NothingSaved&) {
    y = context[*first][0] * x + context[*second][0];
  }
  void backward(sg::Context& context, float const& x, float const& dy, float& dx,
                sg::NothingSaved&) {
    dx = dy * context[*first][0];
    context.gradient(*first)[0] += x * dy;
    context.gradient(*second)[0] += dy;
  }
};
std::shared_ptr<sg::Parameter<>> parameter(char const* name) {
  return std::make_shared<sg::Parameter<>>(name, std::vector<float>{0.5F});
}

/// A schedule whose table is made for other counts than were asked for.
Made wrong(sg::Shape shape) {
  return {[shape](sg::Shape) { return sg::schedule::GPipe{}.table(shape); }, 1};
}

}  // namespace

TEST_CASE("train/Pipeline: a schedule that only claims to be proven is refused before it runs",
          "[train]") {
  CHECK_THAT(refusal(Hasty{}), Catch::Contains("rank 0") &&
                                   Catch::Contains("the program does not do what its table says") &&
                                   Catch::Contains("schedule::verify"));
}

TEST_CASE(
    "train/bad input: numbers that do not fit are refused in one sentence with value and remedy",
    "[train]") {
  using sg::partition::Cuts;
  using sg::partition::Even;
  std::vector<std::pair<std::string, std::vector<std::string>>> const said{
      {refusal(Even{0}), {"0 stages", "use 1 to 4"}},
      {refusal(Even{5}), {"5 stages", "4 layers", "use 1 to 4"}},
      {refusal(Even{-1}), {"-1 stages", "use 1 to 4"}},
      {refusal(Cuts{{4}}), {"cut 4", "from 1 to 3"}},
      {refusal(Cuts{{0}}), {"cut 0", "from 1 to 3"}},
      {refusal(Cuts{{2, 2}}), {"cut 2", "from 1 to 3"}},
      {refusal(Cutter{{1, 9}}), {"cut 9", "4"}},
      {refusal(Cutter{{3, 1}}), {"cut 1", "4"}},
      {refusal(Even{3}, small_model::made(sg::schedule::Interleaved{.chunks_per_rank = 2})),
       {"3 stages", "2", "multiple of 2"}},
      {refusal(Even{2}, small_model::made(sg::schedule::Interleaved{.chunks_per_rank = 0})),
       {"0", "at least 1"}},
      {refusal(Even{2}, sg::host::Threads{0}), {"0 places", "at least 1"}},
      {refusal(Even{2}, sg::host::Threads{-3}), {"-3 places", "at least 1"}},
      {refusal(Even{2}, options(0, {})), {"0 s", "positive"}},
      {refusal(Even{2}, options(not_a_number, {})), {"nan s", "positive"}},
      {refusal(Even{2}, options(-1, {})), {"-1 s", "positive"}},
      {refusal(Even{2}, options(60, 0)), {"norm of 0", "positive"}},
      {refusal(Even{2}, options(60, not_a_number)), {"norm of nan", "positive"}},
      {refusal(Even{2}, sg::placement::ExplicitMap{{0}}), {"1 place ", "2 ranks"}},
      {refusal(Even{2}, sg::placement::ExplicitMap{{0, 1}}), {"place 1", "places 0 to 0"}},
      {refusal(Even{2}, Placed{{0}}), {"1 place ", "2 ranks"}},
      {refusal(Even{2}, Placed{{0, -1}}), {"place -1", "places 0 to 0"}},
      {refusal(Even{2}, sg::host::Threads{2}, Placed{{0, 2}}), {"place 2", "places 0 to 1"}},
      {refusal(Even{2}, wrong({3, 2, 1})), {"3 ranks", "2"}},
      {refusal(Even{2}, wrong({2, 5, 1})), {"5 microbatches", "2"}},
      {refusal(Even{4}, small_model::made(sg::schedule::Interleaved{.group = 3})),
       {"interleaved", "nearest legal value"}},
  };
  for (auto const& [sentence, parts] : said) {
    CAPTURE(sentence, parts);
    CHECK(sentence != "");
    CHECK(sentence.find('\n') == std::string::npos);
    for (auto const& part : parts) CHECK_THAT(sentence, Catch::Contains(part));
  }
}

TEST_CASE("train/bad input: batches that cannot be run are refused and leave the trainer as it was",
          "[train]") {
  auto const hook = make_hook();
  auto train = pipeline(sg::host::Threads{2}, hook);
  Batch const none;
  Batch fewer = batch(3);
  fewer.targets.pop_back();
  Batch no_targets = batch(3);
  no_targets.targets.clear();
  CHECK_THROWS_WITH(sg::run(train.step(none)),
                    "a minibatch of 0 microbatches cannot be run; give at least 1");
  CHECK_THROWS_WITH(sg::run(train.evaluate(none)), Catch::Contains("0 microbatches"));
  CHECK_THROWS_WITH(sg::run(train.step(fewer)),
                    "3 inputs need as many targets, not 2; give one for each");
  CHECK_THROWS_WITH(sg::run(train.step(no_targets)),
                    "3 inputs need as many targets, not 0; give one for each");
  CHECK_THROWS_WITH(train.program(0), Catch::Contains("give at least 1"));
  CHECK_THROWS_WITH(train.prepare(0), Catch::Contains("give at least 1"));
  std::vector<float> const inputs(3);
  std::vector<float> outputs(2);
  CHECK_THROWS_WITH(sg::run(train.predict(inputs, outputs)),
                    "3 inputs need as many outputs, not 2; give one for each");
  CHECK_THROWS_WITH(sg::run(train.predict({}, outputs)), Catch::Contains("0 microbatches"));
  auto one = sg::Pipeline{Layer{hook}}.on_one_device(Loss{hook});
  CHECK_THROWS_WITH(one.step(none), Catch::Contains("0 inputs") && Catch::Contains("at least 1"));
  CHECK_THROWS_WITH(one.step(fewer), Catch::Contains("3 inputs and 2 targets"));
  auto const data = batch(3);
  sg::run(train.step(data));
  CHECK(bits(train) == undisturbed(3, 1)[1]);
}

TEST_CASE("train/bad input: a pipeline without any stage is refused", "[train]") {
  auto const hook = make_hook();
  auto const says = "a pipeline of 0 stages cannot be run; give at least 1 layer";
  CHECK_THROWS_WITH(sg::Pipeline{std::vector<Layer>{}}.with(Loss{hook}), says);
  CHECK_THROWS_WITH((sg::Pipeline{sg::Sequential{std::vector<Layer>{}}}.with(Loss{hook})), says);
  CHECK_THROWS_WITH(sg::Pipeline{std::vector<Layer>{}}.on_one_device(Loss{hook}),
                    Catch::Contains("0"));
}

TEST_CASE("train/bad input: an empty run among other stages is no stage", "[train]") {
  auto const hook = make_hook();
  auto train = sg::Pipeline{Layer{hook}, std::vector<Layer>{}, Layer{hook}}.with(Loss{hook});
  CHECK(train.stages() == 2);
  auto const data = batch(2);
  sg::run(train.step(data));
  CHECK(train.steps() == 1);
}

TEST_CASE("train/Trainer: more threads than ranks, and places in any order, give the same bits",
          "[train]") {
  auto const course = undisturbed(4, 3);
  auto const check = [&](auto... policy) {
    auto const hook = make_hook();
    auto train =
        sg::Pipeline{Layer{hook}, Layer{hook, 0.8F}, Layer{hook, 0.7F}, Layer{hook, 0.6F}}.with(
            Loss{hook}, optimizer(), policy...);
    for (int s = 0; s < 3; ++s) {
      auto const data = batch(4, s);
      sg::run(train.step(data));
    }
    CHECK(bits(train) == course[3]);
  };
  check(sg::host::Threads{16});
  check(sg::host::Threads{3}, sg::placement::ExplicitMap{{2, 0, 2, 1}});
  check(sg::host::Threads{3},
        sg::placement::ExplicitMap{{1, 1, 1, 1}});  // two places without a rank
  check(sg::host::Threads{2}, sg::placement::ExplicitMap{{1, 0, 1, 0}});
}

TEST_CASE("train/bad input: a parameter that parameters() leaves out is named where it is used",
          "[train]") {
  auto const hook = make_hook();
  auto const data = batch(2);
  auto const check = [&](auto stage) {
    sg::Pipeline const model{stage, stage};
    auto const says =
        Catch::Contains("uses the parameter 'b', which its parameters() does not list");
    auto train = model.with(Loss{hook}, sg::host::Threads{2});
    CHECK_THROWS_WITH(sg::run(train.step(data)), says);
    auto one = model.on_one_device(Loss{hook});
    CHECK_THROWS_WITH(one.step(data), says);
  };
  check(Affine<0, true>{});
  check(Affine<0, false>{});
  check(Affine<1, true>{});
  check(Affine<1, false>{});
  auto train = sg::Pipeline{Affine<2, true>{}, Affine<2, true>{}}.with(Loss{hook});
  sg::run(train.step(data));
  CHECK(train.steps() == 1);
}

TEST_CASE("train/bad input: the rows of a matrix divide the values of its parameter", "[train]") {
  auto const model = [](std::size_t rows) {
    auto const matrix =
        std::make_shared<sg::Parameter<>>(sg::Parameter<>("a", std::vector<float>(6)).matrix(rows));
    return sg::Pipeline{Lists{matrix, parameter("b")}};
  };
  std::string const says =
      "the parameter 'a' of layer 0 has 6 values, which are no matrix of 4 rows; give matrix() a "
      "number that divides them";
  CHECK_THROWS_WITH(model(4).with(Loss{make_hook()}), says);
  CHECK_THROWS_WITH(model(4).on_one_device(Loss{make_hook()}), says);
  CHECK_NOTHROW(model(3).with(Loss{make_hook()}));
}

TEST_CASE("train/bad input: a parameter belongs to one layer, under a name of its own", "[train]") {
  auto const hook = make_hook();
  auto const data = batch(2);
  auto const refused = [&](auto make, std::string const& what) {
    CHECK_THROWS_WITH(make().with(Loss{hook}), Catch::Contains(what));
    CHECK_THROWS_WITH(make().on_one_device(Loss{hook}), Catch::Contains(what));
  };
  refused([] { return sg::Pipeline{Lists{parameter("a"), parameter("a")}}; },
          "parameters() of layer 0 lists 'a' twice");
  refused(
      [] {
        auto const same = parameter("a");
        return sg::Pipeline{Lists{same, same}};
      },
      "parameters() of layer 0 lists 'a' twice");
  refused(
      [] {
        auto const tied = parameter("a");
        return sg::Pipeline{Lists{tied, parameter("b")}, Lists{parameter("c"), tied}};
      },
      "the parameter 'a' of layer 1 belongs to layer 0 already");
  refused(
      [] {
        auto const tied = parameter("a");
        return sg::Pipeline{sg::Sequential{std::vector<Lists>{{tied, parameter("b")}}},
                            Lists{tied, parameter("b")}};
      },
      "the parameter 'a' of layer 1 belongs to layer 0 already");
  // One model with parameters by address makes one trainer: values cannot be in two.
  sg::Pipeline const model{Lists{parameter("a"), parameter("b")}};
  auto train = model.with(Loss{hook});
  CHECK_THROWS_WITH(model.with(Loss{hook}), Catch::Contains("of this pipeline or another"));
  sg::run(train.step(data));
  CHECK(train.steps() == 1);
  // Used, but listed elsewhere.
  struct Borrows : Layer {
    std::shared_ptr<sg::Parameter<>> tied;
    void forward(sg::Context& context, float const& x, float& y, sg::NothingSaved&) {
      y = context[*tied][0] * x;
    }
  };
  auto const tied = parameter("a");
  auto borrowing =
      sg::Pipeline{Lists{tied, parameter("b")}, Borrows{Layer{hook}, tied}}.with(Loss{hook});
  CHECK_THROWS_WITH(sg::run(borrowing.step(data)),
                    Catch::Contains("layer 1 uses the parameter 'a' of layer 0"));
}

TEST_CASE("train/bad input: a Sequential that nobody cuts is not spread over several threads",
          "[train]") {
  auto const says = refusal(sg::host::Threads{3});
  CHECK_THAT(says, Catch::Contains("this Sequential of 4 layers") && Catch::Contains("3 places") &&
                       Catch::Contains("partition::Even{3}"));
  CHECK_THAT(refusal(sg::host::Threads{9}), Catch::Contains("partition::Even{4}"));
  // Said, or with nothing to cut, or with a use for every thread.
  CHECK(refusal(sg::host::Threads{1}) == "");
  CHECK(refusal() == "");
  CHECK(refusal(sg::host::Threads{2}, sg::partition::Cuts{}) == "");
  CHECK(refusal(sg::host::Threads{5}, sg::partition::Even{2}) == "");
  CHECK(refusal(sg::sim::VirtualClock{}) == "");
  auto const hook = make_hook();
  CHECK(sg::Pipeline{sg::Sequential{Layer{hook}}}.with(Loss{hook}, sg::host::Threads{2}).stages() ==
        1);
  CHECK(sg::Pipeline{Layer{hook}, sg::Sequential{Layer{hook}, Layer{hook}}}
            .with(Loss{hook}, sg::host::Threads{3})
            .stages() == 2);
}

}  // namespace bad_input_test
