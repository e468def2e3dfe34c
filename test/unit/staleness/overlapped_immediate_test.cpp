// SPDX-License-Identifier: Apache-2.0
// Late values that are taken up before a stage's first forward, if they have arrived by then.
#include <stagger/staleness/overlapped_synchronous.hpp>

#include "catch.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/partition/cuts.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/sim/clock.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/train/pipeline.hpp>

#include "train/forwarding_link.hpp"
#include "train/overlapped_oracle.hpp"

namespace overlapped_immediate_test {

namespace sg = stagger;
using namespace plain_layers;
using namespace overlapped_oracle;
namespace osp = sg::staleness::overlapped;

namespace {

sg::optimizer::Sgd const sgd{.rate = 0.05, .momentum = 0.9};
using Immediate = sg::staleness::OverlappedSynchronous<osp::ParameterGradientProduct, osp::FirstFit,
                                                       osp::AllLate>;

/// Notes the weights of each forward and backward.
struct NotingLayer : Layer {
  std::vector<Numbers>* seen;
  NotingLayer(int number, std::vector<Numbers>& noted) : Layer(number), seen(&noted) {}
  void note(sg::Context& context) {
    auto const w = context[weight];
    seen->emplace_back(w.begin(), w.end());
  }
  void forward(sg::Context& context, Input const& x, Output& y, Saved& saved) {
    note(context);
    Layer::forward(context, x, y, saved);
  }
  void backward(sg::Context& context, Input const& x, Output const& dy, Input& dx, Saved& saved) {
    note(context);
    Layer::backward(context, x, dy, dx, saved);
  }
};

/// How often the late values of each layer were there before the first forward.
struct TakenUp {
  int steps = 0;  // of workers, with late values
  std::array<int, layers> each{};
  int in_part = 0;  // of the second stage some, but not all
};

/// Trains workers of two stages, the second of which has the last three layers. In each minibatch, a
/// layer has only one version: the values that all workers have, or predicted ones.
TakenUp take_up(int workers, sg::sim::Links const& link, double jitter) {
  constexpr int steps = 12, microbatches = 2;
  CAPTURE(workers, link.rate, link.latency_s);
  sg::sim::Clock const clock(link);
  sg::collective::ParameterServer const server({.workers = workers});
  auto const N = static_cast<std::size_t>(workers);
  std::vector<std::array<std::vector<Numbers>, layers>> seen(N);
  auto const make = [&](std::size_t n) {
    std::vector<NotingLayer> stack;
    for (std::size_t l = 0; l < layers; ++l) stack.emplace_back(static_cast<int>(l), seen[n][l]);
    return sg::Pipeline{sg::Sequential{std::move(stack)}}.with(
        sg::partition::Cuts{{1}}, sg::schedule::OneFOneB{}, Immediate{.immediate = true},
        server.worker(static_cast<int>(n)), Loss{}, sgd,
        sg::sim::VirtualClock{.costs = sg::schedule::Costs::uniform(1, 2, 0),
                              .jitter = jitter,
                              .seed = n,
                              .clock = clock});
  };
  std::vector<decltype(make(0))> trainers;
  for (std::size_t n = 0; n < N; ++n) trainers.push_back(make(n));
  Oracle<sg::optimizer::Sgd> oracle{sgd, products(1), N};
  TakenUp taken;
  for (int step = 0; step < steps; ++step) {
    CAPTURE(step);
    std::vector<Batch> batches;
    std::vector<sg::Step> ran;
    for (int n = 0; n < workers; ++n) batches.push_back(data(microbatches, n + 10.0 * step));
    for (std::size_t n = 0; n < N; ++n) ran.push_back(trainers[n].step(batches[n]));
    static_cast<void>(sg::run_together(std::move(ran)));
    for (std::size_t n = 0; n < N; ++n) {
      std::size_t arrived = 0;
      for (std::size_t l = 0; l < layers; ++l) {
        CAPTURE(n, l);
        auto& versions = seen[n][l];
        REQUIRE(versions == std::vector<Numbers>(2 * microbatches, versions.front()));
        bool const there = versions.front() == oracle.p[l];
        REQUIRE((there || versions.front() == oracle.theta[n][l]));
        oracle.theta[n][l] = versions.front();
        versions.clear();
        if (step < 2) continue;  // nothing is late in the first step
        taken.each[l] += there ? 1 : 0;
        arrived += there && l > 0 ? 1 : 0;
      }
      if (step >= 2) ++taken.steps;
      if (arrived != 0 && arrived != layers - 1) ++taken.in_part;
    }
    oracle.train(batches);
  }
  for (auto& trainer : trainers) REQUIRE(weights(trainer) == oracle.p);
  return taken;
}

/// Holds back requests for late values until it is told to send them. In the first step no values
/// are late, nor in the first after one that failed; in all others all of them.
class Holding final : public Forwarding {
 public:
  using Forwarding::Forwarding;
  void begin() override {
    asked_ = {};
    held_ = {};
    Forwarding::begin();
  }
  void ask(std::size_t l, std::uint32_t rounds, Bytes part) override {
    if (rounds == 1 && !std::exchange(asked_[l], true)) return Forwarding::ask(l, rounds, part);
    held_[l] = rounds;
  }
  /// The server answers at once.
  void send(std::size_t l) {
    if (std::uint32_t const rounds = std::exchange(held_[l], 0); rounds != 0)
      Forwarding::ask(l, rounds, {0, layer_bytes});
  }

