// SPDX-License-Identifier: Apache-2.0
#include <stagger/train/pipeline.hpp>

#include "catch.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <stagger/collective/all_reduce.hpp>
#include <stagger/collective/grouping/layerwise.hpp>
#include <stagger/collective/grouping/single.hpp>
#include <stagger/collective/parameter_server.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/partition/cuts.hpp>
#include <stagger/partition/even.hpp>
#include <stagger/program/traffic.hpp>
#include <stagger/schedule/chimera.hpp>
#include <stagger/schedule/fifo.hpp>
#include <stagger/schedule/interleaved.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/schedule/v_half.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/staleness/local_sgd.hpp>
#include <stagger/staleness/overlapped_synchronous.hpp>
#include <stagger/staleness/wave_synchronous.hpp>

#include "engine/small_model.hpp"
#include "plain_layers.hpp"

namespace traffic_test {

namespace {

namespace sg = stagger;
namespace plain = plain_layers;
using enum sg::TrafficKind;
using Count = sg::TrafficCount;

constexpr std::uint64_t value =
    plain::width * sizeof(float);  // of plain layers, from one to the next
constexpr std::uint64_t weights = (plain::width + 1) * value;  // of one of them
constexpr std::uint64_t kept = 64;                             // in memory, with the gap behind it

auto stack(int layers) {
  std::vector<plain::Layer> all;
  for (int l = 0; l < layers; ++l) all.emplace_back(l);
  return sg::Sequential{std::move(all)};
}

Count times(std::uint64_t messages, std::uint64_t bytes) { return {messages, messages * bytes}; }

void require_nothing_else(sg::Traffic const& all, std::initializer_list<sg::TrafficKind> kinds) {
  Count sum;
  for (auto const kind : kinds) sum += all.of(kind);
  REQUIRE(all.total() == sum);
}

}  // namespace

TEMPLATE_TEST_CASE("train/Trainer: traffic() has one message for each value between ranks",
                   "[train]", sg::host::Threads, sg::sim::VirtualClock) {
  auto train = sg::Pipeline{stack(4)}.with(sg::partition::Even{4}, sg::schedule::OneFOneB{},
                                           plain::Loss{}, TestType{});
  REQUIRE(train.traffic().ranks() == 4);
  REQUIRE(train.traffic().total() == Count{});
  auto const batch = plain::data(5);
  for (std::uint64_t step = 1; step < 4; ++step) {
    sg::run(train.step(batch));
    auto const all = train.traffic();
    for (int rank = 0; rank < 4; ++rank) {
      REQUIRE(all.of(rank, activations) == times(rank < 3 ? 5 * step : 0, value));
      REQUIRE(all.of(rank, gradients) == times(rank > 0 ? 5 * step : 0, value));
    }
    require_nothing_else(all, {activations, gradients});
  }
  auto const trained = train.traffic();
  sg::run(train.evaluate(batch));
  std::vector<plain::Numbers> outputs(5);
  sg::run(train.predict(batch.inputs, outputs));
  sg::run(train.step(plain::data(2)));
  auto const since = train.traffic() - trained;
  REQUIRE(since.of(1, activations) == times(5 + 5 + 2, value));
  REQUIRE(since.of(1, gradients) == times(2, value));
}

TEST_CASE("train/Trainer: traffic() leaves out what stays on a rank, and steps that fail",
          "[train]") {
  auto layers = std::vector<plain::Layer>();
  for (int l = 0; l < 4; ++l) layers.emplace_back(l);
  layers[3].fail_at = 3;
  auto train = sg::Pipeline{sg::Sequential{std::move(layers)}}.with(
      sg::partition::Even{4}, sg::schedule::VHalf{}, plain::Loss{}, sg::host::Threads{2});
  REQUIRE(train.ranks() == 2);  // stages 0 and 3, 1 and 2
  sg::run(train.step(plain::data(3)));
  REQUIRE(train.traffic().of(0, activations) == times(3, value));
  REQUIRE(train.traffic().of(1, activations) == times(3, value));
  REQUIRE(train.traffic().of(0, gradients) == times(3, value));
  REQUIRE(train.traffic().of(1, gradients) == times(3, value));
  REQUIRE_THROWS(sg::run(train.step(plain::data(4))));
  REQUIRE(train.traffic().total() == times(12, value));
}

TEST_CASE("train/Trainer: traffic() counts each microbatch with its own size", "[train]") {
  using namespace small_model;
  constexpr int microbatches = 9;
  auto make = [](auto device) {
    return sg::Pipeline{model()}.with(sg::partition::Cuts{{2, 4}}, sg::schedule::OneFOneB{},
                                      small_model::Loss{}, device);
  };
  auto threads = make(sg::host::Threads{2});
  auto clock = make(sg::sim::VirtualClock{});
  std::uint64_t rows = 0;
  for (int step = 0; step < 3; ++step) {
    auto const data = batch(step, microbatches, step != 1);
    for (auto const& x : data.inputs) rows += x.size();
    sg::run(threads.step(data));
    sg::run(clock.step(data));
  }
  for (auto* const train : {&threads.machine(), &clock.machine()}) {
    auto const all = train->traffic.total();
    auto const count = std::uint64_t{3 * microbatches};
    Count const matrices{count, rows * width * sizeof(float)};
    REQUIRE(all.of(0, activations) == matrices);
    REQUIRE(all.of(1, activations) ==
            times(count, sizeof(Panel)));  // of one size whatever is in it
    REQUIRE(all.of(1, gradients) == matrices);
    REQUIRE(all.of(2, gradients) == times(count, sizeof(Panel)));
    require_nothing_else(all, {activations, gradients});
  }
}

TEST_CASE("train/Trainer: traffic() has the gradients that a second owner of a stage hands in",
          "[train]") {
  auto train = sg::Pipeline{stack(4)}.with(sg::partition::Even{4}, sg::schedule::Chimera{},
                                           plain::Loss{}, sg::host::Threads{2});
  sg::run(train.step(plain::data(4)));
  auto const all = train.traffic();
  for (int rank = 0; rank < 4; ++rank) {
    // Microbatches 0 and 1 run stage s on rank s, 2 and 3 on rank 3 - s.
    REQUIRE(all.of(rank, activations) == times(rank == 0 || rank == 3 ? 2 : 4, value));
    REQUIRE(all.of(rank, gradients) == times(rank == 0 || rank == 3 ? 2 : 4, value));
    REQUIRE(all.of(rank, gradient_sums) == times(rank < 2 ? 0 : 2, weights));
  }
}

TEST_CASE(
    "train/Trainer: traffic() has the rows that replicas exchange, and parts of gradient sums",
    "[train]") {
  using namespace small_model;
  constexpr std::uint64_t row = width * sizeof(float);
  bool const uneven = GENERATE(false, true);
  auto train = sg::Pipeline{sg::Sequential{Embedding{}, Dense{}, Curve{}, Dense{5}}}.with(
      sg::partition::Cuts{{2}}, sg::collective::AllReduce<sg::collective::grouping::Layerwise>{},
      small_model::Loss{}, sg::host::Threads{2}, sg::Options{.replicas = {1, 2}});
  auto data = small_model::batch(0, 3, false);
  std::uint64_t own[2] = {0, 0};  // rows of the replicas
  for (std::size_t m = 0; m < 3; ++m) {
    std::size_t const rows = uneven ? 2 + m : 4;
    data.inputs[m].resize({rows});
    data.targets[m].resize({rows});
    for (std::size_t r = 0; r < rows; ++r) data.inputs[m][r] = data.targets[m][r] = 1;
    own[0] += rows / 2;
    own[1] += rows - rows / 2;
  }
  for (int step = 0; step < 2; ++step) sg::run(train.step(data));
  auto const all = train.traffic();
  REQUIRE(all.ranks() == 3);
  REQUIRE(all.of(0, activations) == Count{2 * 6, 2 * (own[0] + own[1]) * row});
  REQUIRE(all.of(1, gradients) == Count{2 * 3, 2 * own[0] * row});
  REQUIRE(all.of(2, gradients) == Count{2 * 3, 2 * own[1] * row});
  // Layers of 64, and 64 + 64 bytes: the first replica adds up what is left of one, or the first half.
  REQUIRE(all.of(1, gradient_sums) == Count{2 * 2, 2 * (64 + 64)});
  REQUIRE(all.of(2, gradient_sums) == Count{2 * 2, 2 * (0 + 64)});
  require_nothing_else(all, {activations, gradients, gradient_sums});
}

namespace {

/// Two workers of two stages of two layers each.
template <class Model, class DeviceOf>
auto workers(Model model, sg::collective::ParameterServer const& server, DeviceOf device_of) {
  auto const make = [&](int n) {
    if constexpr (Model::synchronous)
      return sg::Pipeline{stack(4)}.with(sg::partition::Even{2}, model, server.worker(n),
                                         plain::Loss{}, sg::optimizer::Sgd{.rate = 0.1},
                                         device_of());
    else
      return sg::Pipeline{stack(4)}.with(sg::partition::Even{2}, sg::schedule::Fifo{2}, model,
                                         server.worker(n), plain::Loss{},
                                         sg::optimizer::Sgd{.rate = 0.1}, device_of());
  };
  return std::pair{make(0), make(1)};
}

/// @param each  bytes of a layer
/// @param body  (device_of, each)
template <class Body> void on_both(Body body) {
  body([] { return sg::host::Threads{1}; }, kept);
  sg::sim::Clock const clock({.rate = 1e6});
  body([clock] { return sg::sim::VirtualClock{.clock = clock}; }, weights);
}

}  // namespace

TEST_CASE("train/Trainer: traffic() of a worker has its pushes and pulls, layer by layer",
          "[train]") {
  on_both([](auto device_of, std::uint64_t each) {
    sg::collective::ParameterServer const server({.workers = 2});
    auto [a, b] = workers(sg::staleness::Synchronous{}, server, device_of);
    auto const batch = plain::data(3);
    for (std::uint64_t step = 1; step < 4; ++step) {
      sg::run_together(a.step(batch), b.step(batch));
      for (int rank = 0; rank < 2; ++rank) {
        REQUIRE(a.traffic().of(rank, pushes) == times(2 * step, each));
        REQUIRE(b.traffic().of(rank, pulls) == times(2 + 2 * step, each));  // first, what there is
      }
      REQUIRE(a.traffic().of(0, activations) == times(3 * step, value));
      require_nothing_else(a.traffic(), {activations, gradients, pushes, pulls});
    }
  });
}

TEST_CASE("train/Trainer: traffic() of a worker in waves has a push for each, and what it asks for",
          "[train]") {
  on_both([](auto device_of, std::uint64_t each) {
    sg::collective::ParameterServer const server({.workers = 2});
    auto [a, b] = workers(
        sg::staleness::WaveSynchronous{
            .in_flight = 2, .distance = 0, .adds = sg::staleness::Adds::in_worker_order},
        server, device_of);
    auto const batch = plain::data(7);  // waves of 2, 2, 2 and 1
    for (std::uint64_t stream = 1; stream < 3; ++stream) {
      sg::run_together(a.stream(batch), b.stream(batch));
      // At its beginning what there is; waves 1, 2 and 3 are needed in it; all four in the end.
      REQUIRE(a.traffic().of(0, pushes) == times(2 * 4 * stream, each));
      REQUIRE(a.traffic().of(0, pulls) == times(2 * 4 * stream, each));
      REQUIRE(b.traffic().of(1, pulls) == times(2 * 4 * stream, each));
    }
  });
}

TEST_CASE("train/Trainer: traffic() and timeline() have the exchanges of local steps alone",
          "[train]") {
  on_both([](auto device_of, std::uint64_t each) {
    sg::collective::ParameterServer const server({.workers = 2});
    auto [a, b] =
        workers(sg::staleness::LocalSgd{.period = 3, .average_state = false}, server, device_of);
    a.record(true);
    auto const batch = plain::data(2);
    for (std::uint64_t step = 1; step < 8; ++step) {
      sg::run_together(a.step(batch), b.step(batch));
      REQUIRE(a.traffic().of(1, pushes) == times(2 * (step / 3), each));
      REQUIRE(a.traffic().of(1, pulls) == times(2 + 2 * (step / 3), each));
      std::size_t exchanges = 0;
      for (auto const& span : a.timeline().spans)
        exchanges += sg::schedule::is_compute(span.action.kind) ? 0 : 1;
      REQUIRE(exchanges == (step % 3 == 0 ? 4 : 0));  // a push and a pull of each stage
    }
  });
}

TEST_CASE(
    "train/Trainer: traffic() counts late layers when they are pushed and when they have come",
    "[train]") {
  namespace osp = sg::staleness::overlapped;
  on_both([](auto device_of, std::uint64_t each) {
    sg::collective::ParameterServer const server({.workers = 2});
    using Late = sg::staleness::OverlappedSynchronous<osp::ParameterGradientProduct, osp::FirstFit,
                                                      osp::AllLate>;
    auto [a, b] = workers(Late{}, server, device_of);
    auto const batch = plain::data(2);
    for (std::uint64_t step = 1; step < 4; ++step) {
      sg::run_together(a.step(batch), b.step(batch));
      REQUIRE(a.traffic().of(pushes) == times(4 * step, each));
      // What the last step has pushed comes in the next; in the first step nothing is late.
      REQUIRE(a.traffic().of(pulls) == times(4 + 4 + 4 * (step > 1 ? step - 2 : 0), each));
    }
    static_cast<void>(a.parameters());
    REQUIRE(a.traffic().of(pulls) == times(4 + 4 + 4 * 2, each));
  });
}

}  // namespace traffic_test
