// SPDX-License-Identifier: Apache-2.0
#include <stagger/engine/trainer.hpp>

#include "catch.hpp"

#include <concepts>
#include <cstddef>
#include <utility>
#include <vector>

#include <stagger/collective/grouped.hpp>
#include <stagger/collective/grouping/layerwise.hpp>
#include <stagger/partition/even.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/interleaved.hpp>
#include <stagger/schedule/pipe_dream.hpp>
#include <stagger/staleness/weight_stashing.hpp>

#include "typed_oracle.hpp"

using namespace small_model;

namespace {

template <class... P>
using With = decltype(sg::Pipeline{model()}.with(Loss{}, optimizer(), std::declval<P>()...));

/// All ranks on the last place.
struct Last {
  using policy_tag = sg::PlacementTag;
  [[nodiscard]] std::vector<int> place(int ranks, int places) const {
    return std::vector<int>(static_cast<std::size_t>(ranks), places - 1);
  }
};

// Staleness is seen: a synchronous trainer takes steps, the other one streams.
static_assert(std::same_as<With<>, Trainer>);
static_assert(std::same_as<With<sg::schedule::PipeDream, sg::staleness::WeightStashing>,
                           sg::Trainer<Tokens, Matrix, sg::optimizer::AdamW, Loss, false>>);

}  // namespace

TEST_CASE("engine/Trainer: schedule, cuts, placement, grouping and device are chosen at run time",
          "[engine]") {
  auto const cut = sg::partition::Even{4};
  std::vector<Batch> data;
  for (int s = 0; s < 3; ++s) data.push_back(batch(s, 4, true));
  auto const course = expected_course(data, false);
  auto const made = [&](int choice) -> Trainer {
    auto const whole = sg::Pipeline{model()};
    sg::Options const seeded{.seed = run_seed};
    switch (choice) {
      case 0:
        return whole.with(Loss{}, optimizer(), seeded);
      case 1:
        return whole.with(cut, sg::schedule::GPipe{}, Loss{}, optimizer(), seeded, Last{},
                          sg::host::Threads{3});
      case 2:
        return whole.with(cut, sg::schedule::Interleaved{}, Loss{}, optimizer(), seeded,
                          sg::sim::VirtualClock{});
      default:
        return whole.with(cut, Loss{}, optimizer(), seeded, sg::host::Threads{2},
                          sg::collective::Grouped<sg::collective::grouping::Layerwise>{});
    }
  };
  std::vector<Trainer> trainers;
  for (int choice = 0; choice < 4; ++choice) trainers.push_back(made(choice));
  std::vector<int> stages;
  for (Trainer& train : trainers) {
    stages.push_back(train.stages());
    CHECK(first_difference(train, data, course) == -1);
  }
  CHECK(stages == std::vector{1, 4, 4, 4});

  // One in the place of another: the one that was there is gone, with all that it kept.
  trainers[0] = made(1);
  CHECK(trainers[0].stages() == 4);
  CHECK(trainers[0].steps() == 0);
  Trainer moved = std::move(trainers[0]);
  moved.optimizer().rate = 0;
  auto const values = [&] {
    std::vector<std::byte> all;
    for (auto const& state : moved.parameters())
      all.insert(all.end(), state.value.begin(), state.value.end());
    return all;
  };
  auto const before = values();
  sg::run(moved.step(data[0]));
  CHECK(moved.steps() == 1);
  CHECK(values() == before);
}
