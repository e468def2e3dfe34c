// SPDX-License-Identifier: Apache-2.0
#include <stagger/train/divide.hpp>

#include "catch.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <stagger/core/random.hpp>
#include <stagger/engine/groups.hpp>
#include <stagger/partition/layer_split.hpp>
#include <stagger/train/pipeline.hpp>

#include "engine/split_model.hpp"

namespace divide_test {

using namespace split_model;

namespace {

using Labels = sg::Tensor<std::int32_t>;
using Loss = sg::loss::CrossEntropy<double>;
using Classes = sg::Batch<Matrix<double>, Labels>;

Labels labels(std::size_t rows) {
  Labels made({rows});
  for (std::size_t r = 0; r < rows; ++r)
    made[r] = static_cast<std::int32_t>(sg::random_bits(3, {r}) % outputs);
  return made;
}

auto chain() {
  return sg::Pipeline{sg::Sequential{Linear<double>{inputs, 7, 1}, Linear<double>{7, 12, 2},
                                     Linear<double>{12, outputs, 3}}};
}
auto on_one_device() { return chain().on_one_device(Loss{}, optimizer()); }

}  // namespace

TEST_CASE("train/divide: a padded minibatch has the gradients of its own rows", "[train]") {
  Loss const loss{.ignored = -1};
  for (std::size_t const rows : {std::size_t{13}, std::size_t{16}, std::size_t{3}})
    for (auto const& [microbatches, ranks] :
         std::vector<std::pair<std::size_t, std::size_t>>{{1, 4}, {4, 2}, {4, 4}}) {
      CAPTURE(rows, microbatches, ranks);
      auto const x = numbers<double>(rows, inputs, 5);
      auto const target = labels(rows);
      auto train =
          chain().with(sg::partition::LayerSplit<>{.group = 2, .threshold = 0}, loss, optimizer(),
                       sg::host::Threads{2}, sg::Options{.replicas = {static_cast<int>(ranks)}});
      auto one = on_one_device();
      Classes batch;
      for (int step = 0; step < 2; ++step) {
        REQUIRE(sg::divide(
            x, target, {.microbatches = microbatches, .ranks = ranks, .ragged = sg::Ragged::pad},
            loss, batch));
        REQUIRE(batch.inputs.size() == microbatches);
        for (auto const& input : batch.inputs)
          CHECK((input.extent(0) == batch.inputs[0].extent(0) && input.extent(0) % ranks == 0));
        auto const metrics = sg::run(train.step(batch));
        auto const expected = one.step({{x}, {target}});
        CHECK(metrics.terms == static_cast<double>(rows));
        CHECK(metrics.loss == Approx(expected.loss).epsilon(1e-12));
      }
      CHECK(difference<double>(train, one) < 1e-12);
    }
}

TEST_CASE("train/divide: rows that count as nothing change no bit", "[train]") {
  Loss const loss{.ignored = 99};
  auto const x = numbers<double>(5, inputs, 5);
  auto const target = labels(5);
  auto plain = on_one_device();
  auto padded = chain().on_one_device(loss, optimizer());
  Classes batch;
  REQUIRE(sg::divide(x, target, {.ranks = 4, .ragged = sg::Ragged::pad}, loss, batch));
  CHECK(batch.inputs[0].extent(0) == 8);
  for (int step = 0; step < 3; ++step)
    CHECK(padded.step(batch).loss == plain.step({{x}, {target}}).loss);
  CHECK(bits(padded) == bits(plain));
  CHECK(padded.evaluate(batch).loss == plain.evaluate({{x}, {target}}).loss);
}

TEST_CASE("train/divide: rows keep their order, and a target may have several for each",
          "[train]") {
  struct Pairs {
    using Target = std::vector<int>;
    [[nodiscard]] static Target padding() { return {-1}; }
  };
  sg::Batch<std::vector<int>, std::vector<int>> batch;
  std::vector<int> const x{1, 2, 3};
  std::vector<int> const target{10, 11, 20, 21, 30, 31};
  REQUIRE(sg::divide(x, target, {.microbatches = 2, .ragged = sg::Ragged::pad}, Pairs{}, batch));
  CHECK(batch.inputs == std::vector<std::vector<int>>{{1, 2}, {3, 1}});
  CHECK(batch.targets == std::vector<std::vector<int>>{{10, 11, 20, 21}, {30, 31, -1, -1}});
  REQUIRE(sg::divide(x, target, {.microbatches = 3}, Pairs{}, batch));
  CHECK(batch.inputs == std::vector<std::vector<int>>{{1}, {2}, {3}});
  CHECK_FALSE(
      sg::divide(x, target, {.microbatches = 2, .ragged = sg::Ragged::drop}, Pairs{}, batch));
  REQUIRE(sg::divide(x, target, {.ranks = 3, .ragged = sg::Ragged::drop}, Pairs{}, batch));
  CHECK(batch.inputs == std::vector<std::vector<int>>{{1, 2, 3}});
}

TEST_CASE("train/divide: what cannot be divided is refused in one sentence", "[train]") {
  Classes batch;
  auto const x = numbers<double>(13, inputs, 5);
  auto const target = labels(13);
  CHECK_THROWS_WITH(
      sg::divide(x, target, {.microbatches = 4, .ranks = 2}, Loss{}, batch),
      "a minibatch of 13 rows cannot be divided evenly into 4 microbatches for 2 ranks; give it "
      "16, the next multiple, or let Division::ragged drop or pad it");
  CHECK_THROWS_WITH(sg::divide(x, target, {.ranks = 0}, Loss{}, batch),
                    "a minibatch of 13 rows cannot be divided into 1 microbatch for 0 ranks; use "
                    "at least 1 of each");
  CHECK_THROWS_WITH(sg::divide(x, labels(5), {}, Loss{}, batch),
                    "a minibatch has 13 rows, and its target 5; give the target as many, or a "
                    "multiple");
  CHECK_THROWS_WITH(sg::divide(x, target, {.ranks = 2, .ragged = sg::Ragged::pad}, Loss{}, batch),
                    "a cross-entropy that ignores no class cannot leave out rows; give it one that "
                    "the model does not have, CrossEntropy<>{.ignored = -1}");
  sg::Batch<Matrix<double>, Matrix<double>> numbers_batch;
  CHECK_THROWS_WITH(sg::divide(x, x, {.ranks = 2, .ragged = sg::Ragged::pad},
                               sg::loss::MeanSquaredError<double>{}, numbers_batch),
                    "a minibatch cannot be padded for this loss, which has no padding(): a target "
                    "of one row that counts as nothing; use Ragged::drop");
}

}  // namespace divide_test
