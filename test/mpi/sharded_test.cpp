// SPDX-License-Identifier: Apache-2.0
#include <stagger/mpi/processes.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

#include <stagger/collective/all_reduce.hpp>
#include <stagger/collective/grouping.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/model/lamb.hpp>
#include <stagger/model/muon.hpp>
#include <stagger/mpi/session.hpp>
#include <stagger/schedule/chimera.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/interleaved.hpp>
#include <stagger/train/footprint.hpp>
#include <stagger/train/pipeline.hpp>

#include "catch.hpp"
#include "engine/row_oracle.hpp"
#include "trap_model.hpp"
#include "world.hpp"

namespace sharded_test {

// Replicas in several processes that keep the optimizer's state of a part of each layer. Each
// assertion holds in every process.

using row_model::Weights;
using namespace small_model;
namespace collective = sg::collective;
namespace grouping = sg::collective::grouping;

namespace {

using Adam = sg::optimizer::AdamW;

template <class G, class O>
auto sharded(collective::AllReduce<G> policy, std::vector<int> cuts, Made schedule,
             sg::Options options, O update, bool shards = true) {
  options.seed = run_seed;
  policy.shard_optimizer = shards;
  return sg::Pipeline{row_model::model()}.with(sg::partition::Cuts{std::move(cuts)},
                                               std::move(schedule), Loss{}, update,
                                               sg::mpi::Processes{}, policy, options);
}

struct Case {
  Made schedule;
  int positions;
  sg::Replicas replicas;
  Weights weights;
  std::size_t rows = 4;
};

using States = std::vector<std::vector<std::byte>>;

template <class Train> States saved(Train& train) {
  train.gather_parameters();
  States all;
  for (auto const& state : train.parameters())
    for (auto const block : {state.value, state.state[0], state.state[1]})
      all.emplace_back(block.begin(), block.end());
  return all;
}
template <class Train> void restore(Train& train, States const& from, std::int64_t steps) {
  std::size_t next = 0;
  for (auto const& state : train.parameters())
    for (auto const block : {state.value, state.state[0], state.state[1]}) {
      REQUIRE(block.size() == from[next].size());
      std::copy(from[next].begin(), from[next].end(), block.begin());
      ++next;
    }
  train.resume(steps);
}

sg::Options with_replicas(sg::Replicas replicas, bool clips = true) {
  sg::Options options;
  options.replicas = std::move(replicas);
  if (clips) options.clip_norm = clip;
  return options;
}

}  // namespace

TEST_CASE("mpi/Processes: an optimizer that is shared out has the bits of loops over the rows",
          "[mpi]") {
  using namespace sg::schedule;
  std::vector<Case> const cases{{made(GPipe{}), 1, {4}, {{1, 1, 1, 1}}},
                                {made(OneFOneB{}), 2, {3, 1}, {{1, 1, 1}, {1}}},
                                {made(OneFOneB{}), 2, {3, 2}, {{1, 1, 1}, {1, 1}}},
                                {made(OneFOneB{}), 2, {{15, 1}, {1, 1}}, {{15, 1}, {1, 1}}, 16},
                                {made(Interleaved{}), 2, {2, 2}, {{1, 1}, {1, 1}}},
                                {made(Chimera{}), 2, {2, 2}, {{1, 1}, {1, 1}}}};
  for (Case const& one : cases) {
    auto const cuts = even_cuts(one.positions * one.schedule.each);
    auto const table = one.schedule.table(
        {.ranks = one.positions, .microbatches = 4, .chunks = one.schedule.each});
    for (bool const clips : {true, false}) {
      std::vector<Batch> data;
      for (int s = 0; s < 4; ++s) data.push_back(row_model::batch(s, 4, one.rows, true));
      auto const course = row_model::expected_course(
          data, clips, orders_of(table, first_layers(cuts)), one.weights);
      auto const check = [&](auto policy, bool gathers) {
        CAPTURE(one.positions, one.schedule.each, clips, gathers);
        auto train =
            sharded(policy, cuts, one.schedule, with_replicas(one.replicas, clips), optimizer());
        for (std::size_t s = 0; s < data.size(); ++s) {
          auto const metrics = sg::run(train.step(data[s]));
          REQUIRE(metrics.loss == course.loss[s]);
          REQUIRE(metrics.gradient_norm == course.norm[s]);
          if (!gathers && s + 1 < data.size()) continue;
          train.gather_parameters();
          REQUIRE(bits(train) == course.bits[s]);
        }
      };
      check(collective::AllReduce<>{.measured_steps = 1}, false);
      check(collective::AllReduce<grouping::Layerwise>{}, true);
      check(collective::AllReduce<grouping::Single>{}, true);
    }
  }
}

TEST_CASE("mpi/Processes: optimizers of whole parameters have the bits of loops over the rows",
          "[mpi]") {
  using namespace sg::schedule;
  std::vector<Case> const cases{{made(GPipe{}), 1, {4}, {{1, 1, 1, 1}}},
                                {made(OneFOneB{}), 2, {3, 2}, {{1, 1, 1}, {1, 1}}},
                                {made(Chimera{}), 2, {2, 2}, {{1, 1}, {1, 1}}}};
  for (Case const& one : cases) {
    auto const cuts = even_cuts(one.positions * one.schedule.each);
    auto const table = one.schedule.table(
        {.ranks = one.positions, .microbatches = 4, .chunks = one.schedule.each});
    std::vector<Batch> data;
    for (int s = 0; s < 3; ++s) data.push_back(row_model::batch(s, 4, one.rows, true));
    auto const check = [&](auto const& update, bool shards, bool clips) {
      auto const course =
          row_model::expected_course(data, clips, orders_of(table, first_layers(cuts)), one.weights,
                                     row_model::AnyOptimizer::of(update));
      CAPTURE(one.positions, one.schedule.each, clips, shards);
      auto train = sharded(collective::AllReduce<grouping::Layerwise>{}, cuts, one.schedule,
                           with_replicas(one.replicas, clips), update, shards);
      for (std::size_t s = 0; s < data.size(); ++s) {
        auto const metrics = sg::run(train.step(data[s]));
        REQUIRE(metrics.loss == course.loss[s]);
        REQUIRE(metrics.gradient_norm == course.norm[s]);
        train.gather_parameters();
        REQUIRE(bits(train) == course.bits[s]);
      }
    };
    check(sg::optimizer::Lamb{.rate = 0.05}, true, true);
    check(sg::optimizer::Lamb{.rate = 0.05}, false, false);
    check(sg::optimizer::Muon{.rate = 0.05}, true, false);
  }
}

namespace {

/// A parameter that is larger than what is saved at once before an update. It changes no output.
struct Large {
  using Input = Matrix;
  using Output = Matrix;
  static constexpr std::size_t size = 20000;
  sg::Parameter<> weight{"weight", numbers(9, size)};
  auto parameters() { return std::tie(weight); }
  void forward(sg::Context&, Matrix const& x, Matrix& y, sg::NothingSaved&) { y = x; }
  void backward(sg::Context& context, Matrix const&, Matrix const& dy, Matrix& dx,
                sg::NothingSaved&) {
    dx = dy;
    auto const dw = context.gradient(weight);
    for (std::size_t i = 0; i < size; ++i) dw[i] += dy[i % dy.size()];
  }
};

}  // namespace

TEST_CASE("mpi/Processes: a large parameter is updated whole, though its state is shared out",
          "[mpi]") {
  auto const course = [](bool shards) {
    auto train = sg::Pipeline{sg::Sequential{Embedding{}, Large{}, Dense{}}}.with(
        sg::partition::Cuts{}, made(sg::schedule::GPipe{}), Loss{}, sg::optimizer::Lamb{},
        sg::mpi::Processes{}, collective::AllReduce<>{.shard_optimizer = shards},
        with_replicas({4}));
    for (int s = 0; s < 2; ++s) sg::run(train.step(row_model::batch(s, 2, 4, true)));
    return saved(train);
  };
  CHECK(course(true) == course(false));
}

TEST_CASE("mpi/Processes: momentum that is shared out has the bits of whole momentum", "[mpi]") {
  auto const course = [](bool shards) {
    auto train =
        sharded(collective::AllReduce<grouping::Layerwise>{}, {4}, made(sg::schedule::OneFOneB{}),
                with_replicas({2, 2}), sg::optimizer::Sgd{.rate = 0.05, .momentum = 0.9}, shards);
    for (int s = 0; s < 4; ++s) sg::run(train.step(row_model::batch(s, 2, 4, true)));
    return saved(train);
  };
  CHECK(course(true) == course(false));
}

TEST_CASE("mpi/Processes: each process has the optimizer's state of the parts that it updates",
          "[mpi]") {
  auto const make = [](bool shards) {
    return sharded(collective::AllReduce<grouping::Single>{}, {4}, made(sg::schedule::OneFOneB{}),
                   with_replicas({2, 2}), Adam{}, shards);
  };
  auto whole = make(false);
  auto train = make(true);
  CHECK(train.memory().optimizer_state == 0);  // nobody knows yet who updates what
  for (int s = 0; s < 2; ++s) {
    sg::run(whole.step(row_model::batch(s, 2, 4, true)));
    sg::run(train.step(row_model::batch(s, 2, 4, true)));
    train.gather_parameters();
  }
  sg::run(train.step(row_model::batch(2, 2, 4, true)));
  sg::Footprint footprint;
  for (auto const& state : whole.parameters()) {
    auto const layer = static_cast<std::size_t>(std::stoi(state.name));
    footprint.layers.resize(std::max(footprint.layers.size(), layer + 1));
    footprint.layers[layer].first_bytes.push_back(footprint.layers[layer].parameters);
    footprint.layers[layer].parameters += (state.value.size() + 63) / 64 * 64;
  }
  std::uint64_t all = 0;
  for (auto const& layer : footprint.layers) all += 2 * layer.parameters;
  CHECK(whole.memory().optimizer_state == all);
  std::uint64_t const here = train.memory().optimizer_state;
  std::uint64_t sum = 0;
  MPI_Allreduce(&here, &sum, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
  CHECK(sum == all);
  static_cast<void>(train.parameters());  // like `whole`, which has been looked at
  // It remembers what values and state of its part were before the step.
  CHECK(whole.memory().parameters - train.memory().parameters == all - here - (here / 2 + here));
  // Values, the gradients of its own ranks and what it adds up of those of others, to the byte.
  std::vector<int> const cuts{4};
  std::vector<int> ranks;  // as they are spread by default
  for (int r = 0; r < 4; ++r)
    if (r * processes() / 4 == process()) ranks.push_back(r);
  auto const check = [&](bool shards, auto const& update) {
    // No process has looked at parameters of others.
    auto fresh = sharded(collective::AllReduce<grouping::Single>{}, {4},
                         made(sg::schedule::OneFOneB{}), with_replicas({2, 2}), update, shards);
    for (int s = 0; s < 2; ++s) sg::run(fresh.step(row_model::batch(s, 2, 4, true)));
    auto const predicted = sg::predicted_parameters(fresh.program(2), cuts, update.states, ranks,
                                                    footprint, shards, update.element_wise);
    CHECK(fresh.memory().parameters == predicted.parameters);
    CHECK(fresh.memory().optimizer_state == predicted.optimizer_state);
    std::uint64_t of_stages = 0;
    for (auto const& rank : fresh.machine().ranks()) of_stages += rank.context.scratch_bytes();
    CHECK(fresh.memory().scratch == predicted.scratch + of_stages);
  };
  for (bool const shards : {false, true}) {
    check(shards, Adam{});
    check(shards, sg::optimizer::Lamb{});
  }
}

TEST_CASE("mpi/Processes: shared out state goes on from a checkpoint, also with other replicas",
          "[mpi]") {
  auto const make = [](sg::Replicas replicas, std::vector<int> cuts, bool shards) {
    return sharded(collective::AllReduce<>{.measured_steps = 1}, std::move(cuts),
                   made(sg::schedule::OneFOneB{}), with_replicas(std::move(replicas)), Adam{},
                   shards);
  };
  auto const steps = [](auto& train, int from, int to) {
    for (int s = from; s < to; ++s) sg::run(train.step(row_model::batch(s, 2, 4, true)));
  };
  auto train = make({4}, {}, true);
  steps(train, 0, 3);
  auto const checkpoint = saved(train);
  steps(train, 3, 5);
  auto const end = saved(train);

  auto again = make({4}, {}, true);
  restore(again, checkpoint, 3);
  sg::run(again.evaluate(row_model::batch(9, 2, 4, true)));  // changes nothing
  steps(again, 3, 5);
  CHECK(saved(again) == end);

  auto other = make({2, 3}, {3}, true);
  auto whole = make({2, 3}, {3}, false);
  restore(other, checkpoint, 3);
  restore(whole, checkpoint, 3);
  steps(other, 3, 5);
  steps(whole, 3, 5);
  CHECK(saved(other) == saved(whole));
}

TEST_CASE("mpi/Processes: a step that fails leaves shared out state as it was", "[mpi]") {
  sg::Options options;
  options.replicas = {std::max(2, processes())};
  options.clip_norm = 0.1;
  auto const made = [&] {
    return trap_model::one_stage().with(
        sg::partition::Cuts{}, trap_model::RowSum{}, sg::mpi::Processes{}, Adam{},
        collective::AllReduce<grouping::Layerwise>{.shard_optimizer = true}, options);
  };
  auto train = made();
  auto undisturbed = made();
  sg::Batch<trap_model::Numbers, trap_model::Numbers> const data{{{1, 2, 3, 4}, {5, 6, 7, 8}},
                                                                 {{4, 3, 2, 1}, {8, 7, 6, 5}}};
  for (int const layer : {0, 5, 2}) {
    auto const before = saved(train);
    if (process() == processes() - 1)
      trap_model::trap = {layer, 1, true, [] { throw std::runtime_error("no such word"); }};
    CHECK_THROWS_WITH(sg::run(train.step(data)), Catch::EndsWith("no such word"));
    trap_model::trap = {};
    CHECK(saved(train) == before);
    sg::run(train.step(data));
    sg::run(undisturbed.step(data));
    CHECK(saved(train) == saved(undisturbed));
  }
}

TEST_CASE("mpi/Processes: without replicas there is nothing to share the optimizer's state out to",
          "[mpi]") {
  auto const words = "AllReduce::shard_optimizer shares the optimizer's state out to the replicas";
  for (auto const& schedule : {made(sg::schedule::GPipe{}), made(sg::schedule::Chimera{})})
    CHECK_THROWS_WITH(sharded(collective::AllReduce<>{}, even_cuts(4), schedule, {}, Adam{}, true),
                      Catch::StartsWith(words));
}

TEST_CASE("mpi/Processes: one that shares out its optimizer and one that does not do not train",
          "[mpi]") {
  if (processes() == 1) return;
  try {
    auto train = sharded(collective::AllReduce<>{}, {}, made(sg::schedule::GPipe{}),
                         with_replicas({4}), Adam{}, process() != 0);
    FAIL("they did");
  } catch (sg::Error const& error) {
    CHECK(error.code() == sg::Errc::mismatch);
    CHECK_THAT(error.what(), Catch::StartsWith("ranks disagree on AllReduce::shard_optimizer"));
  }
}

}  // namespace sharded_test
