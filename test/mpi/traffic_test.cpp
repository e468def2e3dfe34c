// SPDX-License-Identifier: Apache-2.0
#include <stagger/mpi/processes.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

#include <stagger/collective/all_reduce.hpp>
#include <stagger/collective/grouping/layerwise.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/partition/even.hpp>
#include <stagger/program/traffic.hpp>
#include <stagger/schedule/chimera.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/train/pipeline.hpp>

#include "catch.hpp"
#include "engine/small_model.hpp"
#include "unit/train/plain_layers.hpp"
#include "world.hpp"

// Runs on as many processes as mpirun starts. Each assertion holds in every process.

namespace traffic_test {

namespace {

namespace plain = plain_layers;
using enum stagger::TrafficKind;
using Count = stagger::TrafficCount;

Count sent;  // by MPI_Isend of this process: messages, and bytes of their payloads

}  // namespace

/// Stands before MPI's own, which the profiling interface gives another name.
extern "C" int MPI_Isend(void const* bytes, int count, MPI_Datatype type, int to, int tag,
                         MPI_Comm processes, MPI_Request* request) {
  constexpr int headers = 0;  // the tag of what precedes each payload
  if (tag == headers)
    ++sent.messages;
  else
    sent.bytes += static_cast<std::uint64_t>(count);
  return PMPI_Isend(bytes, count, type, to, tag, processes, request);
}

namespace {

auto stack(int layers) {
  std::vector<plain::Layer> all;
  for (int l = 0; l < layers; ++l) all.emplace_back(l);
  return stagger::Sequential{std::move(all)};
}

/// Of every step, the traffic is what MPI was given; of the first, besides what the processes agree
/// on.
template <class Trainer, class Batch>
stagger::Traffic train(Trainer& train, Batch const& batch, int steps) {
  for (int step = 0; step < steps; ++step) {
    auto const before = train.traffic().total();
    Count const sent_before = sent;
    stagger::run(train.step(batch));
    Count const counted = train.traffic().total() - before;
    Count const given = sent - sent_before;
    CAPTURE(step, counted.messages, given.messages, counted.bytes, given.bytes);
    if (step != 0) REQUIRE(counted == given);
  }
  return train.traffic();
}

}  // namespace

TEST_CASE("mpi/Processes: traffic() has the messages of this process, each with its bytes",
          "[mpi]") {
  int const last = processes() - 1;
  auto pipeline = stagger::Pipeline{stack(4)}.with(stagger::partition::Even{processes()},
                                                   stagger::schedule::OneFOneB{}, plain::Loss{},
                                                   stagger::mpi::Processes{});
  auto const all = train(pipeline, plain::data(5), 3);
  // The number of the slot, the number of elements, and these.
  Count const values{3 * 5, 3 * 5 * (2 + 8 + plain::width * sizeof(float))};
  for (int rank = 0; rank <= last; ++rank) {
    bool const here = rank == process();
    REQUIRE(all.of(rank, activations) == (here && rank < last ? values : Count{}));
    REQUIRE(all.of(rank, gradients) == (here && rank > 0 ? values : Count{}));
    REQUIRE(all.of(rank, gradient_sums) == Count{});
    REQUIRE((all.of(rank, control) != Count{}) == (here && last != 0));
  }
}

TEST_CASE("mpi/Processes: traffic() of two owners of each stage has gradients and their sums",
          "[mpi]") {
  if (processes() % 2 != 0) return;
  auto pipeline = stagger::Pipeline{stack(4)}.with(stagger::partition::Even{processes()},
                                                   stagger::schedule::Chimera{}, plain::Loss{},
                                                   stagger::mpi::Processes{});
  auto const all = train(pipeline, plain::data(4), 2);
  REQUIRE(all.of(gradient_sums).messages != 0);
  REQUIRE(all.of(process(), gradient_sums) == all.of(gradient_sums));
}

TEST_CASE("mpi/Processes: traffic() of replicas has parts of gradients, sums, or new parameters",
          "[mpi]") {
  using namespace small_model;
  bool const shares = GENERATE(false, true);
  auto pipeline = stagger::Pipeline{stagger::Sequential{Embedding{}, Dense{}}}.with(
      stagger::partition::Even{1},
      stagger::collective::AllReduce<stagger::collective::grouping::Layerwise>{.shard_optimizer =
                                                                                   shares},
      small_model::Loss{}, stagger::optimizer::AdamW{}, stagger::mpi::Processes{},
      stagger::Options{.replicas = {processes()}});
  Batch data;
  for (int m = 0; m < 2; ++m) {
    Tokens rows({4});
    for (std::size_t r = 0; r < 4; ++r) rows[r] = 1;
    data.inputs.push_back(rows);
    data.targets.push_back(rows);
  }
  auto const all = train(pipeline, data, 2);
  auto const count = static_cast<std::uint64_t>(processes());
  auto const here = static_cast<std::uint64_t>(process());
  // Both layers take 128 bytes, of which a process adds up so many pieces of 64.
  auto const part = [&](std::uint64_t of) { return 2 * (of + 1) / count - 2 * of / count; };
  Count sums;  // in two steps, of two layers: 2 bytes say which
  for (std::uint64_t other = 0; other < count; ++other) {
    if (other == here) continue;
    if (part(other) != 0) sums += {4, 4 * (2 + 64 * part(other))};
    if (part(here) != 0 && !shares) sums += {4, 4 * (2 + 64 * part(here))};
  }
  REQUIRE(all.of(process(), gradient_sums) == sums);
  REQUIRE(all.of(gradient_sums) == sums);
  REQUIRE(all.of(activations) == Count{});
  bool const hands_over = shares && count > 1 && part(here) != 0;
  REQUIRE((all.of(process(), parameters) != Count{}) == hands_over);
}

}  // namespace traffic_test
