// SPDX-License-Identifier: Apache-2.0
#include "model/cross_entropy.hpp"
#include "model/embedding.hpp"
#include "model/half_block.hpp"
#include "model/head.hpp"

#include <cmath>
#include <cstring>

#include "catch.hpp"
#include "layers/layer_harness.hpp"

namespace layers_test {

using namespace layer_test;
using gpt::Embedding;
using gpt::HalfBlock;
using gpt::Head;
using gpt::Random;
using gpt::Tokens;
using stagger::Tensor;

namespace {

Tokens random_tokens(std::size_t sequences, std::size_t length, unsigned seed) {
  std::mt19937_64 random(seed);
  Tokens tokens({sequences, length});
  for (auto& token : tokens) token = static_cast<std::uint8_t>(random() % 256);
  return tokens;
}

/// @param heads  0: an MLP
HalfBlock<double> half_block(gpt::Index width, gpt::Index heads) {
  Random random(1);
  return {width, heads > 0 ? gpt::Projections<double>::attention(width, heads, 2, random)
                           : gpt::Projections<double>::mlp(width, 2, random)};
}

}  // namespace

TEST_CASE(
    "gpt/HalfBlock: gradients of the input and of all parameters agree with finite differences",
    "[gpt]") {
  struct Case {
    std::size_t sequences, length;
    gpt::Index width, heads;
  };
  for (Case c : {Case{2, 5, 8, 2}, Case{1, 7, 12, 3}, Case{3, 1, 4, 1}, Case{1, 17, 8, 8},
                 Case{2, 5, 8, 0}, Case{1, 1, 3, 0}}) {
    INFO(c.sequences << " sequences of " << c.length << ", width " << c.width << ", " << c.heads
                     << " heads");
    Harness<HalfBlock<double>> harness(half_block(c.width, c.heads));
    disturb_parameters(harness, 2);
    check_layer(harness, random_tensor({c.sequences, c.length, gpt::count(c.width)}, 3), 4);
  }
}

TEST_CASE("gpt/Head: gradients of the input and of all parameters agree with finite differences",
          "[gpt]") {
  Random random(1);
  Harness<Head<double>> harness(Head<double>(6, random));
  disturb_parameters(harness, 2);
  check_layer(harness, random_tensor({2, 3, 6}, 3), 4);
}

TEST_CASE(
    "gpt/Embedding: gradients of both tables agree with finite differences, also for repeated "
    "bytes",
    "[gpt]") {
  Random random(1);
  Harness<Embedding<double>> harness(Embedding<double>(3, 6, random));
  Tokens x = random_tokens(2, 5, 3);
  x[7] = x[1];  // the same byte elsewhere
  x[5] = x[0];  // and in the same place
  Tensor<double> const dy = random_tensor({2, 5, 3}, 4);
  harness.forward(x);
  harness.backward_weight(x, dy);
  auto const f = [&] { return dot(harness.forward(x), dy); };
  for (std::size_t i = 0; i < 2; ++i)
    check_gradient(harness.names()[i], harness.values()[i], harness.gradients()[i], f);
}

TEST_CASE("gpt/Embedding: a sequence longer than the context is refused", "[gpt]") {
  Random random(1);
  Harness<Embedding<double>> harness(Embedding<double>(3, 6, random));
  CHECK_THROWS_WITH(harness.forward(random_tokens(1, 7, 1)),
                    "a sequence of 7 bytes is longer than the context of 6; cut it");
}

TEST_CASE("gpt/CrossEntropy: value is -log of the softmax, gradient agrees with finite differences",
          "[gpt]") {
  gpt::CrossEntropy<double> const loss;
  stagger::Context context;
  context.begin_action(nullptr, 0, 0);
  Tensor<double> y = random_tensor({2, 3, 256}, 1);
  for (double& logit : y) logit *= 3;
  y[256 + 9] = 800;  // overflows an exponential that is not shifted
  Tokens const target = random_tokens(2, 3, 2);
  double expected = 0;
  for (std::size_t r = 0; r < 6; ++r) {
    long double sum = 0;
    for (std::size_t c = 0; c < 256; ++c) sum += std::exp(static_cast<long double>(y[r * 256 + c]));
    expected +=
        static_cast<double>(std::log(sum) - static_cast<long double>(y[r * 256 + target[r]]));
  }
  CHECK(loss.terms(target) == 6);
  CHECK(loss.value(context, y, target) == Approx(expected).epsilon(1e-12));
  Tensor<double> dy;
  CHECK(loss.value_and_gradient(context, y, target, 0.25, dy) == loss.value(context, y, target));
  check_gradient("logits", y, dy, [&] { return 0.25 * loss.value(context, y, target); });
  Tokens const other = random_tokens(1, 3, 2);
  CHECK_THROWS_AS(loss.value(context, y, other), stagger::Error);
}

TEST_CASE("gpt/HalfBlock: no output depends on a later byte", "[gpt]") {
  Harness<HalfBlock<double>> harness(half_block(8, 2));
  Tensor<double> x = random_tensor({1, 6, 8}, 3);
  auto const before = harness.forward(x);
  for (std::size_t t = 0; t < 6; ++t) {
    Tensor<double> changed = x;
    for (std::size_t i = t * 8; i < 6 * 8; ++i) changed[i] = -changed[i] + 0.5;
    auto const after = harness.forward(changed);
    CHECK(std::memcmp(before.data(), after.data(), t * 8 * sizeof(double)) == 0);
    CHECK(std::memcmp(before.data() + t * 8, after.data() + t * 8, 8 * sizeof(double)) != 0);
  }
}

TEST_CASE("gpt/HalfBlock: memory used before by a larger microbatch changes no bit", "[gpt]") {
  gpt::Index const heads = GENERATE(0, 2);
  HalfBlock<double> const half = half_block(8, heads);
  Tensor<double> const large = random_tensor({4, 9, 8}, 3);
  Tensor<double> const small = random_tensor({2, 7, 8}, 4);
  Harness<HalfBlock<double>> used(half), fresh(half);
  used.backward_input(large, (used.forward(large), large));
  CHECK(same_bits(used.forward(small), fresh.forward(small)));
  CHECK(same_bits(used.backward_input(small, small), fresh.backward_input(small, small)));
  used.backward_weight(small, small);
  fresh.backward_weight(small, small);
  for (std::size_t i = 0; i < used.gradients().size(); ++i) {
    INFO(used.names()[i]);
    CHECK(same_bits(used.gradients()[i], fresh.gradients()[i]));
  }
}

TEST_CASE("gpt/HalfBlock: gradients are added to what stands there", "[gpt]") {
  Harness<HalfBlock<double>> once(half_block(8, GENERATE(0, 2)));
  Tensor<double> const x = random_tensor({2, 5, 8}, 3);
  Tensor<double> const dy = random_tensor({2, 5, 8}, 4);
  once.forward(x);
  once.backward_input(x, dy);
  once.backward_weight(x, dy);
  auto const first = once.gradients();
  once.backward_weight(x, dy);
  for (std::size_t i = 0; i < first.size(); ++i)
    for (std::size_t j = 0; j < first[i].size(); ++j)
      CHECK(once.gradients()[i][j] == Approx(2 * first[i][j]).margin(1e-12));
}

}  // namespace layers_test
