// SPDX-License-Identifier: Apache-2.0
// Layers that keep their own weights: they train as layers do whose weights the engine has.
#include "catch.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <stagger/core/tensor.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/partition/even.hpp>
#include <stagger/schedule/named.hpp>
#include <stagger/staleness/weight_stashing.hpp>
#include <stagger/train/checkpoint.hpp>
#include <stagger/train/pipeline.hpp>
#include <stagger/train/profiler.hpp>

namespace own_weights_test {

namespace sg = stagger;
using Catch::Contains;

namespace {

constexpr double rate = 0.125;

/// y = w x + b, element by element.
struct Known {
  using Input = sg::Tensor<double>;
  using Output = sg::Tensor<double>;
  sg::Parameter<double> w{"w", {0.75}};
  sg::Parameter<double> b{"b", {0.25}};

  void forward(sg::Context& context, Input const& x, Output& y, sg::NothingSaved&) {
    y.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = context[w][0] * x[i] + context[b][0];
  }
  void backward(sg::Context& context, Input const& x, Output const& dy, Input& dx,
                sg::NothingSaved&) {
    dx.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      context.gradient(w)[0] += dy[i] * x[i];
      context.gradient(b)[0] += dy[i];
      dx[i] = context[w][0] * dy[i];
    }
  }
  auto parameters() { return std::tie(w, b); }
};

/// What a layer that keeps its own weights shares with its copies.
struct Weights {
  double w = 0.75, b = 0.25;
  double dw = 0, db = 0;
  int backwards = 0;  // in this step
  int updates = 0;
  std::vector<int> backwards_at_update;
  int layer = -1;
  bool throws = false;

  void forward(sg::Tensor<double> const& x, sg::Tensor<double>& y) const {
    y.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = w * x[i] + b;
  }
  void input(sg::Tensor<double> const& dy, sg::Tensor<double>& dx) const {
    dx.resize_like(dy);
    for (std::size_t i = 0; i < dy.size(); ++i) dx[i] = w * dy[i];
  }
  void weight(sg::Tensor<double> const& x, sg::Tensor<double> const& dy) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      dw += dy[i] * x[i];
      db += dy[i];
    }
    ++backwards;
  }
  void update(sg::Context const& context) {
    if (throws) throw std::runtime_error("no update");
    layer = context.layer();
    w -= rate * dw;
    b -= rate * db;
    dw = db = 0;
    ++updates;
    backwards_at_update.push_back(backwards);
    backwards = 0;
  }
};

/// Likewise with weights of its own.
struct Own {
  using Input = sg::Tensor<double>;
  using Output = sg::Tensor<double>;
  std::shared_ptr<Weights> own = std::make_shared<Weights>();

  void forward(sg::Context&, Input const& x, Output& y, sg::NothingSaved&) { own->forward(x, y); }
  void backward(sg::Context&, Input const& x, Output const& dy, Input& dx, sg::NothingSaved&) {
    own->weight(x, dy);
    own->input(dy, dx);
  }
  void gradients_complete(sg::Context& context) { own->update(context); }
};

/// With a backward that splits.
struct OwnInHalves {
  using Input = sg::Tensor<double>;
  using Output = sg::Tensor<double>;
  std::shared_ptr<Weights> own = std::make_shared<Weights>();

  void forward(sg::Context&, Input const& x, Output& y, sg::NothingSaved&) { own->forward(x, y); }
  void backward_input(sg::Context&, Input const&, Output const& dy, Input& dx, sg::NothingSaved&) {
    own->input(dy, dx);
  }
  void backward_weight(sg::Context&, Input const& x, Output const& dy, sg::NothingSaved&) {
    own->weight(x, dy);
  }
  void gradients_complete(sg::Context& context) { own->update(context); }
};

