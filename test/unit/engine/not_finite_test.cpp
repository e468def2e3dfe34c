// SPDX-License-Identifier: Apache-2.0
#include <stagger/engine/options.hpp>

#include "catch.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/collective/all_reduce.hpp>
#include <stagger/collective/grouping/single.hpp>
#include <stagger/collective/parameter_server.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/schedule/dual_pipe.hpp>
#include <stagger/schedule/pipe_dream.hpp>
#include <stagger/staleness/local_sgd.hpp>
#include <stagger/staleness/stale_synchronous.hpp>
#include <stagger/staleness/weight_stashing.hpp>

#include "not_finite_steps.hpp"

namespace not_finite_test {

// What a gradient that is not finite does to its step, and what happens to a parameter to which
// nothing was added.

using namespace not_finite_steps;
using sg::Tensor;
using small_model::bits;

namespace {

double const infinity = std::numeric_limits<double>::infinity();
double const nan = std::numeric_limits<double>::quiet_NaN();

/// What the layers of a test do in a backward; shared by all copies.
struct Script {
  std::function<double(sg::Context const&)> more{};  // what is added to the gradient of `scale`
  std::function<bool(sg::Context const&)> shifts{};  // whether anything is added to that of `shift`
};
using Plan = std::shared_ptr<Script>;
Plan plan() { return std::make_shared<Script>(); }

/// y = scale x + shift, row by row.
template <class T> struct Line {
  using Input = Tensor<T>;
  using Output = Tensor<T>;
  Plan script;
  sg::Parameter<T> scale{"scale", {1.5}};
  sg::Parameter<T> shift{"shift", {0.5}};
  explicit Line(Plan of) : script(std::move(of)) {}
  auto parameters() { return std::tie(scale, shift); }
  void forward(sg::Context& c, Input const& x, Output& y, sg::NothingSaved&) {
    y.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = c[scale][0] * x[i] + c[shift][0];
  }
  void backward(sg::Context& c, Input const& x, Output const& dy, Input& dx, sg::NothingSaved&) {
    dx.resize_like(x);
    bool const shifts = !script->shifts || script->shifts(c);
    for (std::size_t i = 0; i < x.size(); ++i) {
      dx[i] = c[scale][0] * dy[i];
      c.gradient(scale)[0] += x[i] * dy[i];
      if (shifts) c.gradient(shift)[0] += dy[i];
    }
    if (script->more) c.gradient(scale)[0] += static_cast<T>(script->more(c));
  }
};

template <class T = float> auto lines(Plan const& script) {
  return sg::Pipeline{
      sg::Sequential{Line<T>{script}, Line<T>{script}, Line<T>{script}, Line<T>{script}}};
}

template <class T = float> sg::Batch<Tensor<T>, Tensor<T>> rows(int step, int microbatches = 4) {
  sg::Batch<Tensor<T>, Tensor<T>> made;
  for (int m = 0; m < microbatches; ++m) {
    auto const seed = static_cast<std::uint64_t>(100 * step + 2 * m);
    made.inputs.push_back(numbers<T>(6, 1, seed));
    made.targets.push_back(numbers<T>(6, 1, seed + 1));
  }
  return made;
}

sg::optimizer::AdamW const adam{.rate = 0.01};

}  // namespace

TEST_CASE("engine/NonFinite: a step that fails or is skipped leaves no trace on any device",
          "[engine]") {
  using namespace sg::schedule;
  using sg::collective::AllReduce;
  namespace grouping = sg::collective::grouping;
  Case plain{.pattern = 0, .members = 1, .microbatches = 4};
  plain.cuts = {2, 4, 5};
  for (std::optional<double> const clip : {std::optional<double>{}, std::optional{0.05}}) {
    plain.options.clip_norm = clip;
    leave_no_trace<float>(sg::host::Threads{1}, plain);
    leave_no_trace<float>(sg::host::Threads{3}, plain);
    leave_no_trace<float>(sg::sim::VirtualClock{}, plain);
    Case others = plain;
    others.schedule = made(ZeroBubbleH1{});
    others.options.recompute = true;
    leave_no_trace<float>(sg::host::Threads{2}, others);
    others.schedule = made(DualPipe{});  // two owners of each stage
    others.microbatches = 8;
    leave_no_trace<float>(sg::host::Threads{2}, others);
    Case replicas = plain;
    replicas.cuts = {3};
    replicas.counts = {2, 3};
    leave_no_trace<float>(sg::host::Threads{3}, replicas);
    leave_no_trace<float>(sg::host::Threads{2}, replicas, AllReduce<grouping::Layerwise>{});
    leave_no_trace<float>(sg::sim::VirtualClock{}, replicas, AllReduce<grouping::Single>{});
    Case groups{.pattern = 15, .members = 2, .groups = 2, .cuts = {4}};
    groups.options.clip_norm = clip;
    leave_no_trace<float>(sg::host::Threads{2}, groups);
    groups.pairs = true;
    groups.groups = 1;
    leave_no_trace<float>(sg::sim::VirtualClock{}, groups);
  }
}

TEST_CASE("engine/NonFinite: one device does as a pipeline does", "[engine]") {
  for (std::optional<double> const clip : {std::optional<double>{}, std::optional{0.05}})
    for (auto const rule : {NonFinite::fail, NonFinite::skip, NonFinite::ignore}) {
      auto const script = plan();
      sg::Options options{.clip_norm = clip};
      options.non_finite = rule;
      auto one = lines(script).on_one_device(sg::loss::MeanSquaredError<>{}, adam, options);
      auto train = lines(script).with(sg::partition::Even{.stages = 2}, sg::host::Threads{2},
                                      sg::loss::MeanSquaredError<>{}, adam, options);
      for (int step = 0; step < 5; ++step) {
        bool const bad = step == 1 || step == 3;
        script->more = [bad](sg::Context const& c) {
          return bad && c.layer() == 1 && c.microbatch() == 2 ? infinity : 0;
        };
        auto const both = [&](auto take) {
          if (!bad || rule != NonFinite::fail) return take();
          CHECK_THAT(failure(take),
                     Catch::Matchers::StartsWith("a gradient of layer 1") &&
                         Catch::Matchers::EndsWith(
                             " is not finite, so nothing was updated after step " +
                             std::to_string(step / 2 + 1) +
                             ": lower the optimizer's rate, look for what divides by 0, or choose "
                             "another Options::non_finite"));
        };
        sg::Metrics a;
        sg::Metrics b;
        both([&] { a = one.step(rows(step)); });
        both([&] { b = sg::run(train.step(rows(step))); });
        CHECK(std::isfinite(a.loss) == (step < 2 || rule != NonFinite::ignore));
        CHECK(a.skipped == (bad && rule == NonFinite::skip ? 1 : 0));
        CHECK(b.skipped == a.skipped);
        CHECK(one.steps() == train.steps());
        REQUIRE(bits(one) == bits(train));
      }
      CHECK(one.steps() == (rule == NonFinite::ignore ? 5 : 3));
    }
}

TEST_CASE("engine/NonFinite: the error names the last layer that has such a gradient, and its rank",
          "[engine]") {
  auto const script = plan();
  auto const train_on = [&](auto device, sg::Options const& options) {
    return lines(script).with(sg::partition::Even{.stages = 4}, device,
                              sg::loss::MeanSquaredError<>{}, adam, options);
  };
  for (std::optional<double> const clip : {std::optional<double>{}, std::optional{0.05}}) {
    auto train = train_on(sg::host::Threads{4}, {.clip_norm = clip});
    for (int last = 0; last < 4; ++last) {
      script->more = [last](sg::Context const& c) { return c.layer() <= last ? nan : 0; };
      std::string const name = std::to_string(last);
      CHECK_THAT(failure([&] { sg::run(train.step(rows(0))); }),
                 Catch::Matchers::StartsWith("a gradient of layer " + name + " on rank " + name +
                                             " is not finite, so nothing was updated"));
    }
  }
  auto train = train_on(sg::host::Threads{2}, {});
  script->more = {};
  auto bad = rows(0);
  bad.targets[2][3] = static_cast<float>(nan);
  CHECK_THAT(
      failure([&] { sg::run(train.step(bad)); }),
      Catch::Matchers::StartsWith("a gradient of layer 3 on rank 3 is not finite, nor is the "
                                  "loss of microbatch 2, so nothing"));
  auto one = lines(script).on_one_device(sg::loss::MeanSquaredError<>{}, adam);
  CHECK_THAT(
      failure([&] { one.step(bad); }),
      Catch::Matchers::StartsWith(
          "a gradient of layer 3 is not finite, nor is the loss of microbatch 2, so nothing"));
  CHECK(std::isnan(sg::run(train.evaluate(bad)).loss));  // which updates nothing
}

TEST_CASE("engine/NonFinite: a norm that overflows is none to clip by", "[engine]") {
  auto const script = plan();
  script->more = [](sg::Context const&) { return 1e200; };
  auto const data = rows<double>(0);
  auto const refused = [&](auto& train, auto take) {
    auto const before = bits(train);
    CHECK_THAT(failure(take),
               Catch::Matchers::StartsWith(
                   "the norm of all gradients is not finite, although each of them is, so "));
    CHECK(bits(train) == before);
  };
  for (double const each : {1e200, 9e153}) {  // the squares, or only their sum
    script->more = [each](sg::Context const& c) { return c.microbatch() == 0 ? each : 0; };
    sg::Options const options{.clip_norm = 1};
    auto one =
        lines<double>(script).on_one_device(sg::loss::MeanSquaredError<double>{}, adam, options);
    auto train = lines<double>(script).with(sg::partition::Even{.stages = 2}, sg::host::Threads{2},
                                            sg::loss::MeanSquaredError<double>{}, adam, options);
    refused(one, [&] { one.step(data); });
    refused(train, [&] { sg::run(train.step(data)); });
  }
}

TEST_CASE("engine/NonFinite: without a flush the stream fails as a whole, and cannot be skipped",
          "[engine]") {
  auto const script = plan();
  auto const made_with = [&](auto device, NonFinite rule) {
    sg::Options options;
    options.non_finite = rule;
    return lines(script).with(sg::partition::Even{.stages = 4}, sg::schedule::PipeDream{},
                              sg::staleness::WeightStashing{}, device,
                              sg::loss::MeanSquaredError<>{}, adam, options);
  };
  auto const each = [&](auto device) {
    auto train = made_with(device, NonFinite::fail);
    auto calm = made_with(device, NonFinite::ignore);
    for (int step = 0; step < 3; ++step) {
      script->more = {};
      sg::run(train.stream(rows(step, 8)));
      sg::run(calm.stream(rows(step, 8)));
      script->more = [step](sg::Context const& c) {
        return c.layer() == step && c.microbatch() == 5 ? -infinity : 0;
      };
      CHECK_THAT(
          failure([&] { sg::run(train.stream(rows(7, 8))); }),
          Catch::Matchers::StartsWith("a gradient of layer " + std::to_string(step) + " on rank " +
                                      std::to_string(step) +
                                      " is not finite in minibatch 5, so nothing was updated"));
      CHECK(train.steps() == 8 * (step + 1));
      REQUIRE(bits(train) == bits(calm));
    }
  };
  each(sg::host::Threads{2});
  each(sg::sim::VirtualClock{});
  CHECK_THAT(failure([&] { made_with(sg::host::Threads{2}, NonFinite::skip); },
                     sg::Errc::bad_configuration),
             Catch::Matchers::StartsWith("NonFinite::skip cannot leave out the update of a step "
                                         "with a staleness model without a flush, where"));
}

TEST_CASE("engine/NonFinite: layers that are updated in each pass are as before a step that fails",
          "[engine]") {
  Case of{.pattern = 15, .microbatches = 4, .update = sg::partition::Update::each_pass};
  auto train = pipeline<float>(sg::host::Threads{2}, of);
  auto calm = pipeline<float>(sg::host::Threads{1}, of);
  for (int step = 0; step < 3; ++step) {
    sg::run(train.step(batch<float>(step, 4, 17)));
    sg::run(calm.step(batch<float>(step, 4, 17)));
    CHECK_THAT(failure([&] { sg::run(train.step(spoilt<float>(step, 4, 17, 2))); }),
               Catch::Matchers::Contains(" in pass "));
    REQUIRE(bits(train) == bits(calm));
  }
}

TEST_CASE("engine/NonFinite: a step that is skipped takes back what was updated in each pass",
          "[engine]") {
  for (int const groups : {1, 2})
    for (int const spoilt_at : {0, 2, 3}) {
      CAPTURE(groups, spoilt_at);
      Case of{.pattern = 15,
              .groups = groups,
              .microbatches = 4,
              .update = sg::partition::Update::each_pass};
      of.cuts = {3};
      of.schedule = made(sg::schedule::OneFOneB{});
      of.options.non_finite = NonFinite::skip;
      auto train = pipeline<float>(sg::host::Threads{2}, of);
      auto clock = pipeline<float>(sg::sim::VirtualClock{.jitter = 0.4, .seed = 2}, of);
      auto calm = pipeline<float>(sg::host::Threads{1}, of);
      for (int step = 0; step < 3; ++step) {
        sg::run(train.step(batch<float>(step, 4, 17)));
        sg::run(clock.step(batch<float>(step, 4, 17)));
        sg::run(calm.step(batch<float>(step, 4, 17)));
        REQUIRE(bits(train) == bits(calm));
        REQUIRE(bits(clock) == bits(calm));
        auto const bad = spoilt<float>(step, 4, 17, spoilt_at);
        auto const metrics = sg::run(train.step(bad));
        CHECK(metrics.skipped == 1);
        CHECK(sg::run(clock.step(bad)).skipped == 1);
        CHECK(train.steps() == step + 1);
        REQUIRE(bits(train) == bits(calm));
        REQUIRE(bits(clock) == bits(calm));
      }
    }
}

namespace {

/// A worker whose gradients are not finite in one of four stages, beside one that never sees them.
template <class Model> void worker(Model const& staleness) {
  auto const script = plan();
  auto const made_for = [&](sg::collective::ParameterServer const& server,
                            sg::Options options = {}) {
    return lines(script).with(sg::partition::Even{.stages = 4}, sg::host::Threads{2}, staleness,
                              server.worker(0), sg::loss::MeanSquaredError<>{}, adam, options);
  };
  sg::collective::ParameterServer const server({.workers = 1});
  sg::collective::ParameterServer const other({.workers = 1});
  auto train = made_for(server);
  auto calm = made_for(other);
  for (int step = 0; step < 4; ++step) {
    script->more = {};
    sg::run(train.step(rows(step)));
    sg::run(calm.step(rows(step)));
    REQUIRE(bits(train) == bits(calm));
    script->more = [step](sg::Context const& c) {
      return c.layer() == step && c.microbatch() == 1 ? nan : 0;
    };
    CHECK_THAT(failure([&] { sg::run(train.step(rows(9))); }),
               Catch::Matchers::StartsWith("a gradient of layer " + std::to_string(step) +
                                           " on rank " + std::to_string(step) + " is not finite"));
    REQUIRE(bits(train) == bits(calm));
  }
  sg::Options skips;
  skips.non_finite = NonFinite::skip;
  sg::collective::ParameterServer const third({.workers = 1});
  CHECK_THAT(failure([&] { made_for(third, skips); }, sg::Errc::bad_configuration),
             Catch::Matchers::Contains("with a parameter server"));
}

}  // namespace

TEST_CASE("engine/NonFinite: a worker's step fails before it has pushed anything", "[engine]") {
  using sg::staleness::Adds;
  worker(sg::staleness::StaleSynchronous{
      .bound = 0, .pushes = sg::staleness::Pushes::changes, .adds = Adds::on_arrival});
  worker(sg::staleness::LocalSgd{.period = 1});
}

TEST_CASE("engine/added: a parameter to which nothing was added keeps its value and its state",
          "[engine]") {
  using namespace sg::schedule;
  // In some steps of all microbatches, in some of one, which one of two owners of a stage has, or
  // one of two replicas.
  auto const moves = [](int layer, std::int64_t step) { return (layer + step) % 3 != 1; };
  auto const script = plan();
  script->shifts = [moves](sg::Context const& c) {
    auto const step = c.step();
    if (!moves(c.layer(), step)) return false;
    return c.layer() == 0 || (c.microbatch() == step % 4 && c.first_row() == 0);
  };
  auto const each = [&](auto optimizer) {
    auto one = lines(script).on_one_device(sg::loss::MeanSquaredError<>{}, optimizer);
    std::vector<std::vector<std::byte>> course;
    for (int step = 0; step < 6; ++step) {
      one.step(rows(step));
      course.push_back(bits(one));
    }
    auto const check_on = [&](bool same_bits, auto device, Made const& schedule, int stages,
                              sg::Options const& options, auto const&... more) {
      auto train = lines(script).with(sg::partition::Even{.stages = stages}, device, schedule,
                                      sg::loss::MeanSquaredError<>{}, optimizer, options, more...);
      auto const shift = [&](int layer) {
        auto const state = train.parameters()[static_cast<std::size_t>(2 * layer + 1)];
        std::vector<std::byte> all(state.value.begin(), state.value.end());
        for (auto const& block : state.state) all.insert(all.end(), block.begin(), block.end());
        return all;
      };
      for (int step = 0; step < 6; ++step) {
        std::vector<std::vector<std::byte>> before;
        for (int l = 0; l < 4; ++l) before.push_back(shift(l));
        sg::run(train.step(rows(step)));
        for (int l = 0; l < 4; ++l)
          CHECK((shift(l) != before[static_cast<std::size_t>(l)]) == moves(l, step));
        if (same_bits) REQUIRE(bits(train) == course[static_cast<std::size_t>(step)]);
      }
    };
    check_on(true, sg::host::Threads{1}, made(OneFOneB{}), 2, {});
    check_on(true, sg::host::Threads{3}, made(ZeroBubbleH1{}), 4, {.clip_norm = 1e9});
    check_on(true, sg::sim::VirtualClock{}, made(GPipe{}), 4, {});
    check_on(false, sg::host::Threads{2}, made(Chimera{}), 2, {});
    check_on(false, sg::host::Threads{2}, made(OneFOneB{}), 2, {.replicas = {2, 3}});
    check_on(false, sg::sim::VirtualClock{}, made(Chimera{}), 2, {.replicas = {1, 1}});
  };
  each(adam);
  each(sg::optimizer::Sgd{.rate = 0.01, .momentum = 0.9, .weight_decay = 0.1});
}

TEST_CASE("engine/added: without a flush, and in what a worker pushes, it stays as it is, too",
          "[engine]") {
  auto const script = plan();
  script->shifts = [](sg::Context const& c) { return c.layer() != 1; };
  auto const stays = [&](auto& train, auto take) {
    auto const shift = [&](std::size_t layer) {
      auto const state = train.parameters()[2 * layer + 1];
      return state.template values<float>()[0];
    };
    for (int step = 0; step < 3; ++step) {
      float const before = shift(2);
      take(rows(step));
      CHECK(shift(1) == 0.5F);
      CHECK(shift(2) != before);
    }
  };
  auto stream = lines(script).with(sg::partition::Even{.stages = 4}, sg::schedule::PipeDream{},
                                   sg::staleness::WeightStashing{}, sg::host::Threads{2},
                                   sg::loss::MeanSquaredError<>{}, adam);
  stays(stream, [&](auto const& data) { sg::run(stream.stream(data)); });
  script->shifts = [](sg::Context const& c) { return c.layer() != 1 || c.microbatch() == 0; };
  auto const after = [&](std::size_t minibatches) {
    auto train = lines(script).with(sg::partition::Even{.stages = 4}, sg::schedule::PipeDream{},
                                    sg::staleness::WeightStashing{}, sg::host::Threads{2},
                                    sg::loss::MeanSquaredError<>{}, adam);
    auto data = rows(0);
    data.inputs.resize(minibatches);
    data.targets.resize(minibatches);
    sg::run(train.stream(data));
    return train.parameters()[3].template values<float>()[0];
  };
  CHECK(after(4) == after(1));
  CHECK(after(1) != 0.5F);
  script->shifts = [](sg::Context const& c) { return c.layer() != 1; };
  sg::collective::ParameterServer const changes({.workers = 1});
  auto pushes = lines(script).with(
      sg::partition::Even{.stages = 2}, sg::host::Threads{2},
      sg::staleness::StaleSynchronous{.bound = 1,
                                      .pushes = sg::staleness::Pushes::changes,
                                      .adds = sg::staleness::Adds::in_worker_order},
      changes.worker(0), sg::loss::MeanSquaredError<>{}, adam);
  stays(pushes, [&](auto const& data) { sg::run(pushes.step(data)); });
  sg::collective::ParameterServer const mean({.workers = 1});
  auto local = lines(script).with(sg::partition::Even{.stages = 2}, sg::host::Threads{2},
                                  sg::staleness::LocalSgd{.period = 2}, mean.worker(0),
                                  sg::loss::MeanSquaredError<>{}, adam);
  stays(local, [&](auto const& data) { sg::run(local.step(data)); });
}

}  // namespace not_finite_test
