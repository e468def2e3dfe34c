// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <vector>

#include "catch.hpp"
#include "layers/layer_harness.hpp"
#include "vgg/model/model.hpp"

namespace layers_test {

using namespace layer_test;
using layers::Random;
using stagger::Tensor;
using vgg::Convolution;
using vgg::Dense;
using vgg::Dropout;
using vgg::MaxPool;
using vgg::Minibatch;

namespace {

Convolution<double> convolution(vgg::Index inputs, vgg::Index outputs) {
  Random random(1);
  return {inputs, outputs, random};
}

Dense<double> dense(vgg::Index inputs, vgg::Index outputs, std::optional<Dropout> dropout) {
  Random random(1);
  return {inputs, outputs, dropout, random};
}

Tensor<double> rows_of(Tensor<double> const& x, std::size_t first, std::size_t rows) {
  Tensor<double> part;
  part.resize_rows(x, rows);
  part.copy_rows(0, x, first, rows);
  return part;
}

}  // namespace

TEST_CASE("vgg/Convolution: gradients of input, weight and bias agree with finite differences",
          "[vgg]") {
  struct Case {
    std::size_t images, height, width, inputs;
    vgg::Index outputs;
  };
  for (Case c :
       {Case{2, 4, 4, 2, 3}, Case{1, 1, 1, 1, 1}, Case{3, 1, 5, 2, 1}, Case{1, 3, 2, 3, 9}}) {
    INFO(c.images << " images of " << c.height << " x " << c.width << ", " << c.inputs << " to "
                  << c.outputs << " channels");
    Harness harness(convolution(layers::count(c.inputs), c.outputs));
    disturb_parameters(harness, 2);
    check_layer(harness, random_tensor({c.images, c.height, c.width, c.inputs}, 3), 4);
  }
}

TEST_CASE(
    "vgg/Convolution: each pixel is the sum over its neighbours, with zeros beyond the border",
    "[vgg]") {
  constexpr std::size_t height = 3, width = 4, inputs = 2, outputs = 3;
  Harness harness(convolution(inputs, outputs));
  disturb_parameters(harness, 2);
  auto const& weight = harness.values()[0];
  auto const& bias = harness.values()[1];
  auto const x = random_tensor({2, height, width, inputs}, 3);
  auto const y = harness.forward(x);
  REQUIRE(y.extents() == std::array<std::size_t, 4>{2, height, width, outputs});
  std::size_t at = 0;
  for (std::size_t image = 0; image < 2; ++image)
    for (std::size_t row = 0; row < height; ++row)
      for (std::size_t column = 0; column < width; ++column)
        for (std::size_t o = 0; o < outputs; ++o, ++at) {
          double sum = bias[o];
          for (std::size_t dr = 0; dr < 3; ++dr)
            for (std::size_t dc = 0; dc < 3; ++dc) {
              std::size_t const r = row + dr - 1, c = column + dc - 1;  // wraps beyond the border
              if (r >= height || c >= width) continue;
              for (std::size_t i = 0; i < inputs; ++i)
                sum += x[((image * height + r) * width + c) * inputs + i] *
                       weight[((dr * 3 + dc) * inputs + i) * outputs + o];
            }
          REQUIRE(y[at] == Approx(std::max(0.0, sum)).margin(1e-12));
        }
}

TEST_CASE("vgg/MaxPool: the gradient agrees with finite differences", "[vgg]") {
  Harness<MaxPool<double>> harness(MaxPool<double>{});
  check_layer(harness, random_tensor({2, 4, 6, 3}, 3), 4);
}

TEST_CASE("vgg/MaxPool: of equal pixels the first gets the gradient", "[vgg]") {
  Harness<MaxPool<double>> harness(MaxPool<double>{});
  // Four images of 2x2 pixels: all equal; the last three; the second and third; the last two.
  Tensor<double> x({4, 2, 2, 1});
  double const values[] = {2, 2, 2, 2, 1, 5, 5, 5, 0, 3, 3, 1, -9, -9, -7, -7};
  std::copy(std::begin(values), std::end(values), x.begin());
  auto const y = harness.forward(x);
  CHECK(std::vector<double>(y.begin(), y.end()) == std::vector<double>{2, 5, 3, -7});
  Tensor<double> dy({4, 1, 1, 1});
  for (std::size_t i = 0; i < 4; ++i) dy[i] = static_cast<double>(i + 1);
  auto const dx = harness.backward_input(x, dy);
  CHECK(std::vector<double>(dx.begin(), dx.end()) ==
        std::vector<double>{1, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 4, 0});
}

TEST_CASE("vgg/Dense: gradients agree with finite differences, with ReLU and dropout and without",
          "[vgg]") {
  Dropout const half{0.5, 7, {3, 1}};
  for (auto const& dropout : {std::optional<Dropout>{}, {Dropout{0, 7, {3, 1}}}, {half}}) {
    for (auto const& x : {random_tensor({3, 6}, 3), random_tensor({2, 1, 2, 3}, 3)}) {
      Harness harness(dense(6, 5, dropout));  // an image is a row of numbers
      disturb_parameters(harness, 2);
      check_layer(harness, x, 4);
    }
  }
}

TEST_CASE("vgg/Dense: what dropout keeps is scaled, and evaluation keeps everything", "[vgg]") {
  Harness plain(dense(6, 400, Dropout{0, 7, {8, 1}}));
  Harness harness(dense(6, 400, Dropout{0.25, 7, {8, 1}}));
  auto const x = random_tensor({8, 6}, 3);
  auto const all = plain.forward(x);
  auto const y = harness.forward(x);
  std::size_t positive = 0, dropped = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    if (all[i] <= 0) continue;
    ++positive;
    if (y[i] == 0)
      ++dropped;
    else
      REQUIRE(y[i] == Approx(all[i] / 0.75));
  }
  CHECK(static_cast<double>(dropped) / static_cast<double>(positive) ==
        Approx(0.25).margin(0.04));  // about four standard deviations
  harness.context().begin_step(0, 1, false);
  CHECK(same_bits(harness.forward(x), all));
}