using Batch = sg::Batch<sg::Tensor<double>, sg::Tensor<double>>;
constexpr int microbatches = 4;
Batch batch(int step) {
  Batch made;
  for (int m = 0; m < microbatches; ++m)
    for (auto* const of : {&made.inputs, &made.targets}) {
      sg::Tensor<double> value;
      value.resize({3, 2});
      for (std::size_t i = 0; i < value.size(); ++i)
        value[i] = static_cast<double>((step * 31 + m * 7 + static_cast<int>(i) * 5 +
                                        (of == &made.targets ? 11 : 0)) %
                                       17) /
                   16;
      of->push_back(value);
    }
  return made;
}
sg::loss::MeanSquaredError<double> const loss;
sg::optimizer::Sgd const sgd{.rate = rate};
constexpr int layers = 4;
constexpr int steps = 3;

template <class L> auto pipeline(std::vector<L> model) {
  return sg::Pipeline{sg::Sequential{std::move(model)}};
}
template <class L> std::vector<std::shared_ptr<Weights>> shown(std::vector<L> const& model) {
  std::vector<std::shared_ptr<Weights>> all;
  for (auto const& layer : model) all.push_back(layer.own);
  return all;
}

/// Losses and weights of layers that the engine knows, in a loop without a pipeline.
std::vector<double> expected() {
  std::vector<double> all;
  auto one = pipeline(std::vector<Known>(layers)).on_one_device(loss, sgd);
  for (int step = 0; step < steps; ++step) all.push_back(one.step(batch(step)).loss);
  for (auto const& state : one.parameters())
    all.push_back(*reinterpret_cast<double const*>(state.value.data()));
  return all;
}

template <class L> std::vector<L> model() {
  std::vector<L> made(layers);
  for (auto& layer : made) layer.own = std::make_shared<Weights>();
  return made;
}

template <class L>
void check_schedule(sg::schedule::Named const& schedule, int stages, int threads,
                    sg::Options const& options) {
  CAPTURE(schedule.name, stages, threads, options.recompute);
  auto made = model<L>();
  auto const own = shown(made);
  auto train = pipeline(std::move(made))
                   .with(sg::partition::Even{.stages = stages}, schedule,
                         sg::host::Threads{threads}, loss, options);
  std::vector<double> all;
  for (int step = 0; step < steps; ++step) {
    auto const now = batch(step);
    static_cast<void>(sg::run(train.evaluate(now)));
    all.push_back(sg::run(train.step(now)).loss);
    static_cast<void>(sg::run(train.evaluate(now)));
  }
  for (auto const& weights : own) {
    all.push_back(weights->w);
    all.push_back(weights->b);
  }
  CHECK(all == expected());
  for (std::size_t l = 0; l < own.size(); ++l) {
    CHECK(own[l]->backwards_at_update == std::vector<int>(steps, microbatches));
    CHECK(own[l]->layer == static_cast<int>(l));
  }
}

}  // namespace

TEST_CASE("engine/Own weights: train as those do that the engine has, in every schedule",
          "[engine]") {
  for (char const* const name : {"gpipe", "1f1b", "zb-h1", "zb-h2"})
    for (int const stages : {1, 2, 4})
      for (bool const recompute : {false, true}) {
        sg::Options const options{.recompute = recompute};
        check_schedule<Own>({.name = name}, stages, stages > 2 ? 2 : 1, options);
        check_schedule<OwnInHalves>({.name = name}, stages, stages > 2 ? 2 : 1, options);
      }
  for (char const* const name : {"interleaved", "zb-v", "v-half", "hanayo"}) {
    check_schedule<Own>({.name = name}, 4, 2, {});
    check_schedule<OwnInHalves>({.name = name}, 4, 2, {});
  }
}

TEST_CASE("engine/Own weights: a loop on the calling thread updates them, too", "[engine]") {
  auto made = model<OwnInHalves>();
  auto const own = shown(made);
  auto one = pipeline(std::move(made)).on_one_device(loss, sgd);
  std::vector<double> all;
  for (int step = 0; step < steps; ++step) all.push_back(one.step(batch(step)).loss);
  for (auto const& weights : own) {
    all.push_back(weights->w);
    all.push_back(weights->b);
  }
  CHECK(all == expected());
}

