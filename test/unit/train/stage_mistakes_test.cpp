// SPDX-License-Identifier: Apache-2.0
// What stages get wrong while they run, and what they are told.
#include <stagger/train/pipeline.hpp>

#include "catch.hpp"

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/collective/all_reduce.hpp>
#include <stagger/collective/grouping/layerwise.hpp>
#include <stagger/core/tensor.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/model/lamb.hpp>
#include <stagger/model/muon.hpp>
#include <stagger/schedule/dual_pipe.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/zero_bubble_h1.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/train/profiler.hpp>

namespace stage_mistakes_test {

namespace {

namespace sg = stagger;
using Numbers = sg::Tensor<>;
using Mse = sg::loss::MeanSquaredError<>;
using Data = sg::Batch<Numbers, Numbers>;

Data data(int microbatches) {
  Data batch;
  for (int m = 0; m < microbatches; ++m) {
    batch.inputs.push_back(Numbers::of({static_cast<float>(m), 2, -1}));
    batch.targets.push_back(Numbers::of({1, -2, static_cast<float>(m)}));
  }
  return batch;
}

/// The sentence with which `run` ends; empty: it does not.
template <class Run> std::string said(Run run) {
  try {
    run();
    return "";
  } catch (std::exception const& error) {
    return error.what();
  }
}

/// y = a x, which leaves out to size what `Forgets` says.
enum class Forgets { nothing, y, dx };
template <Forgets forgets = Forgets::nothing, class X = Numbers> struct Scale {
  using Input = X;
  using Output = X;
  sg::Parameter<> a{"a", {0.5F}};
  auto parameters() { return std::tie(a); }
  void forward(sg::Context& context, X const& x, X& y, sg::NothingSaved&) {
    if constexpr (forgets != Forgets::y) y = x;
    for (auto& element : y) element *= context[a][0];
  }
  void backward_input(sg::Context& context, X const&, X const& dy, X& dx, sg::NothingSaved&) {
    if constexpr (forgets != Forgets::dx) dx = dy;
    for (auto& element : dx) element *= context[a][0];
  }
  void backward_weight(sg::Context& context, X const& x, X const& dy, sg::NothingSaved&) {
    for (std::size_t i = 0; i < x.size(); ++i) context.gradient(a)[0] += x[i] * dy[i];
  }
};
/// The same with a backward that is not split.
template <Forgets forgets> struct Whole {
  using Input = Numbers;
  using Output = Numbers;
  void forward(sg::Context&, Numbers const& x, Numbers& y, sg::NothingSaved&) { y = x; }
  void backward(sg::Context&, Numbers const&, Numbers const& dy, Numbers& dx, sg::NothingSaved&) {
    if constexpr (forgets != Forgets::dx) dx = dy;
  }
};
/// Counts in the target of each microbatch the terms that its last element says.
struct SaysTerms : Mse {
  double terms(Numbers const& target) const { return target[target.size() - 1]; }
};
struct NoGradient : Mse {
  double value_and_gradient(sg::Context& context, Numbers const& y, Numbers const& target, double,
                            Numbers&) const {
    return value(context, y, target);
  }
};

char const* const no_y =
    "forward of layer 0 left y empty, but x is not; size y before you write it, as with "
    "y.resize_like(x)";
char const* const no_dx =
    "backward of layer 1 left dx with a size of 0, but x has 3; size dx before you write it, as "
    "with dx.resize_like(x)";

/// What a step of two layers says on several devices, which all say the same.
template <class First, class Second> std::string steps(First first, Second second) {
  auto const batch = data(4);
  sg::Pipeline const model{first, second};
  auto const one = said([&] { model.on_one_device(Mse{}).step(batch); });
  CHECK(said([&] { sg::run(model.with(Mse{}).step(batch)); }) == one);
  CHECK(said([&] { sg::run(model.with(Mse{}, sg::host::Threads{2}).step(batch)); }) == one);
  CHECK(said([&] {
          sg::run(
              model.with(Mse{}, sg::schedule::ZeroBubbleH1{}, sg::sim::VirtualClock{}).step(batch));
        }) == one);
  return one;
}

}  // namespace

TEST_CASE("train/bad stage: a result that was not sized is named with its layer", "[train]") {
  using enum Forgets;
  CHECK(steps(Scale<>{}, Scale<>{}) == "");
  CHECK(steps(Scale<y>{}, Scale<>{}) == no_y);
  CHECK(steps(Scale<>{}, Scale<dx>{}) == no_dx);
  CHECK(steps(Scale<>{}, Whole<dx>{}) == no_dx);
  // Nothing reads the gradient of the model's input.
  CHECK(steps(Scale<dx>{}, Scale<>{}) == "");
  CHECK(steps(Whole<dx>{}, Scale<>{}) == "");

  auto const batch = data(2);
  CHECK(said([&] { sg::run(sg::Pipeline{Scale<y>{}}.with(Mse{}).evaluate(batch)); }) == no_y);
  char const* const no_dy =
      "the loss left dy with a size of 0, but the model's output has 3; size dy before you write "
      "it, as with dy.resize_like(y)";
  sg::Pipeline const right{Scale<>{}, Scale<>{}};
  CHECK(said([&] { sg::run(right.with(NoGradient{}).step(batch)); }) == no_dy);
  CHECK(said([&] { right.on_one_device(NoGradient{}).step(batch); }) == no_dy);
}

namespace {

/// A tensor, and what has no gradient.
struct Marked {
  Numbers values;
  std::vector<int> marks;
  auto fields() { return std::tie(values, marks); }
  auto fields() const { return std::tie(values, marks); }
};
struct Nested {
  Marked marked;
  Numbers more;
  auto fields() { return std::tie(marked, more); }
  auto fields() const { return std::tie(marked, more); }
};
Numbers& values_of(Marked& x) { return x.values; }
Numbers& values_of(Nested& x) { return x.marked.values; }
template <class X> Numbers const& values_of(X const& x) { return values_of(const_cast<X&>(x)); }

template <class X, Forgets forgets = Forgets::nothing> struct Passes {
  using Input = X;
  using Output = X;
  void forward(sg::Context&, X const& x, X& y, sg::NothingSaved&) {
    if constexpr (forgets != Forgets::y) y = x;
  }
  void backward(sg::Context&, X const&, X const& dy, X& dx, sg::NothingSaved&) {
    if constexpr (forgets != Forgets::dx) values_of(dx) = values_of(dy);
  }
};
/// Gives, unless it `forgets`, a gradient of the values alone.
struct OfValues {
  using policy_tag = sg::LossTag;
  using Target = float;
  bool forgets = false;
  double terms(float) const { return 1; }
  template <class Y> double value(sg::Context&, Y const& y, float) const {
    return values_of(y).size() == 0 ? 0 : values_of(y)[0];
  }
  template <class Y>
  double value_and_gradient(sg::Context& context, Y const& y, float target, double, Y& dy) const {
    if (!forgets) values_of(dy).resize_like(values_of(y));
    return value(context, y, target);
  }
};
/// What a step of two layers says on several devices, which all say the same.
template <class X> std::string passes(X const& x, auto first, auto second, OfValues loss = {}) {
  sg::Batch<X, float> const batch{{x, x}, {0, 0}};
  sg::Pipeline const model{first, second};
  auto const one = said([&] { model.on_one_device(loss).step(batch); });
  CHECK(said([&] { sg::run(model.with(loss, sg::host::Threads{2}).step(batch)); }) == one);
  return one;
}

}  // namespace

TEMPLATE_TEST_CASE("train/bad stage: a struct of which no field was sized is named with its layer",
                   "[train]", Marked, Nested) {
  using enum Forgets;
  using Whole = Passes<TestType>;
  TestType x;
  values_of(x) = Numbers::of({1, 2, 3});
  CHECK(passes(x, Whole{}, Whole{}) == "");
  CHECK(passes(x, Passes<TestType, y>{}, Whole{}) ==
        "forward of layer 0 left y empty, but x is not; size the fields of y before you write "
        "them, as with y.values.resize(...)");
  CHECK(passes(x, Whole{}, Passes<TestType, dx>{}) ==
        "backward of layer 1 left dx with a size of 0, but x has 3; size the fields of dx before "
        "you write them, as with dx.values.resize_like(x.values)");
  CHECK(passes(x, Passes<TestType, dx>{}, Whole{}) == "");
  CHECK(passes(x, Whole{}, Whole{}, OfValues{true}) ==
        "the loss left dy with a size of 0, but the model's output has 3; size the fields of dy "
        "before you write them, as with dy.values.resize_like(y.values)");
  // Without elements there is nothing to size.
  CHECK_THAT(passes(TestType{}, Passes<TestType, y>{}, Whole{}), !Catch::Contains("left"));
}

namespace {

/// A loss of lists of numbers.
struct Sum {
  using policy_tag = sg::LossTag;
  using Target = float;
  double terms(float) const { return 1; }
  template <class Y> double value(sg::Context&, Y const& y, float) const {
    return static_cast<double>(y.size());
  }
  template <class Y>
  double value_and_gradient(sg::Context& context, Y const& y, float target, double, Y& dy) const {
    dy = y;
    return value(context, y, target);
  }
};

/// Hands on nothing, and gives no gradient.
template <class X> struct Drops {
  using Input = X;
  using Output = X;
  void forward(sg::Context&, X const&, X& y, sg::NothingSaved&) { y = X(); }
  void backward(sg::Context&, X const&, X const&, X&, sg::NothingSaved&) {}
};
template <class X> struct HandsOn : Drops<X> {
  void forward(sg::Context&, X const& x, X& y, sg::NothingSaved&) { y = x; }
};
/// Has a tensor without rows by right.
struct NoRows : Drops<Numbers> {
  void forward(sg::Context&, Numbers const&, Numbers& y, sg::NothingSaved&) { y.resize({0, 3}); }
};
template <class X> std::string drops(auto first, auto second) {
  X const x{1, 2};
  sg::Batch<X, float> batch{{x, x}, {0, 0}};
  return said([&] { sg::run(sg::Pipeline{first, second}.with(Sum{}).step(batch)); });
}

}  // namespace

TEST_CASE("train/bad stage: a list may be empty, and tokens have no gradient", "[train]") {
  using List = std::vector<float>;
  using Tokens = std::vector<int>;
  CHECK(drops<List>(Drops<List>{}, Drops<List>{}) == "");
  CHECK_THAT(drops<List>(HandsOn<List>{}, Drops<List>{}), Catch::Contains("backward of layer 1"));
  CHECK(drops<Tokens>(HandsOn<Tokens>{}, HandsOn<Tokens>{}) == "");
  CHECK(drops<Numbers>(NoRows{}, NoRows{}) == "");
}

namespace {

/// What a forward was told of itself.
struct Seen {
  int trained = 0, recomputed = 0, evaluated = 0, profiled = 0;
  friend bool operator==(Seen const&, Seen const&) = default;
};
struct Watches : Scale<> {
  std::shared_ptr<Seen> seen = std::make_shared<Seen>();
  void forward(sg::Context& context, Numbers const& x, Numbers& y, sg::NothingSaved& saved) {
    Scale::forward(context, x, y, saved);
    if (context.profiles())
      ++seen->profiled;
    else if (!context.training())
      ++seen->evaluated;
    else if (context.recomputes())
      ++seen->recomputed;
    else
      ++seen->trained;
  }
};

}  // namespace

TEST_CASE("train/Context: a forward is told whether it is repeated, evaluated or measured",
          "[train]") {
  auto const batch = data(5);
  for (bool const recompute : {false, true})
    for (int const threads : {1, 2}) {
      Watches const layer;
      auto train = sg::Pipeline{Scale<>{}, layer}.with(
          Mse{}, sg::host::Threads{threads},
          sg::Options{.recompute = recompute, .check_recompute = true});
      for (int step = 0; step < 3; ++step) sg::run(train.step(batch));
      sg::run(train.evaluate(batch));
      CHECK(*layer.seen ==
            Seen{.trained = 15, .recomputed = recompute ? 15 : 0, .evaluated = 5, .profiled = 0});
    }
  Watches const layer;
  auto one = sg::Pipeline{layer}.on_one_device(Mse{});
  static_cast<void>(sg::Profiler{{.repeats = 2, .discarded = 1, .samples = 1}}.measure(
      one, batch.inputs[0], batch.targets[0]));
  CHECK(*layer.seen == Seen{.trained = 0, .recomputed = 0, .evaluated = 0, .profiled = 3});
  one.step(batch);
  CHECK(layer.seen->trained == 5);
}

namespace {

/// Adds to its output what it has counted itself, so that no forward gives what another gave.
template <bool first_alone> struct Counts : Scale<> {
  std::uint32_t calls = 0;
  void forward(sg::Context& context, Numbers const& x, Numbers& y, sg::NothingSaved& saved) {
    Scale::forward(context, x, y, saved);
    if (context.microbatch() == 2) y[1] += static_cast<float>(calls) / 8;
    if (!first_alone || (context.training() && !context.recomputes())) ++calls;
  }
};
/// Differs in the sign of a zero alone.
struct Flips : Scale<> {
  void forward(sg::Context& context, Numbers const& x, Numbers& y, sg::NothingSaved& saved) {
    Scale::forward(context, x, y, saved);
    y[0] = context.recomputes() ? -0.0F : 0.0F;
  }
};

sg::Options checked(bool check = true) {
  return sg::Options{.recompute = true, .check_recompute = check};
}
std::string other_output(int layer, int rank, int microbatch) {
  return "forward of layer " + std::to_string(layer) + " on rank " + std::to_string(rank) +
         " gave another output for microbatch " + std::to_string(microbatch) +
         " when it was repeated (Options::recompute); let it depend on its input, the parameters "
         "and context.random_seed() alone, and change what the stage keeps itself only where "
         "context.recomputes() is false";
}

}  // namespace

TEST_CASE("train/Options: check_recompute ends a step whose forward gives other bits again",
          "[train]") {
  auto const batch = data(4);
  auto const tried = [&](auto model, auto... policy) {
    auto train = model.with(Mse{}, policy...);
    auto const before = train.parameters()[0].template values<float>()[0];
    auto const sentence = said([&] { sg::run(train.step(batch)); });
    CHECK(train.steps() == (sentence.empty() ? 1 : 0));
    CHECK((train.parameters()[0].template values<float>()[0] == before) == !sentence.empty());
    CHECK(said([&] { sg::run(train.evaluate(batch)); }) == "");
    return sentence;
  };
  sg::Pipeline const counts{Scale<>{}, Scale<>{}, Counts<false>{}, Scale<>{}};
  auto const wrong = other_output(2, 2, 2);
  CHECK(tried(counts, checked()) == wrong);
  CHECK(tried(counts, checked(), sg::host::Threads{3}) == wrong);
  CHECK(tried(counts, checked(), sg::schedule::GPipe{}, sg::sim::VirtualClock{}) == wrong);
  CHECK(tried(counts, checked(), sg::schedule::ZeroBubbleH1{}) == wrong);
  CHECK(tried(counts, sg::Options{.check_recompute = true}) == "");  // nothing is repeated
  CHECK(tried(sg::Pipeline{Scale<>{}, Flips{}}, checked()) == other_output(1, 1, 0));
  // One stage of several layers, and both owners of each stage.
  CHECK(tried(sg::Pipeline{sg::Sequential{Scale<>{}, Scale<>{}, Counts<false>{}}}, checked()) ==
        other_output(2, 0, 2));
  CHECK(tried(sg::Pipeline{Scale<>{}, Counts<false>{}}, checked(), sg::schedule::DualPipe{}) != "");
  CHECK(tried(sg::Pipeline{Scale<>{}, Scale<>{}}, checked(), sg::schedule::DualPipe{}) == "");
  // What a stage keeps may change in the first forward, but then the repeated one must not see it.
  CHECK(tried(sg::Pipeline{Counts<true>{}, Scale<>{}}, checked()) == other_output(0, 0, 2));
}

namespace {

struct Parts {
  std::optional<Numbers> numbers;
  std::vector<double> more;
  bool flag = false;
  auto fields() { return std::tie(numbers, more, flag); }
  auto fields() const { return std::tie(numbers, more, flag); }
};
/// Gives an output of which one part differs when forward is repeated.
struct Makes {
  using Input = Numbers;
  using Output = Parts;
  int part = -1;
  void forward(sg::Context& context, Numbers const& x, Parts& y, sg::NothingSaved&) {
    bool const other = context.recomputes();
    y.numbers = x;
    y.more = {1, other && part == 1 ? 3.0 : 2.0};
    y.flag = other && part == 2;
    if (other && part == 0) y.numbers.reset();
    if (other && part == 3) y.more.push_back(0);
    if (other && part == 4) y.numbers->resize({1, 3});  // the same elements
  }
  void backward(sg::Context&, Numbers const&, Parts const&, Numbers&, sg::NothingSaved&) {}
};
struct Opaque {
  std::shared_ptr<float> number;
};
/// Its fields contain a view.
struct View {
  std::span<float const> numbers;
  auto fields() { return std::tie(numbers); }
  auto fields() const { return std::tie(numbers); }
};
template <class Out> struct Hides {
  using Input = Numbers;
  using Output = Out;
  void forward(sg::Context&, Numbers const&, Out&, sg::NothingSaved&) {}
  void backward(sg::Context&, Numbers const&, Out const&, Numbers&, sg::NothingSaved&) {}
};
struct Ends {
  using policy_tag = sg::LossTag;
  using Target = Numbers;
  double terms(Target const&) const { return 1; }
  double value(sg::Context&, auto const&, Target const&) const { return 0; }
  double value_and_gradient(sg::Context&, auto const&, Target const&, double, auto&) const {
    return 0;
  }
};

}  // namespace

TEST_CASE("train/Options: check_recompute compares every field, and refuses what it cannot compare",
          "[train]") {
  auto const batch = data(1);
  for (int part = -1; part < 5; ++part) {
    CAPTURE(part);
    auto train = sg::Pipeline{Makes{part}}.with(Ends{}, checked());
    CHECK(said([&] { sg::run(train.step(batch)); }) == (part < 0 ? "" : other_output(0, 0, 0)));
  }
  auto const hidden = [&](auto hides, bool check) {
    return said([&] { sg::run(sg::Pipeline{hides}.with(Ends{}, checked(check)).step(batch)); });
  };
  char const* const refused = "check_recompute cannot compare the Output of layer 0";
  CHECK_THAT(hidden(Hides<Opaque>{}, true), Catch::Contains(refused));
  CHECK_THAT(hidden(Hides<std::span<float const>>{}, true), Catch::Contains(refused));
  CHECK_THAT(hidden(Hides<View>{}, true), Catch::Contains(refused));
  CHECK(hidden(Hides<Opaque>{}, false) == "");
}

namespace {

struct OfMine {
  int number = 0;
};
/// Throws something that is no std::exception, in its function `where` for microbatch 2.
struct Throws : Scale<> {
  char where = 'F';
  bool armed = true;
  void forward(sg::Context& context, Numbers const& x, Numbers& y, sg::NothingSaved& saved) {
    Scale::forward(context, x, y, saved);
    if (armed && where == 'F' && context.microbatch() == 2) throw OfMine{7};
  }
  void backward_weight(sg::Context& context, Numbers const& x, Numbers const& dy,
                       sg::NothingSaved& saved) {
    Scale::backward_weight(context, x, dy, saved);
    if (where == 'W' && context.microbatch() == 2) throw OfMine{8};
  }
};

}  // namespace

TEST_CASE("train/Trainer: failed_at says where a stage threw, and the exception is its own",
          "[train]") {
  auto const batch = data(4);
  auto const tried_of = [](auto& train, int microbatches) {
    try {
      sg::run(train.step(data(microbatches)));
      return 0;
    } catch (OfMine const& mine) {
      return mine.number;
    }
  };
  auto const tried = [&](auto& train) { return tried_of(train, 4); };
  for (int const threads : {1, 2}) {
    sg::Pipeline const model{sg::Sequential{Scale<>{}, Scale<>{}}, Throws{}};
    auto train = model.with(Mse{}, sg::host::Threads{threads});
    CHECK(train.failed_at() == "");
    CHECK(tried(train) == 7);
    CHECK(train.failed_at() == "rank 1 in 1F2, layer 2");
    CHECK_THROWS_AS(sg::run(train.step({})), sg::Error);  // did not begin
    CHECK(train.failed_at() == "rank 1 in 1F2, layer 2");
    sg::stop_source stopped;
    stopped.request_stop();
    CHECK_THROWS_AS(sg::run(train.step(batch, stopped.get_token())), sg::Error);
    CHECK(train.failed_at() == "");
  }
  auto weight = sg::Pipeline{Throws{{}, 'W'}, Scale<>{}}.with(Mse{}, sg::schedule::ZeroBubbleH1{},
                                                              sg::sim::VirtualClock{});
  CHECK(tried(weight) == 8);
  CHECK(weight.failed_at() == "rank 0 in 0W2, layer 0");
  for (bool const split : {false, true}) {  // in a part of the last backward, or of its second half
    auto const made = [&](auto const& schedule) {
      return sg::Pipeline{sg::Sequential{Scale<>{}, Throws{{}, 'W'}, Scale<>{}}}.with(
          Mse{}, schedule, sg::collective::AllReduce<sg::collective::grouping::Layerwise>{},
          sg::Options{.replicas = {2}}, sg::sim::VirtualClock{});
    };
    auto part = split ? made(sg::schedule::ZeroBubbleH1{}) : made(sg::schedule::OneFOneB{});
    CHECK(tried_of(part, 3) == 8);
    CHECK_THAT(part.failed_at(), Catch::EndsWith(split ? " in 0W2, layer 1" : " in 0B2, layer 1"));
  }
  auto again = sg::Pipeline{Scale<>{}, Flips{}}.with(Mse{}, checked());
  CHECK_THROWS_AS(tried(again), sg::Error);
  CHECK(again.failed_at() == "rank 1 in 1F0 (again), layer 1");
}

TEST_CASE("train/bad input: rates that cannot train, values of another type", "[train]") {
  auto const batch = data(2);
  sg::Pipeline const model{Scale<>{}, Scale<>{}};
  char const* const negative = "a learning rate of -1 cannot train; use a finite rate of 0 or more";
  using sg::optimizer::AdamW, sg::optimizer::Sgd;
  CHECK(said([&] { (void)model.with(Mse{}, Sgd{.rate = -1}); }) == negative);
  CHECK(said([&] { (void)model.with(Mse{}, AdamW{.rate = -1}); }) == negative);
  CHECK(said([&] { model.on_one_device(Mse{}, Sgd{.rate = -1}).step(batch); }) == negative);
  auto const nan = std::numeric_limits<double>::quiet_NaN();
  CHECK_THAT(said([&] { (void)model.with(Mse{}, Sgd{.rate = nan}); }), Catch::Contains("nan"));
  CHECK_THAT(said([&] { (void)model.with(Mse{}, Sgd{.momentum = 1}); }),
             Catch::Contains("momentum = 1"));
  CHECK_THAT(said([&] { (void)model.with(Mse{}, AdamW{.beta1 = 1}); }), Catch::Contains("beta1"));
  CHECK_THAT(said([&] { (void)model.with(Mse{}, AdamW{.beta2 = -0.5}); }),
             Catch::Contains("beta2"));
  auto const infinite = std::numeric_limits<double>::infinity();
  for (double const bad : {nan, infinite, 1e39, -0.5}) {  // 1e39 is infinite as a float
    CAPTURE(bad);
    auto const decays = Catch::StartsWith("an optimizer with weight_decay = ");
    CHECK_THAT(said([&] { (void)model.with(Mse{}, Sgd{.weight_decay = bad}); }), decays);
    CHECK_THAT(said([&] { (void)model.with(Mse{}, AdamW{.weight_decay = bad}); }), decays);
    CHECK_THAT(said([&] { sg::optimizer::Lamb{.weight_decay = bad}.check(); }), decays);
    CHECK_THAT(said([&] { sg::optimizer::Muon{.weight_decay = bad}.check(); }), decays);
    auto const rates = Catch::StartsWith("a learning rate of ");
    CHECK_THAT(said([&] { (void)model.with(Mse{}, Sgd{.rate = bad}); }), rates);
    CHECK_THAT(said([&] { sg::optimizer::Muon{.others = {.rate = bad}}.check(); }), rates);
  }
  for (double const bad : {0.0, 1e-50, nan, infinite, -1e-8}) {  // 1e-50 is 0 as a float
    CAPTURE(bad);
    auto const divides = Catch::StartsWith("an optimizer with epsilon = ");
    CHECK_THAT(said([&] { (void)model.with(Mse{}, AdamW{.epsilon = bad}); }), divides);
    CHECK_THAT(said([&] { sg::optimizer::Lamb{.epsilon = bad}.check(); }), divides);
  }
  auto train = model.with(Mse{}, Sgd{.rate = 0});
  sg::run(train.step(batch));
  train.optimizer().rate = -1;
  CHECK(said([&] { (void)train.step(batch); }) == negative);
  CHECK(said([&] { sg::run(train.evaluate(batch)); }) == "");
  CHECK(train.steps() == 1);
  auto const states = train.parameters();
  CHECK(states[0].values<float>()[0] == 0.5F);
  CHECK(said([&] { (void)states[0].values<double>(); }) ==
        "the parameter '0.a' has values of type float, not double; call values<float>()");
}

TEST_CASE("train/bad stage: an output of an earlier microbatch's size is told how to be mended",
          "[train]") {
  struct SizesOnce : Scale<> {
    void forward(sg::Context&, Numbers const& x, Numbers& y, sg::NothingSaved&) {
      if (y.size() == 0) y.resize_like(x);
      for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i];
    }
  };
  Data batch;
  batch.inputs = {Numbers::of({1, 2, 3, 4}), Numbers::of({1, 2})};
  batch.targets = batch.inputs;
  auto one = sg::Pipeline{SizesOnce{}}.on_one_device(Mse{});
  CHECK(said([&] { one.step(batch); }) ==
        "the model's output has 4 elements and the target 2; give each microbatch a target of the "
        "output's size, or let each layer size its output anew for each microbatch");
}

