// SPDX-License-Identifier: Apache-2.0
// What members of groups send, counted in messages, and between positions.
#include <stagger/engine/groups.hpp>

#include "catch.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>

#include <stagger/host/threads.hpp>
#include <stagger/partition/split_plan.hpp>
#include <stagger/program/traffic.hpp>
#include <stagger/train/describe.hpp>

#include "split_model.hpp"

namespace groups_traffic_test {

using namespace split_model;
using enum sg::TrafficKind;

namespace {

constexpr std::size_t rows = 3;  // of each rank

/// @param ranks  of the first position
Batch<float> even_batch(int microbatches, int ranks) {
  Batch<float> data;
  for (int m = 0; m < microbatches; ++m) {
    std::size_t const all = rows * static_cast<std::size_t>(ranks);
    data.inputs.push_back(numbers<float>(all, inputs, static_cast<std::uint64_t>(m)));
    data.targets.push_back(numbers<float>(all, outputs, static_cast<std::uint64_t>(m)));
  }
  return data;
}

}  // namespace

TEST_CASE("engine/groups: sums take 2 (K - 1) messages, other exchanges K - 1", "[engine]") {
  // For each pass, cut and direction that carries anything. Pairs of layers, for a group of four:
  // modulo, sum and total forward; modulo and sum backward. Without pairs, layers 1 and 4 split:
  // modulo and two times collect forward; modulo and fan backward, where a fan is a sum.
  struct Counted {
    unsigned pattern;
    bool pairs;
    std::uint64_t forward, backward;
  };
  constexpr std::uint64_t passes = 2;
  for (Counted const& of : {Counted{15, true, 3 + 6 + 6, 3 + 6}, {5, false, 3 + 3 + 3, 3 + 6}}) {
    CAPTURE(of.pattern);
    auto train = pipeline<float>(sg::host::Threads{1}, {.pattern = of.pattern,
                                                        .members = 4,
                                                        .pairs = of.pairs,
                                                        .microbatches = static_cast<int>(passes)});
    sg::run(train.step(even_batch(static_cast<int>(passes), 4)));
    auto const traffic = train.traffic();
    for (int rank = 0; rank < 4; ++rank) {
      CHECK(traffic.of(rank, shared_activations).messages == passes * of.forward);
      CHECK(traffic.of(rank, shared_gradients).messages == passes * of.backward);
    }
  }
}

TEST_CASE(
    "engine/groups: where a position begins with the first split layer, what members take is "
    "counted with what passes between positions",
    "[engine]") {
  // The layer before it alone on the first position: each of its ranks sends its rows to all
  // members of the second, one of which it would send them to without groups.
  for (int const members : {2, 3, 4})
    for (bool const pairs : {false, true}) {
      CAPTURE(members, pairs);
      Case const of{.members = members, .pairs = pairs, .cuts = {1}};
      auto train = pipeline<float>(sg::host::Threads{1}, of);
      auto const [plan, layers, numbers_of_layers] = sg::describe(train);
      REQUIRE(plan.exchange(1) == sg::partition::GroupExchange::modulo);
      sg::run(train.step(even_batch(of.microbatches, members)));
      auto const traffic = train.traffic();
      auto const passes = static_cast<std::uint64_t>(of.microbatches);
      auto const k = static_cast<std::uint64_t>(members);
      std::uint64_t const own = passes * rows * 7 * sizeof(float);  // rows of a rank, in front
      for (int member = 0; member < members; ++member) {
        sg::partition::Elements sent;
        for (std::size_t l = 0; l <= layers.size(); ++l) {
          auto const at = sg::partition::elements_sent(plan, l, member, passes * rows);
          sent.forward += at.forward;
          sent.backward += at.backward;
        }
        int const taker = members + member;  // its rank at the second position
        CHECK(traffic.of(member, activations) == sg::TrafficCount{passes * k, k * own});
        CHECK(traffic.of(taker, gradients) == sg::TrafficCount{passes * k, k * own});
        CHECK(traffic.of(member, activations).bytes + traffic.of(taker, shared_activations).bytes ==
              sent.forward * sizeof(float) + own);
        CHECK(traffic.of(taker, gradients).bytes + traffic.of(taker, shared_gradients).bytes ==
              sent.backward * sizeof(float) + own);
        for (auto const kind : {shared_activations, shared_gradients, gradients})
          CHECK(traffic.of(member, kind).messages == 0);
        CHECK(traffic.of(taker, activations).messages == 0);
      }
    }
}

}  // namespace groups_traffic_test
