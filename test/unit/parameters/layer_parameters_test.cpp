// SPDX-License-Identifier: Apache-2.0
#include <stagger/model/context.hpp>
#include <stagger/parameters/layer_parameters.hpp>

#include "catch.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace layer_parameters_test {

namespace {

using namespace stagger;
using detail::ByteRange;
using detail::LayerParameters;
using detail::ParameterDeclaration;

template <class T> ParameterDeclaration declared(char const* name, std::vector<T> const& values) {
  ParameterDeclaration d;
  d.name = name;
  d.type = element_type_of<T>;
  d.size = values.size();
  d.initial.assign(reinterpret_cast<std::byte const*>(values.data()), values.size() * sizeof(T));
  return d;
}

/// Three floats and two doubles: two units of the alignment.
LayerParameters& made(LayerParameters& parameters, bool shards = false) {
  List<ParameterDeclaration> declarations;
  declarations.push_back(declared<float>("w", {1, 2, 3}));
  declarations.push_back(declared<double>("b", {10, 20}));
  parameters.adopt(std::move(declarations), 4, optimizer::Sgd::states, nullptr, shards);
  return parameters;
}

template <class T>
std::vector<T> values(LayerParameters const& p, std::size_t i, std::size_t v = 0) {
  ParameterView const& view = p.views()[v * p.count() + i];
  return {static_cast<T*>(view.value), static_cast<T*>(view.value) + view.size};
}
template <class T> T* gradient(ParameterView const* views, std::size_t i) {
  return static_cast<T*>(views[i].gradient);
}

constexpr optimizer::Sgd plain{.rate = 1, .momentum = 0, .weight_decay = 0};

}  // namespace

TEST_CASE("parameters/LayerParameters: shows what a layer declares, each on a boundary",
          "[parameters]") {
  LayerParameters parameters;
  made(parameters);
  CHECK(parameters.count() == 2);
  CHECK(parameters.shape(1).name == "4.b");
  CHECK(parameters.range(0).first == 0);
  CHECK(parameters.range(1).first == alignment_bytes);
  CHECK(parameters.range(1).last == alignment_bytes + 2 * sizeof(double));
  CHECK(values<float>(parameters, 0) == std::vector<float>{1, 2, 3});
  CHECK(values<double>(parameters, 1) == std::vector<double>{10, 20});
  CHECK(gradient<float>(parameters.views(), 0)[2] == 0);
  CHECK(parameters.bytes() == 3 * 2 * alignment_bytes);  // values, gradients, one state
  std::vector<ParameterState> states;
  parameters.append_states(states);
  REQUIRE(states.size() == 2);
  CHECK(states[0].values<float>()[1] == 2);
  CHECK(states[1].state[0].size() == 2 * sizeof(double));
  CHECK(states[1].state[1].empty());
}

TEST_CASE("parameters/LayerParameters: adds up gradients, squares them, updates and begins anew",
          "[parameters]") {
  LayerParameters parameters;
  made(parameters);
  detail::GradientCopy share;
  share.of(parameters, parameters.views(), parameters.stored());
  CHECK(share.views()[0].value == parameters.views()[0].value);
  for (int i = 0; i < 3; ++i) {
    gradient<float>(parameters.views(), 0)[i] = static_cast<float>(i);
    gradient<float>(share.views(), 0)[i] = 10;
  }
  gradient<double>(share.views(), 1)[1] = 4;
  detail::GradientCopy const* const one = &share;
  parameters.add({&one, 1});
  parameters.sum_squares();
  CHECK(parameters.square_sums()[0] == 100 + 121 + 144);
  CHECK(parameters.square_sums()[1] == 16);
  parameters.update(plain, {.gradient_scale = 0.5});
  CHECK(values<float>(parameters, 0) == std::vector<float>{-4, -3.5F, -3});
  CHECK(values<double>(parameters, 1) == std::vector<double>{10, 18});
  CHECK(gradient<float>(parameters.views(), 0)[0] == 0);
  CHECK(gradient<float>(share.views(), 0)[0] == 10);
  share.zero();
  CHECK(gradient<float>(share.views(), 0)[0] == 0);
}