TEST_CASE("train/bad loss: terms that cannot weigh gradients are named", "[train]") {
  using Limits = std::numeric_limits<float>;
  auto const last = [](float terms) {
    auto batch = data(4);
    for (auto& target : batch.targets) target[2] = 1;
    batch.targets[2][2] = terms;
    return batch;
  };
  sg::Pipeline const model{Scale<>{}, Scale<>{}};
  auto one = model.on_one_device(SaysTerms{});
  auto train = model.with(SaysTerms{}, sg::host::Threads{2});
  auto timed = model.with(SaysTerms{}, sg::sim::VirtualClock{});
  for (auto const& [terms, name] : {std::pair{Limits::quiet_NaN(), "nan"},
                                    std::pair{Limits::infinity(), "inf"}, std::pair{-1.0F, "-1"}}) {
    auto const sentence = [said_of = name](int microbatch) {
      return std::string("the loss counts ") + said_of + " terms in the target of microbatch " +
             std::to_string(microbatch) +
             "; let its terms() return a finite number that is at least 0";
    };
    auto const batch = last(terms);
    CHECK(said([&] { one.step(batch); }) == sentence(2));
    CHECK(said([&] { one.evaluate(batch); }) == sentence(2));
    CHECK(said([&] { sg::run(train.step(batch)); }) == sentence(2));
    CHECK(said([&] { sg::run(train.evaluate(batch)); }) == sentence(2));
    CHECK(said([&] { sg::run(timed.step(batch)); }) == sentence(2));
    sg::Profiler const profiler;
    auto const& input = batch.inputs[2];
    auto const& target = batch.targets[2];
    CHECK(said([&] { (void)profiler.measure(one, input, target); }) == sentence(0));
    CHECK(said([&] { (void)profiler.footprint(one, input, target); }) == sentence(0));
    CHECK(said([&] { (void)sg::footprint(train, SaysTerms{}, input, target); }) == sentence(0));
  }
  CHECK(train.steps() == 0);
  CHECK(train.parameters()[0].values<float>()[0] == 0.5F);
  // A microbatch, and a minibatch, may have none.
  auto const none = last(0);
  CHECK(sg::run(train.step(none)).loss == one.step(none).loss);
  CHECK(train.parameters()[0].values<float>()[0] == one.parameters()[0].values<float>()[0]);
  CHECK(train.steps() == 1);
}

