// SPDX-License-Identifier: Apache-2.0
#include "model/projections.hpp"
#include "model/model.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <stagger/engine/groups.hpp>
#include <stagger/partition/layer_split.hpp>
#include <stagger/stagger.hpp>
#include <stagger/train/describe.hpp>

#include "catch.hpp"

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

template <class T> auto in_groups(Way const& way) {
  std::vector<int> const ranks(way.first_layers.size() + 1, way.members * way.groups);
  return sg::Pipeline{gpt::make_model<T>(shape, 3)}.with(
      sg::partition::LayerSplit<>{way.members, {way.first_layers}, 0}, sg::optimizer::AdamW{},
      gpt::CrossEntropy<T>{}, sg::host::Threads{2},
      sg::Options{.clip_norm = 1.0, .replicas = sg::Replicas::even(ranks.data(), ranks.size())});
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
  using sg::partition::Cut;
  auto train = in_groups<float>({.members = 3});
  auto const chain = sg::describe(train);
  // Embedding, a norm and projections for each half block, head.
  CHECK(chain.numbers == std::vector{0, 1, 1, 2, 2, 3, 3, 4, 4, 5});
  CHECK(chain.plan.cut(2) == Cut::modulo);
  for (std::size_t l = 3; l < 10; ++l)
    CHECK(chain.plan.cut(l) == (l % 2 == 0 ? Cut::fan : Cut::total));
  std::size_t whole = 0;
  for (auto const& shape : train.parameter_shapes()) whole += shape.bytes / sizeof(float);
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