TEST_CASE("parameters/LayerParameters: a part is added, squared and updated by itself",
          "[parameters]") {
  LayerParameters parameters;
  made(parameters);
  detail::GradientCopy share;
  share.of(parameters, parameters.views(), parameters.stored());
  gradient<float>(share.views(), 0)[0] = 1;
  gradient<double>(share.views(), 1)[0] = 1;
  ByteRange const second = parameters.part(1, 2);
  CHECK(second.first == alignment_bytes);
  CHECK(parameters.overlaps(1, second));
  CHECK_FALSE(parameters.overlaps(0, second));
  detail::GradientCopy const* const one = &share;
  parameters.add({&one, 1}, second);
  CHECK(gradient<float>(parameters.views(), 0)[0] == 0);
  CHECK(gradient<double>(parameters.views(), 1)[0] == 1);
  gradient<float>(parameters.views(), 0)[0] = 5;
  detail::UpdateStep step;
  step.range = second;
  parameters.update(plain, step);
  CHECK(values<float>(parameters, 0)[0] == 1);
  CHECK(gradient<float>(parameters.views(), 0)[0] == 5);
  CHECK(values<double>(parameters, 1)[0] == 9);
  CHECK(gradient<double>(parameters.views(), 1)[0] == 0);
}

TEST_CASE("parameters/LayerParameters: parts of whole parameters are whole, and as equal as can be",
          "[parameters]") {
  std::vector<std::vector<std::size_t>> const models{
      {}, {40}, {1000, 10}, {10, 1000, 10}, {16, 16, 16, 16}, {300, 0, 20, 100, 7, 0}};
  for (auto const& sizes : models)
    for (int number : {0, 1, 2, 7}) {
      LayerParameters layer;
      List<ParameterDeclaration> declarations;
      for (std::size_t i = 0; i < sizes.size(); ++i)
        declarations.push_back(
            declared<float>(std::to_string(i).c_str(), std::vector<float>(sizes[i])));
      layer.adopt(std::move(declarations), 3, 1);
      layer.set_turn(number);
      layer.keep_parameters_whole();
      std::size_t const bytes = layer.bytes_of_values();
      for (std::size_t parts = 1; parts < 9; ++parts) {
        std::vector<int> holders(sizes.size(), 0);
        std::size_t sum = 0;
        for (std::size_t p = 0; p < parts; ++p) {
          ByteRange const part = layer.part(p, parts);
          sum += part.size();
          for (std::size_t i = 0; i < sizes.size(); ++i) {
            ByteRange const all = layer.range(i);
            if (all.size() == 0 || !layer.overlaps(i, part)) continue;
            CHECK(part.first <= all.first);
            CHECK(all.last <= part.last);
            ++holders[i];
          }
          // No end is further from that of an equal part than half of a parameter.
          std::size_t const place = (p + static_cast<std::size_t>(number)) % parts;
          std::size_t largest = 0;
          for (std::size_t const size : sizes) largest = std::max(largest, size * sizeof(float));
          auto const away = static_cast<double>(part.first) -
                            static_cast<double>(bytes * place) / static_cast<double>(parts);
          CHECK(2 * std::fabs(away) <= static_cast<double>(largest + 3 * alignment_bytes));
        }
        CHECK(sum == bytes);
        for (std::size_t i = 0; i < sizes.size(); ++i) CHECK(holders[i] == (sizes[i] != 0 ? 1 : 0));
      }
    }
}

namespace {

/// Adds the sum of the gradient, which no part of it has.
struct Summing {
  using policy_tag = OptimizerTag;
  static constexpr int states = 0;
  static constexpr bool element_wise = false;
  template <class T> void update(OptimizerView<T> const& v, double, std::int64_t) const noexcept {
    T sum = 0;
    for (std::size_t i = 0; i < v.size; ++i) sum += v.gradient[i];
    for (std::size_t i = 0; i < v.size; ++i) v.next[i] = v.value[i] + sum;
  }
};

}  // namespace

