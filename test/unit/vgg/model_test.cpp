// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/collective/all_reduce.hpp>
#include <stagger/collective/grouping/layerwise.hpp>
#include <stagger/engine/groups.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/partition/layer_split.hpp>
#include <stagger/schedule/named.hpp>
#include <stagger/stagger.hpp>

#include "catch.hpp"
#include "count_allocations.hpp"
#include "layers/by_work.hpp"
#include "vgg/images.hpp"
#include "vgg/model/model.hpp"

namespace model_test {

using vgg::Minibatch;

namespace {

/// Numbers of weights, without biases, of all layers that have some.
std::vector<std::size_t> weights_of(vgg::Model<float> model) {
  std::vector<std::size_t> weights;
  auto const add = [&](auto& layers) {
    if constexpr (requires { layers.size(); })
      for (auto& layer : layers) weights.push_back(std::get<0>(layer.parameters()).size());
  };
  std::apply([&](auto&... layers) { (add(layers), ...); }, model.layers());
  return weights;
}

stagger::Pipeline<vgg::Model<float>> pipeline(Minibatch const& minibatch) {
  return stagger::Pipeline{vgg::make_model<float>({1, 0.5, minibatch}, 1)};
}

constexpr stagger::optimizer::Sgd sgd{.rate = 0.05};

/// All parameters after three steps.
template <class Trainer> std::vector<float> trained(Trainer train, Minibatch const& minibatch) {
  auto const data = vgg::make_textures(1, 40, 10);
  vgg::Batch batch;
  for (int step = 0; step < 3; ++step) {
    data.training.draw(1, step, minibatch, batch);
    if constexpr (requires { stagger::run(train.step(batch)); })
      stagger::run(train.step(batch));
    else
      train.step(batch);
  }
  std::vector<float> all;
  for (auto const& parameter : train.parameters()) {
    auto const values = parameter.template values<float>();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

std::vector<float> trained(Minibatch const& minibatch, char const* schedule, int stages,
                           int threads, stagger::Replicas const& replicas = {}, int group = 1) {
  stagger::partition::LayerSplit<layers::ByWork> split{
      .group = group, .over = {vgg::work_of({1, 0.5, minibatch}), stages}, .threshold = 0};
  return trained(pipeline(minibatch).with(
                     std::move(split), stagger::schedule::Named{.name = schedule}, sgd,
                     stagger::loss::CrossEntropy<float>{}, stagger::host::Threads{threads},
                     stagger::Options{.replicas = replicas}),
                 minibatch);
}

}  // namespace

TEST_CASE("vgg/model: of width 64 it has the weights of the published network", "[vgg]") {
  CHECK(weights_of(vgg::make_model<float>({.width = 64}, 1)) ==
        std::vector<std::size_t>{1728, 36864, 73728, 147456, 294912, 589824, 589824, 4194304,
                                 1048576, 10240});
}

TEST_CASE("vgg/model: its work is told for each of its layers", "[vgg]") {
  auto const work = vgg::work_of({.width = 64});
  REQUIRE(work.size() == vgg::layers_of_model);
  CHECK(work[0] == 3.0 * 1024 * 1728);
  CHECK(work[4] == 3.0 * 256 * 147456);
  CHECK(work[9] == 2.0 * 64 * 256);  // the third pooling
  CHECK(work[10] == 3.0 * 4194304);
  CHECK(work[12] == 3.0 * 10240);
}

TEST_CASE("vgg/model: a split backward pass has the bits of a whole one and of one device",
          "[vgg]") {
  Minibatch const minibatch{8, 4};
  auto const one = trained(
      pipeline(minibatch).on_one_device(sgd, stagger::loss::CrossEntropy<float>{}), minibatch);
  for (char const* const schedule : {"1f1b", "zb-h1"})
    for (int const threads : {1, 2}) {
      INFO(schedule << " on " << threads << " threads");
      auto const other = trained(minibatch, schedule, 4, threads);
      REQUIRE(other.size() == one.size());
      CHECK(std::memcmp(other.data(), one.data(), one.size() * sizeof(float)) == 0);
    }
}

TEST_CASE("vgg/model: the cut of the minibatch changes rounding alone, with dropout", "[vgg]") {
  auto const whole = trained({7, 1}, "1f1b", 1, 1);
  auto const check = [&](std::vector<float> const& other) {
    REQUIRE(other.size() == whole.size());
    for (std::size_t i = 0; i < whole.size(); ++i)
      REQUIRE(other[i] == Approx(whole[i]).margin(2e-5));
  };
  check(trained({7, 7}, "1f1b", 1, 1));
  check(trained({7, 3}, "zb-h1", 3, 2));
  int const replicas[] = {1, 2};
  check(trained({7, 3}, "1f1b", 2, 2, stagger::Replicas::even(replicas, 2)));
}

TEST_CASE("vgg/model: dense layers shared by groups change rounding alone, with dropout", "[vgg]") {
  auto const whole = trained({8, 2}, "1f1b", 1, 1);
  struct Shape {
    int ranks, group, stages;
    char const* schedule;
  };
  for (Shape const shape : {Shape{2, 2, 1, "gpipe"}, {4, 2, 2, "1f1b"}, {4, 4, 3, "zb-h1"}}) {
    CAPTURE(shape.ranks, shape.group, shape.stages);
    std::vector<int> const ranks(static_cast<std::size_t>(shape.stages), shape.ranks);
    auto const shared = trained({8, 2}, shape.schedule, shape.stages, 2,
                                stagger::Replicas::even(ranks.data(), ranks.size()), shape.group);
    REQUIRE(shared.size() == whole.size());
    for (std::size_t i = 0; i < whole.size(); ++i)
      REQUIRE(shared[i] == Approx(whole[i]).margin(2e-5));
  }
}

#ifdef COUNTS_ALLOCATIONS
TEST_CASE("vgg/model: groups that share dense layers allocate nothing after the first step",
          "[vgg]") {
  Minibatch const minibatch{8, 2};
  auto const data = vgg::make_textures(1, 40, 10);
  vgg::Batch batch;
  data.training.draw(1, 0, minibatch, batch);
  auto const steps = [&](auto& train, int count) {
    return allocations_of([&] {
      for (int step = 0; step < count; ++step) stagger::run(train.step(batch));
    });
  };
  for (int const threads : {1, 2})
    for (char const* const schedule : {"1f1b", "zb-h1"}) {
      using stagger::partition::Update;
      namespace collective = stagger::collective;
      CAPTURE(threads, schedule);
      auto const make = [&](Update update, int ranks, auto const& sums) {
        stagger::Options options{.replicas = {ranks}};
        if (update == Update::accumulate) options.clip_norm = 1;
        return pipeline(minibatch).with(
            stagger::partition::LayerSplit<>{.group = 2, .threshold = 0, .update = update},
            stagger::schedule::Named{.name = schedule}, sgd, stagger::loss::CrossEntropy<float>{},
            stagger::host::Threads{threads}, options, sums);
      };
      for (auto const& [update, ranks] :
           {std::pair{Update::accumulate, 4}, {Update::each_pass, 2}}) {
        auto layerwise =
            make(update, ranks, collective::AllReduce<collective::grouping::Layerwise>{});
        steps(layerwise, 1);
        CHECK(steps(layerwise, 9) == 0);
        auto train = make(update, ranks, collective::AllReduce<>{});
        steps(train, 1);
        CHECK(steps(train, 4) == 0);
        steps(train, 1);  // which lays out a program anew, since the grouping of sums is decided
        CHECK(steps(train, 4) == 0);
      }
    }
}
#endif

TEST_CASE("vgg/model: one microbatch in flight keeps 1 / K of what K of them do", "[vgg]") {
  for (int const members : {2, 4}) {
    Minibatch const minibatch{16, static_cast<std::size_t>(members)};
    auto const data = vgg::make_textures(1, 40, 10);
    vgg::Batch batch;
    data.training.draw(1, 0, minibatch, batch);
    auto const activations = [&](char const* schedule) {
      auto train = pipeline(minibatch).with(
          stagger::partition::LayerSplit{.group = members, .threshold = 0},
          stagger::schedule::Named{.name = schedule}, sgd, stagger::loss::CrossEntropy<float>{},
          stagger::Options{.replicas = stagger::Replicas::even(&members, 1)});
      for (int step = 0; step < 2; ++step) stagger::run(train.step(batch));
      return train.memory().activations;
    };
    // But for what members take from each other, which has one slot either way.
    auto const all = static_cast<double>(activations("gpipe"));
    CHECK(all / static_cast<double>(activations("1f1b")) == Approx(members).epsilon(0.02));
  }
}

TEST_CASE("vgg/model: of width 64, groups share the two large dense layers as published", "[vgg]") {
  auto const features = vgg::features_of({.width = 64});
  REQUIRE(features.size() == vgg::layers_of_model);
  auto const plan = stagger::partition::plan_split(features, {.group = 4});
  for (std::size_t l = 0; l < features.size(); ++l) {
    CAPTURE(l);
    bool const large = l == 10 || l == 11;
    CHECK(plan.layers[l].by == (large ? stagger::SplitBy::outputs : stagger::SplitBy::nothing));
  }
  std::size_t parameters = 0;
  auto model = vgg::make_model<float>({.width = 64}, 1);
  std::apply(
      [&](auto&... layers) {
        auto const add = [&](auto& some) {
          if constexpr (requires { some.size(); })
            for (auto& layer : some)
              std::apply([&](auto&... p) { parameters += (p.size() + ...); }, layer.parameters());
        };
        (add(layers), ...);
      },
      model.layers());
  std::size_t told = 0;
  for (auto const& layer : features) told += layer.parameters;
  CHECK(told == parameters);
}

}  // namespace model_test
