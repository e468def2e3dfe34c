// SPDX-License-Identifier: Apache-2.0
#include "model/projections.hpp"
#include "model/model.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include <stagger/engine/groups.hpp>
#include <stagger/partition/layer_split.hpp>
#include <stagger/plan/predict.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/stagger.hpp>
#include <stagger/train/describe.hpp>
#include <stagger/train/pipeline_footprint.hpp>

#include "catch.hpp"
#include "same_memory.hpp"

namespace projections_test {

namespace sg = stagger;

namespace {

constexpr gpt::ModelShape shape{.layers = 2, .width = 24, .heads = 3, .context = 8};

sg::Batch<gpt::Tokens, gpt::Tokens> text(std::uint64_t step) {
  sg::Batch<gpt::Tokens, gpt::Tokens> batch;
  for (std::uint64_t m = 0; m < 2; ++m) {
    auto& x = batch.inputs.emplace_back();
    auto& t = batch.targets.emplace_back();
    x.resize({6 + m, 8});
    t.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<std::uint8_t>(sg::random_bits(1, {step, m, i / 2}) % 64);
      t[i] = static_cast<std::uint8_t>(x[i] + 1);
    }
  }
  return batch;
}

struct Way {
  int members;
  int groups = 1;
  std::vector<int> first_layers{};
};

template <class T, class Device = sg::host::Threads>
auto in_groups(Way const& way, sg::Options options = {.clip_norm = 1.0}, Device device = {2}) {
  std::vector<int> const ranks(way.first_layers.size() + 1, way.members * way.groups);
  options.replicas = sg::Replicas::even(ranks.data(), ranks.size());
  return sg::Pipeline{gpt::make_model<T>(shape, 3)}.with(
      sg::partition::LayerSplit<>{way.members, {way.first_layers}, 0}, sg::optimizer::AdamW{},
      gpt::CrossEntropy<T>{}, device, options);
}
template <class T> auto on_one() {
  return sg::Pipeline{gpt::make_model<T>(shape, 3)}.on_one_device(
      sg::optimizer::AdamW{}, gpt::CrossEntropy<T>{}, sg::Options{.clip_norm = 1.0});
}

std::vector<Way> ways() {
  return {{.members = 2},
          {.members = 3},
          {.members = 2, .groups = 2, .first_layers = {2}},
          {.members = 3, .groups = 1, .first_layers = {1, 3, 5}}};
}

}  // namespace

TEST_CASE("gpt/Projections: shared by groups, losses stay within 1e-5 of one device over 20 steps",
          "[gpt]") {
  for (Way const& way : ways()) {
    auto train = in_groups<float>(way);
    auto one = on_one<float>();
    for (std::uint64_t step = 0; step < 20; ++step) {
      CAPTURE(way.members, way.groups, way.first_layers.size(), step);
      double const loss = sg::run(train.step(text(step))).loss;
      REQUIRE(loss == Approx(one.step(text(step)).loss).epsilon(1e-5));
    }
  }
}

TEST_CASE("gpt/Projections: shared by groups, every gradient is that of one device", "[gpt]") {
  for (Way const& way : ways()) {
    auto train = in_groups<double>(way);
    auto one = on_one<double>();
    for (std::uint64_t step = 0; step < 2; ++step) {
      sg::run(train.step(text(step)));
      one.step(text(step));
      auto const a = train.parameters();
      auto const b = one.parameters();
      REQUIRE(a.size() == b.size());
      for (std::size_t p = 0; p < a.size(); ++p) {
        CAPTURE(way.members, way.groups, step, a[p].name);
        REQUIRE(a[p].name == b[p].name);
        // The first moment is a sum of gradients.
        auto const* const m = reinterpret_cast<double const*>(a[p].state[0].data());
        auto const* const n = reinterpret_cast<double const*>(b[p].state[0].data());
        double apart = 0;
        for (std::size_t i = 0; i < b[p].state[0].size() / sizeof(double); ++i)
          apart = std::max(apart, std::abs(m[i] - n[i]));
        CHECK(apart < 1e-12);
      }
    }
  }
}

TEST_CASE("gpt/Projections: what members have and exchange is known before the first step",
          "[gpt]") {
  using sg::partition::GroupExchange;
  auto train = in_groups<float>({.members = 3});
  auto const chain = sg::describe(train);
  // Embedding, a norm and projections for each half block, head.
  CHECK(chain.numbers == std::vector{0, 1, 1, 2, 2, 3, 3, 4, 4, 5});
  CHECK(chain.plan.exchange(2) == GroupExchange::modulo);
  for (std::size_t l = 3; l < 10; ++l)
    CHECK(chain.plan.exchange(l) == (l % 2 == 0 ? GroupExchange::fan : GroupExchange::total));
  std::size_t whole = 0;
  for (auto const& parameter : train.parameter_shapes()) whole += parameter.bytes / sizeof(float);
  std::size_t told = 0;
  for (auto const& layer : chain.layers) told += layer.parameters;
  CHECK(told == whole);
  auto data = text(0);
  data.inputs.resize(1);  // of as many rows for each member
  data.targets.resize(1);
  sg::run(train.step(data));
  std::size_t const rows = data.inputs[0].size() / 3;  // of values: one for each token
  for (int member = 0; member < 3; ++member) {
    sg::partition::Elements sent;
    for (std::size_t l = 0; l <= chain.layers.size(); ++l) {
      auto const here = sg::partition::elements_sent(chain.plan, l, member, rows);
      sent.forward += here.forward;
      sent.backward += here.backward;
    }
    using enum sg::TrafficKind;
    CHECK(train.traffic().of(member, shared_activations).bytes == sent.forward * sizeof(float));
    CHECK(train.traffic().of(member, shared_gradients).bytes == sent.backward * sizeof(float));
  }
}