TEST_CASE("engine/Own weights: what an update throws fails the step", "[engine]") {
  auto made = model<Own>();
  auto const own = shown(made);
  own[2]->throws = true;
  auto train =
      pipeline(std::move(made)).with(sg::partition::Even{.stages = 2}, sg::host::Threads{2}, loss);
  auto const now = batch(0);
  CHECK_THROWS_WITH(sg::run(train.step(now)), "no update");
  CHECK(train.failed_at() == "rank 1 in 1B3, layer 2");
  CHECK(own[3]->updates == 1);  // its own, before the step failed
  CHECK(own[1]->updates == 0);
  CHECK(train.steps() == 0);
}

TEST_CASE("engine/Own weights: what the engine would need to know them for is refused",
          "[engine]") {
  auto const with = [](auto const&... policies) {
    return pipeline(model<Own>()).with(loss, policies...);
  };
  using Replicas = sg::Options;
  CHECK_THROWS_WITH(
      with(sg::partition::Even{.stages = 2}, sg::host::Threads{2}, Replicas{.replicas = {1, 2}}),
      Contains("a layer keeps its own weights") && Contains("run one pipeline for each replica"));
  CHECK_THROWS_WITH(with(sg::partition::Even{.stages = 2}, sg::host::Threads{2},
                         sg::schedule::Named{.name = "fifo", .limits = {.in_flight = 2}},
                         sg::staleness::WeightStashing{}),
                    Contains("keep versions of them"));
  CHECK_THROWS_WITH(with(sg::Options{.clip_norm = 1.0}), Contains("clip them in"));
  CHECK_THROWS_WITH(with(sg::Options{.non_finite = sg::NonFinite::skip}),
                    Contains("NonFinite::skip"));
  auto bidirectional = with(sg::partition::Even{.stages = 2}, sg::host::Threads{2},
                            sg::schedule::Named{.name = "chimera"});
  auto const now = batch(0);
  CHECK_THROWS_WITH(sg::run(bidirectional.step(now)),
                    Contains("use a schedule with one owner for each stage"));
  auto stored = with(sg::host::Threads{1});
  auto const folder = std::filesystem::temp_directory_path() / "stagger_own_weights";
  sg::Checkpoints const checkpoints(folder.string());
  sg::CheckpointState state;
  state.model = "m";
  CHECK_THROWS_WITH(checkpoints.write(state, stored), Contains("put them into a checkpoint"));
  CHECK_THROWS_WITH(checkpoints.restore("m", stored), Contains("put them into a checkpoint"));
  std::filesystem::remove_all(folder);
}

TEST_CASE("engine/Own weights: a loop on the calling thread refuses what a pipeline refuses",
          "[engine]") {
  auto const alone = [](sg::Options const& options) {
    return pipeline(model<Own>()).on_one_device(loss, sgd, options);
  };
  CHECK_THROWS_WITH(alone({.clip_norm = 1.0}), Contains("clip them in"));
  CHECK_THROWS_WITH(alone({.non_finite = sg::NonFinite::skip}), Contains("NonFinite::skip"));
  auto one = alone({});
  auto const now = batch(0);
  CHECK_THROWS_WITH(sg::Profiler{}.measure(one, now.inputs[0], now.targets[0]),
                    Contains("measure it without leaving gradients"));
  CHECK_THROWS_WITH(sg::Profiler{}.footprint(one, now.inputs[0], now.targets[0]),
                    Contains("measure it without leaving gradients"));
}

namespace {

struct Misspelt : OwnInHalves {
  void gradients_complete() {}
};
class Hidden : public OwnInHalves {
  void gradients_complete(sg::Context&) {}
};
struct Both : OwnInHalves {
  sg::Parameter<double> w{"w", {1}};
  void gradients_complete(sg::Context&) {}
  void gradients_complete(sg::Context&) const {}
  auto parameters() { return std::tie(w); }
};
static_assert(sg::Stage<Own> && sg::Stage<OwnInHalves> && sg::Stage<Known>);
static_assert(!sg::Stage<Misspelt> && !sg::Stage<Hidden> && !sg::Stage<Both>);

}  // namespace

}  // namespace own_weights_test
