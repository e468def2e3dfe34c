// SPDX-License-Identifier: Apache-2.0
#include <stagger/model/context.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <new>
#include <random>
#include <set>
#include <span>
#include <vector>

namespace context_test {

using stagger::Arena;
using stagger::Context;
using stagger::Parameter;
using stagger::ParameterView;

TEST_CASE("model/Context: seeds depend on run, step, microbatch and layer, and on nothing else",
          "[model]") {
  std::set<std::uint64_t> seeds;
  for (std::uint64_t run = 0; run < 3; ++run)
    for (int step = 0; step < 4; ++step)
      for (int microbatch = 0; microbatch < 5; ++microbatch)
        for (int layer = 0; layer < 6; ++layer) {
          Context a, b;
          a.begin_step(step, run, true);
          a.begin_action(nullptr, layer, microbatch);
          b.begin_step(9, 9, false);
          b.begin_action(nullptr, 1, 1);
          static_cast<void>(b.scratch(100));
          b.begin_step(step, run, false);
          b.begin_action(nullptr, layer, microbatch);
          REQUIRE(a.random_seed() == b.random_seed());
          seeds.insert(a.random_seed());
          REQUIRE(b.step() == step);
          REQUIRE(b.layer() == layer);
          REQUIRE(b.microbatch() == microbatch);
          REQUIRE_FALSE(b.training());
        }
  CHECK(seeds.size() == 3 * 4 * 5 * 6);
}

TEST_CASE("model/Parameter: values that a function makes are there when they are asked for",
          "[model]") {
  Parameter<double> w(
      "w", 3,
      [](std::span<double> values, std::uint64_t seed, double scale) {
        for (double& value : values) value = scale * static_cast<double>(seed++);
      },
      5, 0.5, false);
  CHECK(w.size() == 3);
  CHECK(w.initial().empty());
  CHECK_FALSE(w.decays());
  CHECK(w.adopt(2) == std::vector<double>{2.5, 3, 3.5});
  CHECK(w.index() == 2);
}

TEST_CASE("model/Context: shows each parameter its own value and gradient", "[model]") {
  Parameter<float> w("w", {1, 2, 3});
  Parameter<double> b("b", {4}, false);
  std::vector<float> value = w.adopt(0);
  std::vector<double> bias = b.adopt(1);
  CHECK(value == std::vector<float>{1, 2, 3});
  CHECK(w.size() == 3);
  CHECK(w.initial().empty());
  CHECK(w.name() == "w");
  CHECK(w.decays());
  CHECK_FALSE(b.decays());
  std::vector<float> dw(3);
  std::vector<double> db(1);
  std::vector<ParameterView> const views{{value.data(), dw.data(), 3}, {bias.data(), db.data(), 1}};
  Context context;
  context.begin_action(views.data(), 0, 0);
  CHECK(context[w].data() == value.data());
  CHECK(context[w].size() == 3);
  CHECK(context[b][0] == 4);
  context.gradient(w)[2] += 5;
  context.gradient(b)[0] -= 1;
  CHECK(dw == std::vector<float>{0, 0, 5});
  CHECK(db[0] == -1);
}

TEST_CASE("model/Context: scratch is taken back at each action and settles", "[model]") {
  Context context;
  auto const action = [&] {
    context.begin_action(nullptr, 0, 0);
    auto const a = context.scratch<double>(10);
    auto const b = context.scratch(200);
    auto const bytes_a = std::as_bytes(a), bytes_b = std::as_bytes(b);
    CHECK((std::less_equal<>{}(bytes_a.data() + bytes_a.size(), bytes_b.data()) ||
           std::less_equal<>{}(bytes_b.data() + bytes_b.size(), bytes_a.data())));
    return a.data();
  };
  action();
  auto* const first = action();
  auto const bytes = context.scratch_bytes();
  for (int i = 0; i < 10; ++i) CHECK(action() == first);
  CHECK(context.scratch_bytes() == bytes);
}

TEST_CASE("model/Context: a parameter of no layer, or of another one, is refused by name",
          "[model]") {
  Parameter<float> listed("w", {1});
  Parameter<double> forgotten("b", {2});
  std::vector<float> value = listed.adopt(0, 3);
  std::vector<float> gradient(1);
  ParameterView const view{value.data(), gradient.data(), 1};
  Context context;
  context.begin_action(&view, 3, 0);
  CHECK(context[listed][0] == 1);
  Parameter<float> const copy = listed;  // as a replica of the layer has it
  CHECK(context.gradient(copy).data() == gradient.data());
  char const* const forgot =
      "layer 3 uses the parameter 'b', which its parameters() does not list; return it there, with "
      "std::tie";
  CHECK_THROWS_WITH(context[forgotten], forgot);
  CHECK_THROWS_WITH(context.gradient(forgotten), forgot);
  context.begin_action(&view, 4, 0);
  char const* const foreign =
      "layer 4 uses the parameter 'w' of layer 3; give each layer a Parameter of its own";
  CHECK_THROWS_WITH(context[listed], foreign);
  CHECK_THROWS_WITH(context.gradient(listed), foreign);
}

TEST_CASE("model/Arena: spans of one round are aligned and do not overlap", "[model]") {
  std::mt19937 random(2);
  Arena arena;
  for (int round = 0; round < 200; ++round) {
    std::vector<std::span<std::uint8_t>> taken;
    for (unsigned i = 0; i < random() % 10; ++i) {
      taken.push_back(arena.take<std::uint8_t>(random() % 300));
      std::fill(taken.back().begin(), taken.back().end(), static_cast<std::uint8_t>(i));
    }
    for (std::size_t i = 0; i < taken.size(); ++i) {
      REQUIRE(reinterpret_cast<std::uintptr_t>(taken[i].data()) % stagger::alignment_bytes == 0);
      for (auto const value : taken[i]) REQUIRE(value == i);
    }
    arena.reset();
  }
}

TEST_CASE("model/Arena: once the largest round has been seen its memory settles", "[model]") {
  Arena arena;
  auto const round = [&](std::size_t scale) {
    std::vector<void const*> places;
    for (std::size_t n : {3U, 100U, 0U, 50U})
      places.push_back(arena.take<double>(n * scale).data());
    arena.reset();
    return places;
  };
  round(1);
  round(5);
  auto const places = round(5);
  auto const bytes = arena.bytes();
  for (int i = 0; i < 20; ++i) {
    round(1);
    CHECK(round(5) == places);
    CHECK(arena.bytes() == bytes);
  }
  CHECK(bytes < 5 * 153 * sizeof(double) + 4 * 64);
}

TEST_CASE("model/Arena: a size that no memory has is an exception and changes nothing", "[model]") {
  Arena arena;
  std::size_t const huge = std::numeric_limits<std::size_t>::max();
  CHECK_THROWS_AS(arena.take<double>(huge / 8 + 2), std::bad_alloc);
  CHECK(arena.take<double>(3).size() == 3);
}

}  // namespace context_test
