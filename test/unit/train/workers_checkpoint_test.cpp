// SPDX-License-Identifier: Apache-2.0
#include <stagger/train/checkpoint.hpp>

#include "catch.hpp"

#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/staleness/synchronous.hpp>
#include <stagger/train/pipeline.hpp>

#include "temporary_folder.hpp"
#include "workers_oracle.hpp"

namespace workers_checkpoint_test {

namespace {

using namespace workers_oracle;

sg::CheckpointState state(std::int64_t step) { return {step, 1, "four layers", ""}; }

/// The values of a worker's checkpoint, one vector for each layer.
/// @param like  a worker of the same model and optimizer
template <class Trainer>
std::vector<Numbers> values_in(sg::Checkpoints const& checkpoints, Trainer& like) {
  std::vector<Numbers> values;
  std::vector<std::vector<std::byte>> states;
  std::vector<sg::ParameterState> parameters;
  for (auto const& its : like.parameters()) values.emplace_back(its.value.size() / sizeof(float));
  std::size_t l = 0;
  for (auto const& its : like.parameters()) {
    sg::ParameterState own;
    own.name = its.name;
    own.type = its.type;
    own.value = std::as_writable_bytes(std::span(values[l++]));
    for (std::size_t s = 0; s < its.state.size(); ++s)
      if (!its.state[s].empty()) own.state[s] = states.emplace_back(its.state[s].size());
    parameters.push_back(std::move(own));
  }
  (void)checkpoints.restore("four layers", parameters);
  return values;
}

/// A worker in step whose layers begin with these values.
auto beginning_with(std::vector<Numbers> const& values,
                    sg::collective::ParameterServer const& server, int worker) {
  std::vector<Layer> stack;
  for (int l = 0; l < layers; ++l) {
    stack.emplace_back(l);
    stack.back().weight = sg::Parameter<>("weight", values[static_cast<std::size_t>(l)]);
  }
  return sg::Pipeline{sg::Sequential{std::move(stack)}}.with(
      sg::partition::Cuts{{2}}, sg::staleness::Synchronous{}, server.worker(worker), Loss{},
      sg::optimizer::Sgd{.rate = 0.1}, sg::host::Threads{2});
}

}  // namespace

TEST_CASE("train/Checkpoints: a worker's values begin a new server, which goes on to the bit",
          "[train]") {
  TemporaryFolder const folder;
  sg::Checkpoints const checkpoints(folder.path());
  auto const batch = data(2);
  std::vector<Numbers> begin;
  for (int l = 0; l < layers; ++l) begin.push_back(initial(l));
  sg::collective::ParameterServer const server({.workers = 2});
  auto a = beginning_with(begin, server, 0);
  auto b = beginning_with(begin, server, 1);
  for (int step = 0; step < 3; ++step) sg::run_together(a.step(batch), b.step(batch));
  checkpoints.write(state(3), b);
  auto const restored = values_in(checkpoints, a);
  REQUIRE(restored == weights(a));

  sg::collective::ParameterServer const next({.workers = 2});
  auto c = beginning_with(restored, next, 0);
  auto d = beginning_with(restored, next, 1);
  for (int step = 0; step < 2; ++step) {
    sg::run_together(a.step(batch), b.step(batch));
    sg::run_together(c.step(batch), d.step(batch));
  }
  CHECK(weights(c) == weights(a));
  CHECK(weights(d) == weights(a));
}

TEST_CASE("train/Checkpoints: one of a worker with late layers has what all workers have",
          "[train]") {
  TemporaryFolder const folder;
  sg::Checkpoints const checkpoints(folder.path());
  auto const batch = data(2);
  sg::collective::ParameterServer const server({.workers = 2});
  auto a = stepping(split_late, server, 0, adam);
  auto b = stepping(split_late, server, 1, adam, {1});
  for (int step = 0; step < 3; ++step) sg::run_together(a.step(batch), b.step(batch));
  checkpoints.write(state(3), a);
  auto const written = values_in(checkpoints, a);
  CHECK(written == weights(b));
  TemporaryFolder const other;
  sg::Checkpoints const of_b(other.path());
  of_b.write(state(3), b);
  CHECK(values_in(of_b, b) == written);
}

TEST_CASE("train/Checkpoints: refuses to restore into a worker", "[train]") {
  TemporaryFolder const folder;
  sg::Checkpoints const checkpoints(folder.path());
  sg::collective::ParameterServer const server({.workers = 1});
  auto a = stepping(sg::staleness::Synchronous{}, server, 0, sgd);
  checkpoints.write(state(0), a);
  CHECK_THROWS_WITH(checkpoints.restore("four layers", a),
                    Catch::Matchers::Contains("a checkpoint cannot be restored into a worker"));
}

}  // namespace workers_checkpoint_test