 private:
  std::array<std::uint32_t, layers> held_{};
  std::array<bool, layers> asked_{};  // in the first step since then
};

/// When it runs, late values of some layers arrive.
struct SendingLayer : NotingLayer {
  Holding* link = nullptr;
  std::vector<std::size_t> sends{};
  using NotingLayer::NotingLayer;
  void forward(sg::Context& context, Input const& x, Output& y, Saved& saved) {
    NotingLayer::forward(context, x, y, saved);
    for (std::size_t const l : sends) link->send(l);
  }
};

}  // namespace

TEST_CASE(
    "staleness/OverlappedSynchronous: late values that arrive while a stage's first forward runs "
    "are "
    "taken up by the layers that it has not reached, and by the others after the computation",
    "[staleness]") {
  constexpr int steps = 6, microbatches = 2;
  sg::collective::ParameterServer const server({.workers = 1});
  auto const link = std::make_shared<Holding>(server.worker(0).link());
  std::array<std::vector<Numbers>, layers> seen;
  std::vector<SendingLayer> stack;
  for (std::size_t l = 0; l < layers; ++l) {
    stack.emplace_back(static_cast<int>(l), seen[l]);
    stack.back().link = link.get();
  }
  stack[1].sends = {0, 1, 2};  // only the last of which has not begun its forward
  stack[3].sends = {3};        // its own, too late
  auto trainer = sg::Pipeline{sg::Sequential{std::move(stack)}}.with(
      sg::partition::Cuts{{}}, sg::schedule::OneFOneB{}, Immediate{.immediate = true},
      Through{link}.worker(0), Loss{}, sgd, sg::host::Threads{1});
  Oracle<sg::optimizer::Sgd> oracle{sgd, products(1), 1};
  for (int step = 0; step < steps; ++step) {
    CAPTURE(step);
    Batch const batch = data(microbatches, 10.0 * step);
    static_cast<void>(sg::run(trainer.step(batch)));
    for (std::size_t l = 0; l < layers; ++l) {
      CAPTURE(l);
      Numbers const used = step < 2 || l == 2 ? oracle.p[l] : oracle.theta[0][l];
      if (step > 1) REQUIRE(oracle.p[l] != oracle.theta[0][l]);
      REQUIRE(seen[l] == std::vector<Numbers>(2 * microbatches, used));
      oracle.theta[0][l] = used;
      seen[l].clear();
    }
    oracle.train({batch});
  }
}

TEST_CASE(
    "staleness/OverlappedSynchronous: after a step that failed in a first forward, layers see "
    "the weights of the server",
    "[staleness]") {
  struct Failing : SendingLayer {
    int* fails = nullptr;
    using SendingLayer::SendingLayer;
    void forward(sg::Context& context, Input const& x, Output& y, Saved& saved) {
      if (*fails != 0 && --*fails == 0) throw std::runtime_error("killed");
      SendingLayer::forward(context, x, y, saved);
    }
  };
  sg::collective::ParameterServer const server({.workers = 1});
  auto const link = std::make_shared<Holding>(server.worker(0).link());
  std::array<std::vector<Numbers>, layers> seen;
  std::vector<Failing> stack;
  int fails = 0;
  for (std::size_t l = 0; l < layers; ++l) {
    stack.emplace_back(static_cast<int>(l), seen[l]);
    stack.back().link = link.get();
    stack.back().fails = &fails;
  }
  stack[3].sends = {0, 1, 2, 3};
  auto trainer = sg::Pipeline{sg::Sequential{std::move(stack)}}.with(
      sg::partition::Cuts{{}}, sg::schedule::OneFOneB{}, Immediate{.immediate = true},
      Through{link}.worker(0), Loss{}, sgd, sg::host::Threads{1});
  for (int step = 0; step < 3; ++step) static_cast<void>(sg::run(trainer.step(data(2, step))));
  fails = 2;
  CHECK_THROWS(static_cast<void>(sg::run(trainer.step(data(2, 3)))));
  for (auto& of : seen) of.clear();
  auto const before = weights(trainer);
  static_cast<void>(sg::run(trainer.step(data(2, 4))));
  for (std::size_t l = 0; l < layers; ++l) CHECK(seen[l] == std::vector<Numbers>(4, before[l]));
}

TEST_CASE(
    "staleness/OverlappedSynchronous: what arrives before the first forward of a stage is taken up "
    "at "
    "once, the rest after the computation",
    "[staleness]") {
  // A step ends with the pushes of all layers, one after the other; each answer follows its push.
  // So layer l is there after l + 2 times what one takes. The second stage begins its first forward
  // after 1 s, the first stage at once.
  auto const of = [](double layer_s) {
    TakenUp const taken =
        take_up(1, {.rate = layer_bytes / layer_s, .sharing = sg::sim::Sharing::one_at_a_time}, 0);
    std::vector<bool> layers_taken;
    for (int const each : taken.each) {
      REQUIRE((each == 0 || each == taken.steps));
      layers_taken.push_back(each != 0);
    }
    return layers_taken;
  };
  CHECK(of(0.15) == std::vector<bool>{false, true, true, true});
  CHECK(of(0.22) == std::vector<bool>{false, true, true, false});
  CHECK(of(0.3) == std::vector<bool>{false, true, false, false});
  CHECK(of(0.4) == std::vector<bool>{false, false, false, false});
}

TEST_CASE(
    "staleness/OverlappedSynchronous: whatever has arrived, a minibatch has one version of each "
    "layer",
    "[staleness]") {
  int in_part = 0;
  for (int const workers : {1, 2, 3})
    for (double const rate : {150.0, 200.0, 300.0, 500.0})
      for (double const latency_s : {0.0, 0.1})
        in_part += take_up(workers, {.rate = rate, .latency_s = latency_s}, 0.5).in_part;
  CHECK(in_part > 20);
}

}  // namespace overlapped_immediate_test
