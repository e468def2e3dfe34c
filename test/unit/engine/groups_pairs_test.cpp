// SPDX-License-Identifier: Apache-2.0
#include <stagger/engine/groups.hpp>

#include "catch.hpp"

#include <array>
#include <cstddef>

#include <stagger/host/threads.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/train/pipeline.hpp>

#include "split_model.hpp"

namespace groups_pairs_test {

using namespace split_model;

namespace {

/// A step beside one device, and in virtual time.
template <class T> double apart(Case const& of, int threads) {
  auto train = pipeline<T>(sg::host::Threads{threads}, of);
  auto clocked =
      pipeline<T>(sg::sim::VirtualClock{.exchange = {0.25, 1e-3}, .jitter = 0.5, .seed = 3}, of);
  auto one = one_device<T>(of);
  auto const data = batch<T>(0, of.microbatches, 17);
  double const loss = sg::run(train.step(data)).loss;
  CHECK(loss == Approx(one.step(data).loss).epsilon(sizeof(T) == 4 ? 1e-5 : 1e-12));
  CHECK(loss == sg::run(clocked.step(data)).loss);
  CHECK(bits(train) == bits(clocked));
  return difference<T>(train, one);  // of values and of the momentum, which is the gradient
}

}  // namespace

TEST_CASE("engine/groups: whichever two options meet, the gradients of one device", "[engine]") {
  for (Choice const& choice : choices()) {
    Case const of = case_of(choice);
    int const threads = std::array{1, 2, 4}[choice.back()];
    CAPTURE(choice, threads);
    REQUIRE(apart<double>(of, threads) < 1e-12);
    REQUIRE(apart<float>(of, threads) < 1e-5);
  }
}

}  // namespace groups_pairs_test