TEST_CASE("vgg/Dropout: every number that names a feature has a say", "[vgg]") {
  auto const mask = [](Dropout const& dropout, std::int64_t step, std::size_t example,
                       std::size_t first) {
    std::vector<bool> dropped;
    for (std::size_t f = first; f < first + 64; ++f)
      dropped.push_back(dropout.drops(step, example, f));
    return dropped;
  };
  Dropout const dropout{0.5, 1, {}};
  auto const usual = mask(dropout, 3, 5, 0);
  CHECK(mask(dropout, 3, 5, 0) == usual);
  CHECK(mask(dropout, 4, 5, 0) != usual);
  CHECK(mask(dropout, 3, 6, 0) != usual);
  CHECK(mask(dropout, 5, 3, 0) != usual);
  CHECK(mask(dropout, 3, 5, 64) != usual);
  CHECK(mask(Dropout{0.5, 2, {}}, 3, 5, 0) != usual);
}

TEST_CASE("vgg/Dense: dropout does not depend on microbatches and replicas", "[vgg]") {
  constexpr std::size_t examples = 7;
  auto const x = random_tensor({examples, 6}, 3);
  Harness whole(dense(6, 50, Dropout{0.5, 7, {examples, 1}}));
  whole.context().begin_step(11, 1, true);
  auto const all = whole.forward(x);
  for (std::size_t microbatches = 1; microbatches <= examples; ++microbatches)
    for (std::size_t const replicas : {std::size_t{1}, std::size_t{2}}) {
      INFO(microbatches << " microbatches, " << replicas << " replicas");
      Minibatch const cut{examples, microbatches};
      Harness harness(dense(6, 50, Dropout{0.5, 7, cut}));
      harness.context().begin_step(11, 1, true);
      for (std::size_t m = 0; m < microbatches; ++m)
        for (std::size_t replica = 0; replica < replicas; ++replica) {
          std::size_t const from = cut.rows(m) * replica / replicas;
          std::size_t const until = cut.rows(m) * (replica + 1) / replicas;
          std::vector<std::size_t> const first_rows(3 * microbatches, from);
          harness.context().set_first_rows(first_rows.data());
          harness.microbatch = static_cast<int>(m);
          auto const y = harness.forward(rows_of(x, cut.first(m) + from, until - from));
          auto const wanted = rows_of(all, cut.first(m) + from, until - from);
          REQUIRE(y.size() == wanted.size());
          for (std::size_t i = 0; i < y.size(); ++i)
            REQUIRE(y[i] == Approx(wanted[i]).margin(1e-14));
          // A stream's third minibatch, of which the first has been step 9, is the same step.
          harness.context().begin_step(9, 1, true, static_cast<int>(microbatches));
          harness.microbatch = static_cast<int>(2 * microbatches + m);
          REQUIRE(same_bits(harness.forward(rows_of(x, cut.first(m) + from, until - from)), y));
          harness.context().begin_step(11, 1, true);
          harness.context().set_first_rows(nullptr);
        }
    }
}