TEST_CASE("parameters/LayerParameters: an optimizer is told the rows of a matrix, not of a part",
          "[parameters]") {
  struct Counting : optimizer::Sgd {
    void update(OptimizerView<float> const& v, double, std::int64_t) const noexcept {
      v.next[0] = static_cast<float>(v.rows);
    }
    void update(OptimizerView<double> const& v, double, std::int64_t) const noexcept {
      v.next[0] = static_cast<double>(v.rows);
    }
  };
  LayerParameters layer;
  List<ParameterDeclaration> declarations;
  declarations.push_back(declared<float>("matrix", std::vector<float>(48)));
  declarations.back().rows = 16;
  declarations.push_back(declared<double>("vector", {5}));
  layer.adopt(std::move(declarations), 0, Counting::states);
  layer.update(Counting{}, {});
  CHECK(values<float>(layer, 0)[0] == 16);
  CHECK(values<double>(layer, 1)[0] == 0);
  detail::UpdateStep step;
  step.range = {64, 192};
  layer.update(Counting{}, step);
  CHECK(values<float>(layer, 0)[0] == 16);
  CHECK(values<float>(layer, 0)[16] == 0);
}

TEST_CASE("parameters/LayerParameters: the change by an optimizer that has none is of the whole",
          "[parameters]") {
  LayerParameters layer;
  List<ParameterDeclaration> declarations;
  declarations.push_back(declared<float>("w", std::vector<float>(1000, 2)));
  declarations.push_back(declared<double>("b", {5}));
  layer.adopt(std::move(declarations), 0, Summing::states);
  layer.reserve_versions(2);
  for (int i = 0; i < 1000; ++i) gradient<float>(layer.views(), 0)[i] = 1;
  gradient<double>(layer.views(), 1)[0] = 3;
  detail::UpdateStep step;
  step.to = 1;
  layer.change(Summing{}, step);
  CHECK(values<float>(layer, 0, 1) == std::vector<float>(1000, 1000));
  CHECK(values<double>(layer, 1, 1) == std::vector<double>{3});
  CHECK(values<float>(layer, 0) == std::vector<float>(1000, 2));
}

TEST_CASE("parameters/LayerParameters: memory can be exchanged, and views follow", "[parameters]") {
  LayerParameters parameters;
  made(parameters).reserve_versions(2);
  detail::ParameterBlock other;
  other.make(nullptr, parameters.bytes_of_values());
  void* const first = parameters.views()[0].value;
  double const seven = 7;
  std::memcpy(other.data() + parameters.range(1).first, &seven, sizeof(seven));
  CHECK(parameters.exchange(0, [&](detail::ParameterBlock& block) {
    std::swap(block, other);
    return 3;
  }) == 3);
  CHECK(other.data() == first);
  CHECK(values<double>(parameters, 1) == std::vector<double>{7, 0});
  CHECK(values<double>(parameters, 1, 1) == std::vector<double>{0, 0});
  CHECK(parameters.value_bytes_of(parameters.range(1)).data() == parameters.views()[1].value);
  // Also if the link has failed after it has taken the memory.
  auto const fails = [&](detail::ParameterBlock& block) {
    std::swap(block, other);
    throw 1;
  };
  CHECK_THROWS_AS(parameters.exchange(LayerParameters::gradients, fails), int);
  CHECK(values<double>(parameters, 1) == std::vector<double>{7, 0});
  CHECK(gradient<float>(parameters.views(), 0)[0] == 1);
  CHECK(parameters.stored().gradients.data() == first);
}

TEST_CASE("parameters/LayerParameters: an update goes from one version to another",
          "[parameters]") {
  LayerParameters parameters;
  made(parameters);
  parameters.reserve_versions(3);
  parameters.reserve_versions(2);  // keeps what there is
  CHECK(parameters.bytes() == 5 * 2 * alignment_bytes);
  CHECK(parameters.views()[4].gradient == parameters.views()[0].gradient);
  gradient<float>(parameters.views(), 0)[1] = 1;
  detail::UpdateStep step;
  step.to = 2;
  parameters.update(plain, step);
  CHECK(values<float>(parameters, 0) == std::vector<float>{1, 2, 3});
  CHECK(values<float>(parameters, 0, 2) == std::vector<float>{1, 1, 3});
  step.from = 2;
  step.to = 1;
  parameters.update(plain, step);
  CHECK(values<float>(parameters, 0, 1) == std::vector<float>{1, 1, 3});
}

