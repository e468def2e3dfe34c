// SPDX-License-Identifier: Apache-2.0
#include <stagger/train/pipeline.hpp>

#include "catch.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <stagger/host/threads.hpp>
#include <stagger/program/program.hpp>
#include <stagger/schedule/fifo.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/pipe_dream.hpp>
#include <stagger/schedule/pipe_dream_2bw.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/staleness/delayed.hpp>
#include <stagger/staleness/double_buffered.hpp>
#include <stagger/staleness/local_sgd.hpp>
#include <stagger/staleness/stale_synchronous.hpp>
#include <stagger/staleness/wave_synchronous.hpp>
#include <stagger/staleness/weight_stashing.hpp>

#include "train/plain_layers.hpp"

namespace streams_test {

namespace sg = stagger;

namespace {

using namespace plain_layers;

sg::optimizer::AdamW const adam{.rate = 0.05, .weight_decay = 0.1};

/// Keeps every version of every stage and never runs two minibatches at once.
/// @param version  (stage, minibatch) -> how many updates the weights contain that it sees
std::vector<Numbers> sequential(int stages, Batch const& batch, int microbatches,
                                std::function<int(int, int)> const& version) {
  auto const P = static_cast<std::size_t>(stages);
  std::vector<std::vector<Numbers>> weights(P);  // [stages][versions]
  std::vector<Numbers> first(P, Numbers(width * width + width));
  std::vector<Numbers> second = first;
  for (std::size_t s = 0; s < P; ++s) weights[s].push_back(initial(static_cast<int>(s)));
  int const minibatches = static_cast<int>(batch.inputs.size()) / microbatches;
  sg::Context context;
  for (int k = 0; k < minibatches; ++k) {
    std::vector<Numbers> gradient(P, Numbers(width * width + width));
    for (int m = k * microbatches; m < (k + 1) * microbatches; ++m) {
      std::vector<Numbers> value{batch.inputs[static_cast<std::size_t>(m)]};
      for (std::size_t s = 0; s < P; ++s) {
        auto const& w = weights[s][static_cast<std::size_t>(version(static_cast<int>(s), k))];
        value.emplace_back();
        forward(w, value[s], value[s + 1]);
      }
      Numbers dy;
      Loss{}.value_and_gradient(
          context, value.back(), batch.targets[static_cast<std::size_t>(m)],
          1.0 / static_cast<double>(width * static_cast<std::size_t>(microbatches)), dy);
      for (std::size_t s = P; s-- > 0;) {
        auto const& w = weights[s][static_cast<std::size_t>(version(static_cast<int>(s), k))];
        Numbers dx;
        backward(w, value[s], value[s + 1], dy, dx, gradient[s].data());
        dy = dx;
      }
    }
    for (std::size_t s = 0; s < P; ++s) {
      Numbers next(width * width + width);
      sg::OptimizerView<float> view;
      view.value = weights[s].back().data();
      view.next = next.data();
      view.gradient = gradient[s].data();
      view.state = {first[s].data(), second[s].data()};
      view.size = next.size();
      adam.update(view, 1, k + 1);
      weights[s].push_back(next);
    }
  }
  std::vector<Numbers> last;
  for (auto const& versions : weights) last.push_back(versions.back());
  return last;
}

template <class Schedule, class Staleness, class Device>
auto make(int stages, Schedule schedule, Staleness staleness, Device device, int fail_at = -1) {
  std::vector<Layer> layers;
  for (int s = 0; s < stages; ++s) layers.emplace_back(s);
  layers.back().fail_at = fail_at;
  return sg::Pipeline{std::move(layers)}.with(schedule, staleness, Loss{}, adam, device);
}

}  // namespace

TEST_CASE("staleness/WeightStashing: PipeDream has the bits of an oracle that keeps every version",
          "[staleness]") {
  for (int const P : {1, 2, 3, 4}) {
    for (int const N : {1, 2, 5, 16}) {
      CAPTURE(P, N);
      auto const batch = data(N);
      sg::schedule::PipeDream const schedule;
      auto const table = schedule.table({P, N, 1});
      auto const expected = sequential(
          P, batch, 1, [&](int stage, int m) { return updates_before(table, stage, m); });
      on_each_device([&](auto device) {
        auto train = make(P, schedule, sg::staleness::WeightStashing{}, device);
        sg::run(train.stream(batch));
        CHECK(weights(train) == expected);
        CHECK(train.steps() == N);
        auto const& program = train.program(static_cast<std::size_t>(N));
        for (auto const& cell : program.cells) {  // P - r versions, as many as are in flight
          CHECK(static_cast<int>(cell.versions) <= std::min(P - cell.rank, N));
          if (N >= 3 * P) CHECK(static_cast<int>(cell.versions) == P - cell.rank);
        }
      });
    }
  }
}

TEST_CASE(
    "staleness/Delayed: Fifo has the bits of descent that is Nm - 1 updates late at every stage",
    "[staleness]") {
  for (int const P : {1, 2, 3, 4}) {
    for (int const Nm : {1, 2, 3, 5}) {
      CAPTURE(P, Nm);
      int const N = 12;
      auto const batch = data(N);
      auto const expected =
          sequential(P, batch, 1, [&](int, int m) { return std::max(0, m + 1 - Nm); });
      for (auto const& costs :
           {sg::schedule::Costs::uniform(1, 1, 1), sg::schedule::Costs::uniform(1, 2, 2, 0.7)}) {
        on_each_device([&](auto device) {
          bool const given = costs.each.transfer_s == 0;  // otherwise it follows the schedule
          auto train = make(P, sg::schedule::Fifo{Nm, costs},
                            sg::staleness::Delayed{given ? Nm : 0}, device);
          sg::run(train.stream(batch));
          CHECK(weights(train) == expected);
        });
      }
    }
  }
}

TEST_CASE(
    "staleness/DoubleBuffered: PipeDream-2BW has the bits of descent one update late, with two "
    "versions",
    "[staleness]") {
  for (int const P : {1, 2, 4}) {
    for (int const m : {P, P + 1, 2 * P}) {
      CAPTURE(P, m);
      auto const batch = data(5 * m);
      auto const expected = sequential(P, batch, m, [](int, int k) { return std::max(0, k - 1); });
      on_each_device([&](auto device) {
        auto train =
            make(P, sg::schedule::PipeDream2BW{}, sg::staleness::DoubleBuffered{m}, device);
        sg::run(train.stream(batch));
        CHECK(weights(train) == expected);
        CHECK(train.steps() == 5);
        for (auto const& cell : train.program(batch.inputs.size()).cells) CHECK(cell.versions <= 2);
      });
    }
  }
}

TEST_CASE(
    "staleness/streams: streams follow one another, and an error brings back what was before its "
    "stream",
    "[staleness]") {
  auto const batch = data(6);
  auto train =
      make(3, sg::schedule::PipeDream{}, sg::staleness::WeightStashing{}, sg::host::Threads{2});
  sg::run(train.stream(batch));
  auto const once = weights(train);
  sg::run(train.stream(batch));
  CHECK(train.steps() == 12);
  CHECK(weights(train) != once);

  auto broken =
      make(3, sg::schedule::PipeDream{}, sg::staleness::WeightStashing{}, sg::host::Threads{2}, 4);
  auto const before = weights(broken);
  CHECK_THROWS_WITH(sg::run(broken.stream(batch)), "out of ink");
  CHECK(weights(broken) == before);
  CHECK(broken.steps() == 0);
  Batch short_batch = data(4);
  sg::run(broken.stream(short_batch));
  auto fresh =
      make(3, sg::schedule::PipeDream{}, sg::staleness::WeightStashing{}, sg::host::Threads{1});
  sg::run(fresh.stream(short_batch));
  CHECK(weights(broken) == weights(fresh));
}

namespace {

/// What the context says in each forward pass.
struct Seeds {
  using Input = Numbers;
  using Output = Numbers;
  struct Seen {
    std::int64_t step;
    std::uint64_t seed;
    friend bool operator==(Seen const&, Seen const&) = default;
  };
  std::vector<Seen>* seen = nullptr;
  void forward(sg::Context& context, Input const& x, Output& y, sg::NothingSaved&) {
    seen->push_back({context.step(), context.random_seed()});
    y = x;
  }
  void backward(sg::Context&, Input const&, Output const& dy, Input& dx, sg::NothingSaved&) {
    dx = dy;
  }
};

}  // namespace

TEST_CASE(
    "staleness/streams: steps and random numbers of a stream do not depend on how a run is cut "
    "into "
    "streams",
    "[staleness]") {
  auto const run_in = [](std::vector<int> const& lengths, auto schedule, auto model) {
    std::vector<Seeds::Seen> seen;
    auto train = sg::Pipeline{Seeds{&seen}}.with(schedule, model, Loss{}, sg::host::Threads{1});
    auto const all = data(8);
    std::size_t at = 0;
    for (int const length : lengths) {
      Batch part;
      for (int i = 0; i < length; ++i, ++at) {
        part.inputs.push_back(all.inputs[at]);
        part.targets.push_back(all.targets[at]);
      }
      run(train.stream(part));
    }
    return seen;
  };
  auto const whole = run_in({8}, sg::schedule::Fifo{1}, sg::staleness::WeightStashing{});
  REQUIRE(whole == run_in({3, 5}, sg::schedule::Fifo{1}, sg::staleness::WeightStashing{}));
  REQUIRE(whole[7].step == 7);
  REQUIRE(whole[0].seed != whole[1].seed);
  auto const pairs = run_in({8}, sg::schedule::PipeDream2BW{},
                            sg::staleness::DoubleBuffered{.microbatches_per_minibatch = 2});
  REQUIRE(pairs == run_in({2, 6}, sg::schedule::PipeDream2BW{},
                          sg::staleness::DoubleBuffered{.microbatches_per_minibatch = 2}));
  REQUIRE(pairs[7].step == 3);
  REQUIRE(pairs[6].seed != pairs[7].seed);
}

TEST_CASE("staleness/streams: what cannot be is refused in one sentence", "[staleness]") {
  auto uneven =
      make(2, sg::schedule::PipeDream2BW{}, sg::staleness::DoubleBuffered{4}, sg::host::Threads{1});
  auto const nine = data(9);
  CHECK_THROWS_WITH(uneven.stream(nine),
                    Catch::Contains("9 microbatches") && Catch::Contains("minibatches of 4"));
  // Four microbatches in flight cannot all see weights one update old when every microbatch
  // updates.
  auto eager = make(4, sg::schedule::PipeDream{}, sg::staleness::Delayed{1}, sg::host::Threads{1});
  auto const eight = data(8);
  CHECK_THROWS_WITH(eager.stream(eight), Catch::Contains("fewer microbatches in flight"));
  auto fits = make(4, sg::schedule::PipeDream{}, sg::staleness::Delayed{}, sg::host::Threads{1});
  auto as_many = make(4, sg::schedule::Fifo{}, sg::staleness::Delayed{}, sg::host::Threads{1});
  auto four = make(4, sg::schedule::Fifo{}, sg::staleness::Delayed{4}, sg::host::Threads{1});
  sg::run(fits.stream(eight));
  sg::run(as_many.stream(eight));
  sg::run(four.stream(eight));
  CHECK(weights(as_many) == weights(four));
  CHECK(weights(fits) == weights(four));
  CHECK_THROWS_WITH(
      (sg::Pipeline{Layer{0}}.with(sg::schedule::PipeDream{}, sg::staleness::WeightStashing{},
                                   Loss{}, sg::Options{.clip_norm = 1.0})),
      Catch::Contains("clip_norm"));
}

TEST_CASE("staleness/policies: each number is looked at by itself", "[staleness]") {
  constexpr int least = std::numeric_limits<int>::min();
  constexpr int most = std::numeric_limits<int>::max();
  for (int const number : {least, -1, 0, 1, most}) {
    CAPTURE(number);
    auto const refuses = [](auto const& policy, char const* words) {
      CHECK_THROWS_WITH(policy.check(), Catch::Contains(words));
    };
    if (number < 0) {
      refuses(sg::staleness::StaleSynchronous{number}, "StaleSynchronous::bound be at least 0");
      refuses(sg::staleness::WaveSynchronous{1, number}, "distance be at least 0");
    } else {
      sg::staleness::StaleSynchronous{number}.check();
      CHECK(sg::staleness::StaleSynchronous{number}.needs(most) == most - number);
      sg::staleness::WaveSynchronous const far{1, number};
      far.check();
      CHECK(far.needs(0) == 0);
    }
    if (number < 1) {
      refuses(sg::staleness::Delayed{number}, "Delayed::in_flight be at least 1");
      refuses(sg::staleness::DoubleBuffered{number}, "microbatches_per_minibatch be at least");
      refuses(sg::staleness::LocalSgd{number}, "LocalSgd::period be at least 1");
      refuses(sg::staleness::WaveSynchronous{number}, "in_flight be at least 1");
    } else {
      CHECK(sg::staleness::Delayed{number}.version(0, 0) == 0);
      CHECK(sg::staleness::WaveSynchronous{number}.needs(0) == 0);
    }
  }
  sg::Program program;
  program.updates = program.push_minibatches = most;
  CHECK(program.pushes() == 1);
  program.push_minibatches = 2;
  CHECK(program.pushes() == 1U << 30U);
}

}  // namespace streams_test