TEST_CASE("vgg/layers: both halves of the backward pass may run in either order", "[vgg]") {
  auto const check = [](auto layer, Tensor<double> const& x) {
    Harness first(layer), second(layer);
    auto const dy = first.forward(x);
    second.forward(x);
    auto const dx = first.backward_input(x, dy);
    first.backward_weight(x, dy);
    second.backward_weight(x, dy);
    CHECK(same_bits(second.backward_input(x, dy), dx));
    for (std::size_t i = 0; i < first.gradients().size(); ++i) {
      INFO(first.names()[i]);
      CHECK(same_bits(first.gradients()[i], second.gradients()[i]));
    }
    // Gradients are added to what stands there.
    auto const once = first.gradients();
    first.backward_weight(x, dy);
    for (std::size_t i = 0; i < once.size(); ++i)
      for (std::size_t e = 0; e < once[i].size(); ++e)
        REQUIRE(first.gradients()[i][e] == Approx(2 * once[i][e]).margin(1e-12));
  };
  check(convolution(3, 4), random_tensor({2, 4, 4, 3}, 3));
  check(dense(6, 5, Dropout{0.5, 7, {3, 1}}), random_tensor({3, 6}, 3));
  check(dense(6, 5, std::nullopt), random_tensor({3, 6}, 3));
}

TEST_CASE("vgg/layers: memory used before by a larger microbatch changes no bit", "[vgg]") {
  auto const check = [](auto layer, Tensor<double> const& large, Tensor<double> const& small) {
    Harness used(layer), fresh(layer);
    used.backward_input(large, used.forward(large));
    auto const y = used.forward(small);
    CHECK(same_bits(y, fresh.forward(small)));
    CHECK(same_bits(used.backward_input(small, y), fresh.backward_input(small, y)));
  };
  check(convolution(2, 3), random_tensor({3, 6, 4, 2}, 3), random_tensor({2, 2, 4, 2}, 4));
  check(MaxPool<double>{}, random_tensor({3, 6, 4, 2}, 3), random_tensor({2, 2, 4, 2}, 4));
  check(dense(6, 5, Dropout{0.5, 7, {3, 1}}), random_tensor({3, 6}, 3), random_tensor({2, 6}, 4));
}

TEST_CASE("vgg/layers: inputs that do not fit are refused", "[vgg]") {
  Harness conv(convolution(2, 3));
  CHECK_THROWS_WITH(conv.forward(random_tensor({1, 2, 2, 3}, 1)),
                    Catch::StartsWith("a convolution of 2 channels was given images of 3; "));
  Harness<MaxPool<double>> pool(MaxPool<double>{});
  CHECK_THROWS_WITH(pool.forward(random_tensor({1, 2, 3, 1}, 1)),
                    "images of 2 x 3 pixels cannot be pooled by 2x2; use an even height and width");
  Harness full(dense(6, 5, std::nullopt));
  CHECK_THROWS_WITH(full.forward(random_tensor({2, 5}, 1)),
                    Catch::StartsWith("a dense layer of 6 inputs was given 2 examples of 10 "));
}

}  // namespace layers_test
