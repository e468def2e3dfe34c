// SPDX-License-Identifier: Apache-2.0
// Workers of a parameter server whose positions have replicas, or groups that share layers.
#include <stagger/engine/groups.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/partition/cuts.hpp>
#include <stagger/partition/layer_split.hpp>
#include <stagger/schedule/chimera.hpp>
#include <stagger/schedule/fifo.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/staleness/asynchronous.hpp>
#include <stagger/staleness/local_sgd.hpp>
#include <stagger/staleness/overlapped_synchronous.hpp>
#include <stagger/staleness/round_robin_synchronous.hpp>
#include <stagger/staleness/stale_synchronous.hpp>
#include <stagger/staleness/synchronous.hpp>
#include <stagger/staleness/wave_synchronous.hpp>
#include <stagger/train/pipeline.hpp>

#include "split_model.hpp"
#include "temporary_folder.hpp"

namespace worker_replicas_test {

using namespace split_model;
using sg::collective::ParameterServer;
using sg::staleness::LocalSgd;
using sg::staleness::Synchronous;

namespace {

/// The rows of several matrices below each other.
Matrix<double> stacked(Matrix<double> const& a, Matrix<double> const& b) {
  Matrix<double> both({a.extent(0) + b.extent(0), a.extent(1)});
  std::copy(a.begin(), a.end(), both.begin());
  std::copy(b.begin(), b.end(), both.begin() + static_cast<std::ptrdiff_t>(a.size()));
  return both;
}
/// Microbatch by microbatch.
Batch<double> stacked(Batch<double> const& a, Batch<double> const& b) {
  Batch<double> both;
  for (std::size_t m = 0; m < a.inputs.size(); ++m) {
    both.inputs.push_back(stacked(a.inputs[m], b.inputs[m]));
    both.targets.push_back(stacked(a.targets[m], b.targets[m]));
  }
  return both;
}

/// A layer whose gradients and their sums are exact for a few steps.
Linear<double> exact_layer(std::uint64_t seed) {
  Linear<double> layer{inputs, 8, seed};
  std::vector<double> weight, bias;
  for (std::size_t i = 0; i < inputs * 8; ++i)
    weight.push_back(static_cast<double>(sg::random_bits(seed, {i}) % 17) / 8 - 1);
  for (std::size_t i = 0; i < 8; ++i) bias.push_back(static_cast<double>(i) / 8);
  layer.weight = sg::Parameter<double>("weight", std::move(weight));
  layer.bias = sg::Parameter<double>("bias", std::move(bias));
  return layer;
}
Batch<double> exact_batch(std::uint64_t seed) {
  Batch<double> made;
  for (std::uint64_t m = 0; m < 2; ++m)
    for (auto* const of : {&made.inputs, &made.targets}) {
      std::size_t const columns = of == &made.inputs ? inputs : 8;
      Matrix<double> matrix({8, columns});
      for (std::size_t i = 0; i < matrix.size(); ++i)
        matrix[i] = static_cast<double>(sg::random_bits(seed + m, {i, columns}) % 7) - 3;
      of->push_back(std::move(matrix));
    }
  return made;
}
sg::optimizer::Sgd const exact_sgd{.rate = 0.0625, .momentum = 0.5};

/// @param ranks  of the position; 1: it has no replicas
template <class... Policy> auto exact_pipeline(int ranks, Policy const&... policy) {
  sg::Options options;
  if (ranks > 1) options.replicas = replicas(1, ranks);
  return sg::Pipeline{sg::Sequential{exact_layer(3)}}.with(sg::loss::MeanSquaredError<double>{},
                                                           exact_sgd, options, policy...);
}

/// Two workers, of which each has its rows of a batch for one pipeline.
/// @param worker     (n) -> a trainer
/// @param tolerance  of values
template <class Worker, class One, class BatchOf>
void two_workers(Worker worker, One& one, int steps, BatchOf batch_of, double tolerance) {
  auto a = worker(0);
  auto b = worker(1);
  for (int step = 0; step < steps; ++step) {
    Batch<double> const of_a = batch_of(2 * step);
    Batch<double> const of_b = batch_of(2 * step + 1);
    Batch<double> const of_both = stacked(of_a, of_b);
    auto const metrics = sg::run_together(a.step(of_a), b.step(of_b));
    auto const expected = sg::run(one.step(of_both));
    CHECK((metrics[0].loss + metrics[1].loss) / 2 == Approx(expected.loss).epsilon(1e-10));
    CHECK(difference<double>(a, one, 1) <= tolerance);
    CHECK(bits(a) == bits(b));
  }
}

}  // namespace

TEST_CASE("engine/replicas: two workers with two each have the bits of one pipeline with four",
          "[engine]") {
  sg::partition::LayerSplit<> const split{.group = 2, .threshold = 0};
  for (int const threads : {1, 2, 4}) {
    CAPTURE(threads);
    sg::host::Threads const device{threads};
    auto const check = [&](int own, int all, auto const& model, auto const&... more) {
      CAPTURE(own, all);
      ParameterServer const server({.workers = 2, .shards = 2});
      auto one = exact_pipeline(all, device);
      two_workers(
          [&](int n) { return exact_pipeline(own, device, model, server.worker(n), more...); }, one,
          4, [](int number) { return exact_batch(static_cast<std::uint64_t>(number)); }, 0);
    };
    for (auto const& [own, all] : {std::pair{2, 4}, {2, 1}, {4, 8}, {1, 2}}) {
      check(own, all, Synchronous{});
      check(own, all, LocalSgd{.period = 1});
    }
    check(2, 4, Synchronous{}, split);
    check(4, 1, Synchronous{}, split);
    check(2, 4, LocalSgd{.period = 1}, split);
    check(4, 8, LocalSgd{.period = 1}, split);
  }
}

TEST_CASE("engine/replicas: workers that drift apart have the bits of workers of one rank",
          "[engine]") {
  using namespace sg::staleness;
  sg::partition::LayerSplit<> const split{.group = 2, .threshold = 0};
  for (int const threads : {1, 2, 4}) {
    sg::host::Threads const device{threads};
    auto const check = [&](int ranks, std::vector<int> const& order, auto const& model,
                           auto const&... more) {
      CAPTURE(threads, ranks, order);
      ParameterServer const server({.workers = 2, .shards = 2});
      ParameterServer const simple({.workers = 2});
      auto const replicated = [&](int n) {
        return exact_pipeline(ranks, device, model, server.worker(n), more...);
      };
      auto const single = [&](int n) {
        return exact_pipeline(1, sg::host::Threads{1}, model, simple.worker(n));
      };
      std::vector<decltype(replicated(0))> of_ranks;
      std::vector<decltype(single(0))> expected;
      for (int n = 0; n < 2; ++n) {
        of_ranks.push_back(replicated(n));
        expected.push_back(single(n));
      }
      for (std::size_t step = 0; step < order.size(); ++step) {
        auto const n = static_cast<std::size_t>(order[step]);
        Batch<double> const data = exact_batch(step);
        double const loss = sg::run(expected[n].step(data)).loss;
        CHECK(sg::run(of_ranks[n].step(data)).loss == Approx(loss).epsilon(1e-10));
        REQUIRE(difference<double>(of_ranks[n], expected[n], 1) == 0);
      }
    };
    auto const check_all = [&](int ranks, auto const&... more) {
      std::vector<int> const drift{0, 1, 0, 0, 1, 1};  // two steps apart
      for (Pushes const pushes : {Pushes::gradients, Pushes::changes}) {
        check(ranks, drift, Asynchronous{pushes}, more...);
        check(ranks, drift, StaleSynchronous{2, pushes}, more...);
      }
      for (int const bound : {2, 3})
        check(ranks, drift, StaleSynchronous{bound, Pushes::changes, Adds::in_worker_order},
              more...);
      check(ranks, {0, 1, 0, 1, 0, 1}, RoundRobinSynchronous{}, more...);
    };
    check_all(2);
    check_all(4, split);
  }
}

TEST_CASE("engine/groups: a worker that is alone has the bits of a pipeline without a server",
          "[engine]") {
  for (Case const& of : wide()) {
    CAPTURE(of.pattern, of.pairs, of.microbatches, of.cuts, of.counts);
    auto const check = [&](auto const& device, auto const& own) {
      ParameterServer const server({.workers = 1});
      auto alone = pipeline<double>(device, of);
      auto worker = pipeline<double>(own, of, server.worker(0));
      for (int step = 0; step < 2; ++step) {
        auto const data = batch<double>(step, of.microbatches, 17);
        sg::Metrics const expected = sg::run(alone.step(data));
        sg::Metrics const metrics = sg::run(worker.step(data));
        CHECK(metrics.loss == expected.loss);
        CHECK(metrics.gradient_norm == expected.gradient_norm);
        REQUIRE(difference<double>(worker, alone, 1) == 0);
      }
      CHECK(sg::run(worker.evaluate(batch<double>(9, of.microbatches, 17))).loss ==
            sg::run(alone.evaluate(batch<double>(9, of.microbatches, 17))).loss);
    };
    check(sg::host::Threads{2}, sg::host::Threads{3});
    sg::sim::VirtualClock device;
    device.costs = sg::schedule::Costs::uniform(1, 1, 1);
    auto timed = device;
    timed.clock = sg::sim::Clock({.rate = 1e4});
    check(device, timed);
  }
}

namespace {

/// Layers that are split, those that are not before and behind them, and no dropout.
auto plain_model() {
  return sg::Sequential{Linear<double>{inputs, 8, 1, false}, Linear<double>{8, 12, 2},
                        Linear<double>{12, 6, 3}, Linear<double>{6, outputs, 4, false}};
}
template <class... Policy>
auto plain_pipeline_with(sg::Options options, int ranks, int group, Policy const&... policy) {
  if (ranks > 1) options.replicas = replicas(1, ranks);
  return sg::Pipeline{plain_model()}.with(
      sg::partition::LayerSplit<>{.group = group, .threshold = 0},
      sg::loss::MeanSquaredError<double>{}, options, policy...);
}
template <class... Policy> auto plain_pipeline(int ranks, int group, Policy const&... policy) {
  return plain_pipeline_with({}, ranks, group, policy...);
}
template <class... Policy> auto clipped_pipeline(int ranks, int group, Policy const&... policy) {
  return plain_pipeline_with({.clip_norm = 0.8}, ranks, group, policy...);
}
/// A linear map and noise.
Batch<double> map_batch(int number, std::size_t rows = 8) {
  auto made = batch<double>(number, 2, rows);
  for (std::size_t m = 0; m < made.inputs.size(); ++m)
    for (std::size_t r = 0; r < made.inputs[m].extent(0); ++r)
      for (std::size_t c = 0; c < outputs; ++c)
        made.targets[m][r * outputs + c] = made.inputs[m][r * inputs + c % inputs] -
                                           made.inputs[m][r * inputs + (c + 1) % inputs] / 2 +
                                           made.targets[m][r * outputs + c] / 4;
  return made;
}

}  // namespace

TEST_CASE("engine/groups: groups that average after each step do what one pipeline of them does",
          "[engine]") {
  for (int const ranks : {2, 4}) {
    auto const check = [&](auto const& model, auto const&... more) {
      CAPTURE(ranks);
      ParameterServer const server({.workers = 2});
      auto one = plain_pipeline(2 * ranks, 2, optimizer(), sg::host::Threads{2});
      two_workers(
          [&](int n) {
            return plain_pipeline(ranks, 2, optimizer(), model, server.worker(n), more...);
          },
          one, 6, [](int number) { return map_batch(number); }, 1e-12);
    };
    check(Synchronous{}, sg::host::Threads{3});
    check(LocalSgd{.period = 1}, sg::host::Threads{3});
    sg::sim::VirtualClock device;
    device.clock = sg::sim::Clock({.rate = 1e4});
    device.costs = sg::schedule::Costs::uniform(1, 1, 1);
    check(Synchronous{}, device);
    check(LocalSgd{.period = 1}, device);
  }
}

TEST_CASE("engine/groups: local steps and means of groups are those of workers of one rank",
          "[engine]") {
  // With every optimizer state; gradients are clipped to their norm in each worker.
  auto const check = [](auto const& optimizer, LocalSgd const& model, auto const& device_of) {
    CAPTURE(model.period, model.average_state);
    ParameterServer const server({.workers = 2, .weights = {0.25, 0.75}});
    ParameterServer const simple({.workers = 2, .weights = {0.25, 0.75}});
    auto a = clipped_pipeline(4, 2, optimizer, model, server.worker(0), device_of(0));
    auto b = clipped_pipeline(4, 2, optimizer, model, server.worker(1), device_of(1));
    auto c = clipped_pipeline(1, 1, optimizer, model, simple.worker(0), sg::host::Threads{1});
    auto d = clipped_pipeline(1, 1, optimizer, model, simple.worker(1), sg::host::Threads{1});
    for (int step = 0; step < 7; ++step) {
      auto const of_a = map_batch(2 * step);
      auto const of_b = map_batch(2 * step + 1);
      auto const metrics = sg::run_together(a.step(of_a), b.step(of_b));
      auto const expected = sg::run_together(c.step(of_a), d.step(of_b));
      for (std::size_t n = 0; n < 2; ++n) {
        CHECK(metrics[n].loss == Approx(expected[n].loss).epsilon(1e-9));
        CHECK(metrics[n].gradient_norm == Approx(expected[n].gradient_norm).epsilon(1e-9));
      }
      REQUIRE(difference<double>(a, c) < 1e-10);
      REQUIRE(difference<double>(b, d) < 1e-10);
      bool const met = (step + 1) % model.period == 0;
      CHECK((bits(a) == bits(b)) == (met && model.average_state));
      CHECK((difference<double>(a, b, 1) == 0) == met);
    }
  };
  auto const threads = [](int n) { return sg::host::Threads{1 + 2 * n}; };
  sg::optimizer::AdamW const adam{.rate = 0.01};
  check(optimizer(), LocalSgd{.period = 1}, threads);
  check(optimizer(), LocalSgd{.period = 3}, threads);
  check(optimizer(), LocalSgd{.period = 2, .average_state = false}, threads);
  check(adam, LocalSgd{.period = 3}, threads);
  check(adam, LocalSgd{.period = 3, .average_state = false}, threads);
  sg::sim::VirtualClock device;
  device.clock = sg::sim::Clock({.rate = 1e4});
  device.costs = sg::schedule::Costs::uniform(1, 1, 1);
  check(adam, LocalSgd{.period = 3}, [&](int) { return device; });
}

TEST_CASE("engine/groups: each worker clips its gradients by their norm over all of its ranks",
          "[engine]") {
  using namespace sg::staleness;
  auto const check = [](auto const& optimizer, auto const& model, auto const& device_of) {
    ParameterServer const server({.workers = 2, .weights = {0.25, 0.75}});
    ParameterServer const simple({.workers = 2, .weights = {0.25, 0.75}});
    auto a = clipped_pipeline(4, 2, optimizer, model, server.worker(0), device_of(0));
    auto b = clipped_pipeline(2, 2, optimizer, model, server.worker(1), device_of(1));
    auto c = clipped_pipeline(1, 1, optimizer, model, simple.worker(0), sg::host::Threads{1});
    auto d = clipped_pipeline(1, 1, optimizer, model, simple.worker(1), sg::host::Threads{1});
    int clipped = 0;
    for (int step = 0; step < 5; ++step) {
      auto const of_a = map_batch(2 * step);
      auto const of_b = map_batch(2 * step + 1);
      auto const metrics = sg::run_together(a.step(of_a), b.step(of_b));
      auto const expected = sg::run_together(c.step(of_a), d.step(of_b));
      for (std::size_t n = 0; n < 2; ++n) {
        if (expected[n].gradient_norm > 0.8) ++clipped;
        CHECK(metrics[n].gradient_norm == Approx(expected[n].gradient_norm).epsilon(1e-9));
      }
      REQUIRE(difference<double>(a, c, 1) < 1e-10);
      REQUIRE(difference<double>(b, d, 1) < 1e-10);
    }
    CHECK(clipped > 0);
    CHECK(clipped < 10);
  };
  auto const threads = [](int n) { return sg::host::Threads{1 + 2 * n}; };
  StaleSynchronous const stale{1, Pushes::changes, Adds::in_worker_order};
  check(optimizer(), Synchronous{}, threads);
  check(optimizer(), stale, threads);
  check(sg::optimizer::AdamW{.rate = 0.01}, stale, threads);
  sg::sim::VirtualClock device;
  device.clock = sg::sim::Clock({.rate = 1e4});
  device.costs = sg::schedule::Costs::uniform(1, 1, 1);
  check(optimizer(), Synchronous{}, [&](int) { return device; });
}

TEST_CASE("engine/groups: four local steps between means send a quarter, and learn as well",
          "[engine]") {
  struct Result {
    sg::Traffic traffic;
    double loss;
  };
  constexpr int steps = 200;
  auto const train = [](int period) {
    ParameterServer const server({.workers = 2});
    LocalSgd const model{.period = period};
    auto a = plain_pipeline(2, 2, sg::optimizer::Sgd{.rate = 0.02, .momentum = 0.9}, model,
                            server.worker(0), sg::host::Threads{2});
    auto b = plain_pipeline(2, 2, sg::optimizer::Sgd{.rate = 0.02, .momentum = 0.9}, model,
                            server.worker(1), sg::host::Threads{2});
    auto const step = [&](int number) {
      auto const of_a = map_batch(2 * number);
      auto const of_b = map_batch(2 * number + 1);
      static_cast<void>(sg::run_together(a.step(of_a), b.step(of_b)));
    };
    for (int number = 0; number < period; ++number) step(number);  // the first reads all weights
    auto const before = a.traffic();
    for (int number = period; number < steps + period; ++number) step(number);
    return Result{a.traffic() - before, sg::run(a.evaluate(map_batch(1000, 200))).loss};
  };
  Result const each = train(1);
  Result const fourth = train(4);
  // Values and momentum of all parameters, of copies once, each on a boundary of 64 bytes.
  auto const aligned = [](std::size_t elements) {
    return (elements * sizeof(double) + 63) / 64 * 64;
  };
  std::size_t model = aligned(inputs * 8) + aligned(8);  // not split
  model += 2 * (aligned(8 * 6) + aligned(6));            // by outputs
  model += 2 * (aligned(12 * 3) + aligned(3));           // likewise
  model += aligned(6 * outputs) + aligned(outputs);      // behind them
  for (auto const kind : {sg::TrafficKind::pushes, sg::TrafficKind::pulls}) {
    CHECK(each.traffic.of(kind).bytes == steps * 2 * model);
    CHECK(fourth.traffic.of(kind).bytes == steps / 4 * 2 * model);
  }
  // The second member's copy of the last layer takes what the first has received.
  std::size_t const copy = 2 * (aligned(6 * outputs) + aligned(outputs));
  CHECK(each.traffic.of(sg::TrafficKind::parameters).bytes == steps * copy);
  CHECK(fourth.traffic.of(sg::TrafficKind::parameters).bytes == steps / 4 * copy);
  CAPTURE(each.loss, fourth.loss);
  CHECK(each.loss < 0.2);
  CHECK(std::abs(fourth.loss - each.loss) < 0.05 * each.loss);
}

TEST_CASE("engine/replicas: several owners of a stage make one push where each is a replica",
          "[engine]") {
  ParameterServer const server({.workers = 1});
  auto const plain = [&](auto const&... more) {
    sg::Options options;
    options.replicas = {1, 1};
    return sg::Pipeline{model<double>(0)}.with(sg::partition::Cuts{{3}}, sg::schedule::Chimera{},
                                               sg::loss::MeanSquaredError<double>{}, optimizer(),
                                               sg::host::Threads{2}, options, more...);
  };
  auto alone = plain();
  auto worker = plain(server.worker(0));
  for (int step = 0; step < 3; ++step) {
    auto const data = batch<double>(step, 4, 5);
    CHECK(sg::run(worker.step(data)).loss == sg::run(alone.step(data)).loss);
    CHECK(difference<double>(worker, alone, 1) == 0);
  }
}

namespace {

/// Throws where its rows have a certain number.
struct Trap {
  using Input = Matrix<double>;
  using Output = Matrix<double>;
  static constexpr bool element_wise = true;
  void forward(sg::Context& context, Input const& x, Output& y, sg::NothingSaved&) const {
    for (double const value : x)
      if (context.training() && value > 1e6) throw std::runtime_error("too large");
    y = x;
  }
  void backward_input(sg::Context&, Input const&, Output const& dy, Input& dx,
                      sg::NothingSaved&) const {
    dx = dy;
  }
};

}  // namespace

TEST_CASE(
    "engine/groups: a member that fails ends the step of all workers, and its worker applies "
    "nothing",
    "[engine]") {
  auto const made = [](auto const& model, ParameterServer const& server, int n) {
    sg::Options options;
    options.replicas = {4};
    return sg::Pipeline{sg::Sequential{Linear<double>{inputs, 8, 1, false},
                                       Linear<double>{8, 12, 2}, Trap{},
                                       Linear<double>{12, outputs, 3, false}}}
        .with(sg::partition::LayerSplit<>{.group = 2, .threshold = 0},
              sg::loss::MeanSquaredError<double>{}, optimizer(), sg::host::Threads{2}, options,
              model, server.worker(n));
  };
  auto const good = batch<double>(0, 2, 8);
  auto const bad = [](std::size_t row) {
    auto made_bad = batch<double>(1, 2, 8);
    made_bad.inputs[1][row * inputs] = 1e12;
    return made_bad;
  };
  std::vector<std::size_t> const rows{1, 6};  // of the first group, and of the second
  auto const check = [&](auto const& model) {
    ParameterServer const alone({.workers = 1});
    ParameterServer const undisturbed({.workers = 1});
    auto one = made(model, alone, 0);
    auto other = made(model, undisturbed, 0);
    static_cast<void>(sg::run(one.step(good)));
    static_cast<void>(sg::run(other.step(good)));
    for (std::size_t const row : rows) {
      auto const before = bits(one);
      CHECK_THROWS_WITH(sg::run(one.step(bad(row))), "too large");
      CHECK(bits(one) == before);
      CHECK(one.steps() == other.steps());
      static_cast<void>(sg::run(one.step(good)));
      static_cast<void>(sg::run(other.step(good)));
      CHECK(bits(one) == bits(other));
    }
    ParameterServer const server({.workers = 2});
    auto a = made(model, server, 0);
    auto b = made(model, server, 1);
    static_cast<void>(sg::run_together(a.step(good), b.step(good)));
    for (std::size_t const row : rows) {  // what the other worker has pushed may stay
      auto const of_b = bad(row);
      CHECK_THROWS_WITH(sg::run_together(a.step(good), b.step(of_b)), "too large");
      static_cast<void>(sg::run_together(a.step(good), b.step(good)));
      CHECK(bits(a) == bits(b));
    }
  };
  check(Synchronous{});
  check(LocalSgd{.period = 1});
}

TEST_CASE("engine/groups: a durable server that is started again has what groups had", "[engine]") {
  auto const check = [](auto const& model, auto const& make) {
    TemporaryFolder const folder;
    sg::collective::ServerOptions const options{.workers = 2, .durable = folder.path()};
    ParameterServer const near({.workers = 2});
    auto c = make(4, 2, model, near.worker(0));
    auto d = make(2, 2, model, near.worker(1));
    for (int life = 0; life < 2; ++life) {
      ParameterServer const server(options);
      auto a = make(4, 2, model, server.worker(0));
      auto b = make(2, 2, model, server.worker(1));
      for (int step = 4 * life; step < 4 * life + 4; ++step) {
        auto const of_a = map_batch(2 * step);
        auto const of_b = map_batch(2 * step + 1);
        static_cast<void>(sg::run_together(a.step(of_a), b.step(of_b)));
        static_cast<void>(sg::run_together(c.step(of_a), d.step(of_b)));
        REQUIRE(difference<double>(a, c, 1) == 0);
        REQUIRE(difference<double>(b, d, 1) == 0);
      }
    }
    ParameterServer const server(options);
    CHECK_THROWS_WITH(make(4, 4, model, server.worker(0)),
                      Catch::Matchers::Contains("share layers as 'group 4, layers 1 by outputs 2 "
                                                "by outputs', those of the others as 'group 2, "));
    CHECK_THROWS_WITH(make(4, 1, model, server.worker(0)),
                      Catch::Matchers::Contains("share layers as 'none', those of the others as "));
  };
  auto const make = [](int ranks, int group, auto const&... policy) {
    return plain_pipeline(ranks, group, optimizer(), policy...);
  };
  check(Synchronous{}, make);
  check(LocalSgd{.period = 2}, make);
}

TEST_CASE("engine/replicas: what workers with replicas cannot do is refused in one sentence",
          "[engine]") {
  auto const says = [](auto make) -> std::string {
    try {
      static_cast<void>(make());
    } catch (sg::Error const& error) {
      return error.what();
    }
    return "";
  };
  ParameterServer const server({.workers = 2});
  auto const first = plain_pipeline(4, 2, LocalSgd{.period = 2}, server.worker(0));
  CHECK(says([&] { return plain_pipeline(4, 4, LocalSgd{.period = 2}, server.worker(1)); }) ==
        "groups of ranks of worker 1 share layers as 'group 4, layers 1 by outputs 2 by outputs', "
        "those of the others as 'group 2, layers 1 by outputs 2 by outputs'; give all workers the "
        "same partition::LayerSplit");
  CHECK(says([&] { return plain_pipeline(4, 1, LocalSgd{.period = 2}, server.worker(1)); }) ==
        "groups of ranks of worker 1 share layers as 'none', those of the others as 'group 2, "
        "layers 1 by outputs 2 by outputs'; give all workers the same partition::LayerSplit");
  CHECK(says([&] {
          return plain_pipeline(2, 2, LocalSgd{.period = 2}, server.worker(1));
        }).empty());  // the others may have fewer groups
  ParameterServer const late({.workers = 1});
  auto const with = [&](auto const&... policy) {
    sg::Options options;
    options.replicas = {2};
    return sg::Pipeline{plain_model()}.with(sg::loss::MeanSquaredError<double>{}, options,
                                            late.worker(0), policy...);
  };
  CHECK(says([&] { return with(sg::staleness::OverlappedSynchronous<>{}); }) ==
        "layers of a worker with replicas cannot be late, since a rank would take up their values "
        "while others compute; leave Options::replicas out, or use staleness::Synchronous");
  CHECK(says([&] {
          return with(sg::staleness::WaveSynchronous{.in_flight = 2, .distance = 0},
                      sg::schedule::Fifo{2});
        }) ==
        "replicas of a worker cannot take a stream of minibatches; leave Options::replicas out, or "
        "let the staleness model be synchronous");
}

}  // namespace worker_replicas_test