TEST_CASE("gpt/Projections: shared by groups, memory is predicted to the byte", "[gpt]") {
  for (Way const& way : ways())
    for (bool const recompute : {false, true}) {
      CAPTURE(way.members, way.groups, way.first_layers, recompute);
      auto train = in_groups<float>(way, {.clip_norm = 1.0, .recompute = recompute});
      auto const data = text(0);
      std::vector<std::size_t> rows;
      for (auto const& input : data.inputs) rows.push_back(input.extent(0));
      std::map<std::size_t, sg::Footprint> known;
      auto const predicted =
          sg::predicted_memory(train, rows, [&](std::size_t n) -> sg::Footprint const& {
            if (auto const found = known.find(n); found != known.end()) return found->second;
            gpt::Tokens tokens({n, 8});
            tokens.fill(5);
            return known[n] = sg::footprint(train, gpt::CrossEntropy<float>{}, tokens, tokens);
          });
      for (int step = 0; step < 2; ++step) sg::run(train.step(data));
      check_same_memory(predicted, train.memory());
    }
}

TEST_CASE("gpt/Projections: shared by groups, a step takes as long as predicted", "[gpt]") {
  // Of the model, and of the chain in which a half block is a norm, which takes no time, and what
  // members share.
  std::vector<double> const times{1, 6, 8, 6, 8, 3};  // of each layer's forward, of a sequence
  std::vector<double> const of_chain{1, 0, 6, 0, 8, 0, 6, 0, 8, 3};
  constexpr double alpha_s = 6;
  constexpr double bytes_per_s = 500;
  constexpr std::size_t sequences = 12;
  constexpr int microbatches = 4;
  sg::cluster::Profile profile{.name = "halves", .batch = 1};
  std::uint64_t const value = 8 * 24 * sizeof(float);
  for (std::size_t l = 0; l < of_chain.size(); ++l)
    profile.layers.push_back({.forward_s = of_chain[l],
                              .backward_s = 2 * of_chain[l],
                              .activation_bytes = of_chain[l] == 0 ? 2 * value : value});
  for (Way const& way : ways())
    for (bool const recompute : {false, true}) {
      CAPTURE(way.members, way.groups, way.first_layers, recompute);
      sg::plan::Plan draft{.microbatches = microbatches, .recompute = recompute};
      sg::cluster::Cluster cluster{
          .name = "", .devices = {}, .intra = {{alpha_s, bytes_per_s, {}}}, .inter = {}};
      // Layer l of the model begins at 2 l - 1, but for the first one.
      int const stages = static_cast<int>(way.first_layers.size()) + 1;
      for (int s = 0; s < stages; ++s) {
        auto const at = [&](int cut) {
          return 2 * way.first_layers[static_cast<unsigned>(cut)] - 1;
        };
        sg::plan::PlanStage stage{.first = s == 0 ? 0 : at(s - 1),
                                  .last = s + 1 == stages ? 9 : at(s) - 1,
                                  .warm_up = stages - s};
        for (int d = 0; d < way.members * way.groups; ++d) {
          stage.devices.push_back(static_cast<int>(cluster.devices.size()));
          cluster.devices.push_back({"a", 1'000'000'000, 1, 0});
        }
        draft.stages.push_back(stage);
      }
      auto described = in_groups<float>(way);
      auto const chain = sg::describe(described);
      auto const predicted = sg::plan::predict(
          {profile, cluster, {.batch = microbatches * static_cast<int>(sequences)}}, draft,
          chain.plan);

      sg::sim::VirtualClock clock{.exchange = {alpha_s, 1 / bytes_per_s},
                                  .layer_backward_s = times};
      for (auto const& stage : predicted.stages) {
        double whole = 0;
        for (int l = stage.first; l <= stage.last; ++l)
          whole += of_chain[static_cast<unsigned>(l)] * static_cast<double>(sequences);
        clock.costs.stages.push_back({.forward_s = whole,
                                      .backward_input_s = whole,
                                      .backward_weight_s = whole,
                                      .transfer_s = stage.transfer_s});
      }
      auto train = in_groups<float>(way, {.recompute = recompute, .record = true}, clock);
      sg::Batch<gpt::Tokens, gpt::Tokens> data;
      for (int m = 0; m < microbatches; ++m) {
        gpt::Tokens tokens({sequences, 8});
        tokens.fill(5);
        data.inputs.push_back(tokens);
        data.targets.push_back(tokens);
      }
      sg::run(train.step(data));
      double run_s = 0;
      for (auto const& span : train.timeline().spans) run_s = std::max(run_s, span.end_s);
      CHECK(predicted.simulated_s == Approx(run_s).epsilon(0.03));
    }
}

}  // namespace projections_test