TEST_CASE("parameters/LayerParameters: what a failed step has changed comes back", "[parameters]") {
  constexpr optimizer::Sgd heavy{.rate = 1, .momentum = 0.5, .weight_decay = 0};
  for (bool const part : {false, true}) {
    CAPTURE(part);
    LayerParameters parameters;
    made(parameters, part);
    ByteRange const here = parameters.part(1, 2);
    if (part) {
      CHECK(parameters.hold_states(here));
      CHECK(parameters.hold_states(here));
      CHECK_FALSE(parameters.hold_states(parameters.part(0, 2)));  // shared out once and for all
    }
    detail::UpdateStep step;
    if (part) step.range = here;
    auto const update = [&] {
      gradient<double>(parameters.views(), 1)[1] = 2;
      parameters.update(heavy, step);
      return values<double>(parameters, 1)[1];
    };
    CHECK(update() == 18);
    part ? parameters.copy_part(here, false) : parameters.save();
    CHECK(update() == 15);
    part ? parameters.copy_part(here, true) : parameters.restore();
    CHECK(values<double>(parameters, 1)[1] == 18);
    CHECK(update() == 15);  // the velocity, too, was as it had been
  }
}

TEST_CASE("parameters/LayerParameters: where another process runs the layer, it takes no memory",
          "[parameters]") {
  LayerParameters parameters;
  made(parameters);
  CHECK_FALSE(parameters.hold());
  parameters.release();
  CHECK(parameters.bytes() == 0);
  CHECK(parameters.views()[0].value == nullptr);
  std::vector<ParameterState> states;
  parameters.append_own(states);
  REQUIRE(states.size() == 2);
  CHECK(states[0].name == "4.w");
  CHECK(states[0].value.empty());
  CHECK(parameters.hold());
  CHECK(values<float>(parameters, 0) == std::vector<float>{0, 0, 0});
}

TEMPLATE_TEST_CASE(
    "parameters/LayerParameters: sums and the search for what is not finite reach every "
    "element",
    "[parameters]", float, double) {
  for (std::size_t const size : {1U, 255U, 256U, 257U, 700U}) {
    CAPTURE(size);
    std::vector<TestType> sum(size), more(size), less(size);
    for (std::size_t i = 0; i < size; ++i) {
      sum[i] = static_cast<TestType>(i) / 3;
      more[i] = static_cast<TestType>(i % 7) / 7;
      less[i] = static_cast<TestType>(i % 11) / 11;
    }
    LayerParameters layer;
    List<ParameterDeclaration> declarations;
    declarations.push_back(declared<float>("before", {1, 2, 3}));
    declarations.push_back(declared("w", sum));
    layer.adopt(std::move(declarations), 0, 0);
    auto const in_layer = [&](std::vector<TestType> const& values) {
      std::vector<std::byte> bytes(layer.bytes_of_values());
      std::memcpy(bytes.data() + layer.range(1).first, values.data(), size * sizeof(TestType));
      return bytes;
    };
    auto const to = in_layer(sum), from = in_layer(more), without = in_layer(less);
    auto const check = [&](auto add, auto expected) {
      auto changed = to;
      add(changed.data());
      std::vector<TestType> now = sum;
      for (std::size_t i = 0; i < size; ++i) now[i] = expected(i);
      CHECK(changed == in_layer(now));
    };
    check([&](std::byte* at) { layer.add_values(at, from.data()); },
          [&](std::size_t i) { return sum[i] + more[i]; });
    check([&](std::byte* at) { layer.add_scaled(at, from.data(), 0.3); },
          [&](std::size_t i) { return sum[i] + static_cast<TestType>(0.3) * more[i]; });
    check([&](std::byte* at) { layer.add_difference(at, from.data(), without.data(), 0.3); },
          [&](std::size_t i) { return sum[i] + static_cast<TestType>(0.3) * (more[i] - less[i]); });

    CHECK(layer.all_finite(to.data()));
    for (std::size_t i = 0; i < size; ++i)
      for (TestType const odd : {std::numeric_limits<TestType>::quiet_NaN(),
                                 -std::numeric_limits<TestType>::infinity()}) {
        auto values = sum;
        values[i] = odd;
        if (layer.all_finite(in_layer(values).data())) FAIL_CHECK("element " << i);
      }
  }
}

}  // namespace layer_parameters_test
