// SPDX-License-Identifier: Apache-2.0
// What HetPipe claims about grouping, cutting and placing, one test for each claim.
#include "hetpipe_models.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <stagger/placement/allocation.hpp>
#include <stagger/placement/hybrid_distribution.hpp>
#include <stagger/placement/parameter_placement.hpp>
#include <stagger/schedule/fifo.hpp>
#include <stagger/schedule/proof/evaluate.hpp>

#include "catch.hpp"
#include "sanitized.hpp"

namespace hetpipe_claims_test {

using namespace tool::hetpipe;
namespace placement = stagger::placement;
using Workers = std::vector<std::vector<int>>;

namespace {

std::vector<std::string> letters(Cluster const& cluster, Workers const& workers) {
  std::vector<std::string> all;
  for (auto const& w : workers) all.push_back(placement::letters(cluster, w));
  return all;
}

double bytes_of(Profile const& p) {
  double sum = 0;
  for (auto const& layer : p.layers) sum += static_cast<double>(layer.parameter_bytes);
  return sum;
}

/// Bytes over the links between nodes, for one virtual worker.
struct Traffic {
  double parameters_per_wave = 0;        // pushed and pulled
  double activations_per_minibatch = 0;  // and their gradients, over the cuts
};

Traffic traffic(Profile const& p, placement::Worker const& worker,
                std::vector<int> const& layer_nodes) {
  Traffic result;
  for (int l = 0; l < p.size(); ++l) {
    auto const& layer = p.layers[static_cast<std::size_t>(l)];
    int const node = worker.node_of(l);
    if (layer_nodes[static_cast<std::size_t>(l)] != node)
      result.parameters_per_wave += 2 * static_cast<double>(layer.parameter_bytes);
    if (l + 1 < p.size() && worker.node_of(l + 1) != node)
      result.activations_per_minibatch += 2 * static_cast<double>(layer.activation_bytes);
  }
  return result;
}

/// Of the best equal distribution with parameters where their layers run.
Traffic local_traffic(Profile const& p, std::vector<placement::Worker>& workers,
                      double between = 3e9) {
  Cluster cluster = usable();
  cluster.inter.bytes_per_s = between;
  for (auto const& devices : placement::EqualDistribution{}.allocate(cluster, 4)) {
    auto const costs = stagger::partition::costs(p, cluster, devices);
    auto const found =
        stagger::partition::MinMax{.any_order = true, .in_flight = 5}.partition(costs);
    placement::Worker worker{.cuts = found.cuts, .nodes = {}};
    for (auto const& stage : found.devices)
      worker.nodes.push_back(cluster.device(stage.front()).node);
    workers.push_back(worker);
  }
  return traffic(p, workers.front(), placement::Local{}.layer_nodes(p.size(), 4, workers));
}

/// What a ring moves per device for an all-reduce of the model.
double all_reduced(Profile const& p, int devices) {
  return (devices - 1.0) / devices * bytes_of(p);
}

}  // namespace

TEST_CASE("partition/HetPipe C1: table 3 comes out of compute and memory", "[partition]") {
  Cluster const c = stagger::cluster::hetpipe();
  using Letters = std::vector<std::string>;
  CHECK(letters(c, placement::NodePartition{}.allocate(c, 4)) ==
        Letters{"VVVV", "RRRR", "GGGG", "QQQQ"});
  CHECK(letters(c, placement::EqualDistribution{}.allocate(c, 4)) == Letters(4, "VRGQ"));
  CHECK(letters(c, placement::HybridDistribution{}.allocate(c, 4)) ==
        Letters{"VVQQ", "VVQQ", "RRGG", "RRGG"});
  // On compute alone V with G and R with Q would be nearer: memory must be in the criterion.
  Cluster equal = c;
  for (auto& device : equal.devices) device.memory_bytes = 1;
  CHECK(letters(equal, placement::HybridDistribution{}.allocate(equal, 4)) ==
        Letters{"VVGG", "VVGG", "RRQQ", "RRQQ"});
}

TEST_CASE("partition/HetPipe C2: the models have 548 and 230 MiB of parameters", "[partition]") {
  CHECK(bytes_of(vgg19()) / 4 == Approx(143.67e6).epsilon(1e-4));
  CHECK(bytes_of(resnet152()) / 4 == Approx(60.19e6).epsilon(1e-4));
  CHECK(bytes_of(vgg19()) / (1 << 20) == Approx(548).epsilon(0.005));
  CHECK(bytes_of(resnet152()) / (1 << 20) == Approx(230).epsilon(0.005));
}

TEST_CASE("partition/HetPipe C3: Horovod moves 515 and 211 MiB, (K - 1) / K of the model",
          "[partition]") {
  CHECK(all_reduced(vgg19(), 16) / (1 << 20) == Approx(515).epsilon(0.005));
  CHECK(all_reduced(resnet152(), 12) / (1 << 20) == Approx(211).epsilon(0.005));
}

TEST_CASE("partition/HetPipe C4: with local parameters none cross nodes, in turn they do",
          "[partition]") {
  for (auto const& p : {vgg19(), resnet152()}) {
    std::vector<placement::Worker> workers;
    auto const local = local_traffic(p, workers);
    CHECK(local.parameters_per_wave == 0);
    CHECK(local.activations_per_minibatch > 0);
    auto const spread =
        traffic(p, workers.front(), placement::RoundRobin{}.layer_nodes(p.size(), 4, workers));
    CHECK(spread.parameters_per_wave > 0);
    CHECK(spread.activations_per_minibatch == local.activations_per_minibatch);
  }
}

TEST_CASE(
    "partition/HetPipe C5: at 1 GB/s local parameters save more of VGG-19's bytes than of "
    "ResNet-152's",
    "[partition]") {
  std::vector<placement::Worker> a, b;
  auto const bytes = [](Profile const& p, std::vector<placement::Worker>& workers) {
    return local_traffic(p, workers, 1e9).activations_per_minibatch;
  };
  double const vgg = bytes(vgg19(), a), resnet = bytes(resnet152(), b);
  CAPTURE(a.front().cuts, b.front().cuts, vgg, resnet);
  CHECK(vgg / all_reduced(vgg19(), 16) < resnet / all_reduced(resnet152(), 12));
}

TEST_CASE("partition/HetPipe C5: the published 103 MB are three late cuts of VGG-19, both ways",
          "[partition]") {
  auto const p = vgg19();
  // Behind the third pooling, and behind two convolutions of 512 x 14 x 14.
  placement::Worker const worker{.cuts = {11, 17, 18}, .nodes = {0, 1, 2, 3}};
  std::vector<placement::Worker> const one{worker};
  auto const t = traffic(p, worker, placement::Local{}.layer_nodes(p.size(), 4, one));
  CHECK(t.activations_per_minibatch / 1e6 == Approx(103).epsilon(0.005));
}

namespace {

/// Images a second of all workers by playing HetPipe's order on their cuts: with what filling,
/// draining and waiting cost. A stage receives before it computes, as its time says.
double played(Profile const& p, Cluster const& c, Workers const& workers, int in_flight) {
  constexpr int minibatches = 400;
  double slowest = 0;
  for (auto const& worker : workers) {
    auto const costs = stagger::partition::costs(p, c, worker);
    auto const found =
        stagger::partition::MinMax{.any_order = true, .in_flight = in_flight}.partition(costs);
    stagger::schedule::Costs seconds;
    for (std::size_t s = 0; s < found.stage_s.size(); ++s) {
      int const device = found.devices[s].front();
      int const first = s == 0 ? 0 : found.cuts[s - 1];
      int const last = s < found.cuts.size() ? found.cuts[s] : p.size();
      stagger::schedule::StageCosts stage{
          .forward_s = 0, .backward_input_s = 0, .backward_weight_s = 0};
      for (int l = first; l < last; ++l) {
        auto const t = c.times(p.layers[static_cast<std::size_t>(l)], device);
        stage.forward_s += t.forward_s;
        stage.backward_input_s += t.backward_s;
      }
      auto const receive = [&](std::size_t from, int layer) {
        return c.transfer_s(
            found.devices[from].front(), device,
            static_cast<double>(p.layers[static_cast<std::size_t>(layer) - 1].activation_bytes));
      };
      if (s > 0) stage.forward_s += receive(s - 1, first);
      if (s < found.cuts.size()) stage.backward_input_s += receive(s + 1, last);
      seconds.stages.push_back(stage);
    }
    auto const table = stagger::schedule::Fifo{.in_flight = in_flight, .costs = seconds}.table(
        {.ranks = static_cast<int>(found.stage_s.size()), .microbatches = minibatches});
    slowest = std::max(slowest, stagger::schedule::evaluate(table, seconds).makespan_s);
  }
  return static_cast<double>(workers.size()) * minibatches * batch / slowest;
}

}  // namespace

// Horovod's images a second are taken as data, as published.
TEST_CASE(
    "partition/HetPipe C6: VGG-19 on 16 GPUs, at least 1.2 times Horovod's published throughput",
    "[partition]") {
  Cluster const c = usable();
  auto const workers = placement::EqualDistribution{}.allocate(c, 4);
  double const images = played(vgg19(), c, workers, 5);
  CAPTURE(images);
  CHECK(images <= throughput(vgg19(), c, workers, 5));
  CHECK(images / 339 >= 1.2);
  CHECK(images / 339 <= 2.4);
}

TEST_CASE(
    "partition/HetPipe C7: ResNet-152 on 16 GPUs, at least 1.1 times Horovod's published on 12",
    "[partition]") {
  Cluster const c = usable();
  auto const workers = placement::EqualDistribution{}.allocate(c, 4);
  double const images = played(resnet152(), c, workers, 7);
  CAPTURE(images);
  CHECK(images <= throughput(resnet152(), c, workers, 7));
  CHECK(images / 415 >= 1.1);
  CHECK(images / 415 <= 2.4);
}

TEST_CASE(
    "partition/HetPipe C8: whimpy GPUs help, each kind added, up to between 1.8 and 3.5 times",
    "[partition]") {
  Cluster const c = usable();
  for (auto const& p : {vgg19(), resnet152()}) {
    CAPTURE(p.name);
    std::vector<double> speed;
    for (char const* kinds : {"V", "VR", "VRQ", "VRGQ"})
      speed.push_back(throughput(p, c, workers_of(c, kinds), 5));
    for (std::size_t i = 1; i < 4; ++i) CHECK(speed[i] >= speed[i - 1]);
    CHECK(speed[3] / speed[0] >= 1.8);
    CHECK(speed[3] / speed[0] <= 3.5);
    for (std::size_t i = 2; i < 4; ++i) CHECK(speed[1] - speed[0] > speed[i] - speed[i - 1]);
  }
}

TEST_CASE("partition/HetPipe table 4: bottlenecks of the reference calibration, within 3 %",
          "[partition]") {
  Cluster const c = usable();
  std::array<double, 4> const vgg{192, 516, 546, 635}, resnet{257, 564, 654, 743};
  std::size_t i = 0;
  for (char const* kinds : {"V", "VR", "VRQ", "VRGQ"}) {
    CAPTURE(kinds);
    CHECK(throughput(vgg19(), c, workers_of(c, kinds), 5) == Approx(vgg[i]).epsilon(0.03));
    CHECK(throughput(resnet152(), c, workers_of(c, kinds), 5) == Approx(resnet[i]).epsilon(0.03));
    ++i;
  }
}

TEST_CASE("partition/HetPipe C9, C10: a worker for each node is the slowest allocation",
          "[partition]") {
  Cluster const c = usable();
  for (auto const& p : {vgg19(), resnet152()})
    for (int const in_flight : {1, 3, 5}) {
      CAPTURE(p.name, in_flight);
      auto const of = [&](auto const& policy) {
        return throughput(p, c, policy.allocate(c, 4), in_flight);
      };
      double const np = of(placement::NodePartition{}), ed = of(placement::EqualDistribution{});
      double const hd = of(placement::HybridDistribution{});
      CHECK(np < hd);
      CHECK(np < ed);
      if (p.name == "ResNet-152" || in_flight < 5) CHECK(hd / ed > 0.85);
      CHECK(hd / ed < 1.15);
    }
}

TEST_CASE(
    "partition/HetPipe C11: a worker for each node is limited by the node with the least memory",
    "[partition]") {
  Cluster const c = usable();
  for (auto const& p : {vgg19(), resnet152()}) {
    if (sanitized && p.name == "ResNet-152") continue;  // minutes of the same code
    CAPTURE(p.name);
    auto const nodes = placement::NodePartition{}.allocate(c, 4);
    int least = 32;
    for (auto const& worker : nodes) least = std::min(least, most_in_flight(p, c, Workers{worker}));
    int const np = most_in_flight(p, c, nodes);
    CHECK(np == least);
    CHECK(np == most_in_flight(p, c, Workers{nodes[2]}));  // GGGG, 6 GB each
    CHECK(np <= most_in_flight(p, c, placement::EqualDistribution{}.allocate(c, 4)));
  }
}

TEST_CASE(
    "partition/HetPipe C12: throughput rises with what is in flight and saturates where stages are "
    "full",
    "[partition]") {
  namespace schedule = stagger::schedule;
  constexpr int microbatches = 400;
  double before = 0;
  std::array<double, 4> const published{0.25, 0.50, 0.74, 0.99};
  for (int in_flight = 1; in_flight <= 8; ++in_flight) {
    auto const table = schedule::Fifo{.in_flight = in_flight}.table({4, microbatches, 1});
    double const of_ideal = microbatches * 3.0 / schedule::evaluate(table).makespan_s;
    CAPTURE(in_flight, of_ideal);
    if (in_flight <= 4)
      CHECK(of_ideal == Approx(published[static_cast<std::size_t>(in_flight) - 1]).margin(0.02));
    CHECK(of_ideal >= before * 0.98);
    CHECK(of_ideal <= 1);
    before = of_ideal;
  }
}

}  // namespace hetpipe_claims_test