TEST_CASE("train/Trainer: a timeline of a step that was not recorded is refused", "[train]") {
  auto const batch = data(2);
  auto train = sg::Pipeline{Scale<>{}, Scale<>{}}.with(Mse{});
  char const* const unrecorded =
      "the last step was not recorded; give with() Options{.record = true}, or call record(true) "
      "before a step";
  char const* const later =
      "the last step was not recorded; steps are recorded from now on, so take one first";
  auto const refused = [&](std::string const& words) {
    CHECK(said([&] { (void)train.timeline(); }) == words);
    CHECK(said([&] { (void)train.reductions(); }) == words);
    CHECK(said([&] { (void)train.peak_in_flight(); }) == words);
  };
  refused(unrecorded);
  sg::run(train.step(batch));
  refused(unrecorded);
  train.record(true);  // of the steps to come
  refused(later);
  sg::run(train.step(batch));
  train.record(false);
  CHECK(train.timeline().spans.size() == 8);  // still those of the last step
  CHECK(train.peak_in_flight() == std::vector{2, 1});
  sg::run(train.step(batch));
  refused(unrecorded);
  sg::Options options;
  options.record = true;
  auto fresh = sg::Pipeline{Scale<>{}, Scale<>{}}.with(Mse{}, options);
  CHECK(said([&] { (void)fresh.timeline(); }) == later);
  CHECK(said([&] { (void)fresh.peak_in_flight(); }) == later);
  sg::run(fresh.evaluate(batch));
  CHECK(fresh.timeline().spans.size() == 4);
}

}  // namespace stage_mistakes_test
