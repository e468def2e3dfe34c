// SPDX-License-Identifier: Apache-2.0
#include <stagger/mpi/parameter_server.hpp>

#include "catch.hpp"

#include <stagger/mpi/processes.hpp>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <stagger/collective/grouping/layerwise.hpp>
#include <stagger/collective/parameter_server.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/partition/cuts.hpp>
#include <stagger/placement/parameter_placement.hpp>
#include <stagger/schedule/fifo.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/schedule/proof/verify.hpp>
#include <stagger/staleness/asynchronous.hpp>
#include <stagger/staleness/local_sgd.hpp>
#include <stagger/staleness/overlapped_synchronous.hpp>
#include <stagger/staleness/round_robin_synchronous.hpp>
#include <stagger/staleness/stale_synchronous.hpp>
#include <stagger/staleness/wave_synchronous.hpp>
#include <stagger/train/pipeline.hpp>

#include "sweep.hpp"
#include "unit/train/forwarding_link.hpp"
#include "unit/train/in_groups.hpp"
#include "unit/train/overlapped_oracle.hpp"
#include "unit/train/replay.hpp"

// Runs on as many processes as mpirun starts. Each assertion holds in every process.

namespace workers_test {

namespace {

using namespace plain_layers;
namespace link = sg::collective::detail;

int processes() {
  int n = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &n);
  return n;
}

/// A server in each process, for the layers that lie there in all workers.
class LocalLink final : public Forwarding {
 public:
  LocalLink(sg::collective::ParameterServer const& server, int worker)
      : Forwarding(server.worker(worker).link()) {}
  void join(std::span<link::LayerParameters const> layers, sg::detail::WorkerRules const& rules,
            sg::detail::ParameterListener& listener) override {
    sg::FixedArray<link::LayerParameters> whole(layers.size());
    for (std::size_t l = 0; l < layers.size(); ++l) {
      sg::List<sg::detail::ParameterDeclaration> declarations;
      for (std::size_t i = 0; i < layers[l].count(); ++i)
        declarations.push_back(layers[l].declaration(i));
      whole[l].adopt(std::move(declarations), static_cast<int>(l), 0);
    }
    Forwarding::join({whole.data(), whole.size()}, rules, listener);
  }
  [[nodiscard]] bool span(int) noexcept override { return true; }
};

std::vector<int> even_cuts(int stages) {
  std::vector<int> cuts;
  for (int s = 1; s < stages; ++s) cuts.push_back(layers * s / stages);
  return cuts;
}

auto model(int fail_at = -1) {
  std::vector<Layer> stack;
  for (int l = 0; l < layers; ++l) stack.emplace_back(l);
  stack.back().fail_at = fail_at;
  return sg::Sequential{std::move(stack)};
}

sg::collective::ServerWorker spanning(sg::collective::ParameterServer const& server, int worker) {
  return sg::collective::ServerWorker(std::make_shared<LocalLink>(server, worker));
}

sg::optimizer::AdamW const adam{.rate = 0.05, .weight_decay = 0.1};

auto streaming(int in_flight, int distance, sg::collective::ServerWorker worker, auto device,
               int fail_at = -1, double deadline_s = 60) {
  return sg::Pipeline{model(fail_at)}.with(
      sg::partition::Cuts{even_cuts(processes())}, sg::schedule::Fifo{.in_flight = in_flight},
      sg::staleness::WaveSynchronous{.in_flight = in_flight,
                                     .distance = distance,
                                     .adds = sg::staleness::Adds::in_worker_order},
      std::move(worker), Loss{}, adam, device, sg::Options{.deadline_s = deadline_s});
}
auto stepping(sg::collective::ServerWorker worker, auto device) {
  return sg::Pipeline{model()}.with(sg::partition::Cuts{even_cuts(processes())},
                                    sg::schedule::OneFOneB{}, std::move(worker), Loss{}, adam,
                                    device);
}

/// Both pairs of workers take the same streams, and have the same losses.
template <class Far, class Near> void stream_alike(Far& a, Far& b, Near& c, Near& d, int stream) {
  auto const of_a = data(11, 10.0 * stream);
  auto const of_b = data(11, 10.0 * stream + 1);
  auto const there = sg::run_together(a.stream(of_a), b.stream(of_b));
  auto const here = sg::run_together(c.stream(of_a), d.stream(of_b));
  REQUIRE(there[0].loss == here[0].loss);
  REQUIRE(there[1].loss == here[1].loss);
}

}  // namespace

TEST_CASE("mpi/Processes: workers that stream over processes have the bits of workers on threads",
          "[mpi]") {
  for (int const in_flight : {1, 4})
    for (int const distance : {0, 1}) {
      CAPTURE(in_flight, distance);
      sg::collective::ParameterServer const server({.workers = 2});
      sg::collective::ParameterServer const expected({.workers = 2});
      auto a = streaming(in_flight, distance, spanning(server, 0), sg::mpi::Processes{});
      auto b = streaming(in_flight, distance, spanning(server, 1), sg::mpi::Processes{});
      auto c = streaming(in_flight, distance, expected.worker(0), sg::host::Threads{1});
      auto d = streaming(in_flight, distance, expected.worker(1), sg::host::Threads{1});
      for (int stream = 0; stream < 2; ++stream) {
        stream_alike(a, b, c, d, stream);
        REQUIRE(a.steps() == c.steps());
      }
      for (auto* const train : {&a, &b}) {
        train->gather_parameters();
        REQUIRE(weights(*train) == weights(c));
      }
    }
}

TEST_CASE("mpi/Processes: workers that step over processes have the bits of workers on threads",
          "[mpi]") {
  sg::collective::ParameterServer const server({.workers = 2});
  sg::collective::ParameterServer const expected({.workers = 2});
  auto a = stepping(spanning(server, 0), sg::mpi::Processes{});
  auto b = stepping(spanning(server, 1), sg::mpi::Processes{});
  auto c = stepping(expected.worker(0), sg::host::Threads{1});
  auto d = stepping(expected.worker(1), sg::host::Threads{1});
  for (int step = 0; step < 4; ++step) {
    auto const of_a = data(4, 10.0 * step);
    auto const of_b = data(4, 10.0 * step + 1);
    auto const there = sg::run_together(a.step(of_a), b.step(of_b));
    auto const here = sg::run_together(c.step(of_a), d.step(of_b));
    REQUIRE(there[0].loss == here[0].loss);
    double const held_out = sg::run(a.evaluate(of_b)).loss;
    REQUIRE(held_out == sg::run(c.evaluate(of_b)).loss);
  }
  a.gather_parameters();
  REQUIRE(weights(a) == weights(c));
}

TEST_CASE("mpi/Processes: a worker that fails ends the streams of the others in all processes",
          "[mpi]") {
  sg::collective::ParameterServer const server({.workers = 2});
  auto a = streaming(2, 0, spanning(server, 0), sg::mpi::Processes{});
  auto b = streaming(2, 0, spanning(server, 1), sg::mpi::Processes{}, 7);
  auto const batch = data(12);
  REQUIRE_THROWS_WITH(
      sg::run_together(a.stream(batch), b.stream(batch)),
      Catch::Matchers::Contains("out of ink") || Catch::Matchers::Contains(" has failed after "));
  auto const good = data(6);
  sg::run_together(a.stream(good), b.stream(good));
  a.gather_parameters();
  b.gather_parameters();
  REQUIRE(weights(a) == weights(b));
}

TEST_CASE("mpi/Processes: a worker that waits too long names the other and its pushes", "[mpi]") {
  sg::collective::ParameterServer const server({.workers = 2});
  auto a = streaming(2, 0, spanning(server, 0), sg::mpi::Processes{}, -1, 0.5);
  auto b = streaming(2, 0, spanning(server, 1), sg::mpi::Processes{}, -1, 0.5);
  auto const batch = data(8);
  REQUIRE_THROWS_WITH(run(a.stream(batch)),
                      Catch::Matchers::Contains("worker 1, which has made 0 pushes"));
}

TEST_CASE("mpi/Processes: refuses a server that lies in one process", "[mpi]") {
  sg::collective::ParameterServer const server({.workers = 1});
  REQUIRE_THROWS_WITH(streaming(2, 0, server.worker(0), sg::mpi::Processes{}),
                      Catch::Matchers::Contains("lies in one of them"));
}

namespace {

int process() {
  int n = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &n);
  return n;
}

/// Workers of the MPI server whose processes this is one of.
std::vector<int> workers_here(int workers) {
  std::vector<int> own;
  for (int w = process(); w < workers; w += processes()) own.push_back(w);
  return own;
}

using workers_oracle::cuts_of;

template <class Model>
auto on_threads(sg::collective::ServerWorker worker, int number, Model const& staleness,
                auto schedule, int fail_at = -1, sg::optimizer::AdamW const& optimizer = adam,
                double deadline_s = 60) {
  return sg::Pipeline{model(fail_at)}.with(
      sg::partition::Cuts{cuts_of(number)}, schedule, staleness, std::move(worker), Loss{},
      optimizer, sg::host::Threads{1}, sg::Options{.deadline_s = deadline_s});
}

/// Some layers are late, one of them in part.
sg::staleness::OverlappedSynchronous<sg::staleness::overlapped::ParameterGradientProduct,
                                     sg::staleness::overlapped::SplitLayer,
                                     sg::staleness::overlapped::ShareLate> const split_late{
    .budget = {0.6}};

sg::staleness::WaveSynchronous exact(int in_flight, int distance) {
  return {
      .in_flight = in_flight, .distance = distance, .adds = sg::staleness::Adds::in_worker_order};
}

/// The layers in each process in turn; all in the last one; the first ones in the last.
std::vector<std::vector<int>> placements() {
  int const last = processes() - 1;
  return {{}, std::vector<int>(layers, last), {last, 0, last, 0}};
}

/// Carries out `count` rounds in all workers, each in one process, and the same with all workers in
/// this process; then both must have the same bits. Those are looked at after every so many rounds.
template <class Make, class Take, class Model = sg::staleness::Synchronous>
void require_same_workers(int workers, std::vector<int> const& layer_processes, Make make,
                          Take take, int count, int look_every = 1, Model const& staleness = {}) {
  sg::mpi::ParameterServer const server({.workers = workers, .layer_processes = layer_processes},
                                        adam, staleness);
  sg::collective::ParameterServer const near({.workers = workers});
  {
    using Trainer = decltype(make(server.worker(0), 0));
    std::vector<Trainer> there;
    std::vector<Trainer> here;
    auto const own = workers_here(workers);
    for (int const w : own) there.push_back(make(server.worker(w), w));
    for (int w = 0; w < workers; ++w) here.push_back(make(near.worker(w), w));
    for (int round = 0; round < count; ++round) {
      std::vector<Batch> batches;
      for (int w = 0; w < workers; ++w) batches.push_back(data(11, w + 10.0 * round));
      std::vector<sg::Step> over;
      std::vector<sg::Step> expected;
      for (std::size_t k = 0; k < own.size(); ++k)
        over.push_back(take(there[k], batches[static_cast<std::size_t>(own[k])]));
      for (std::size_t w = 0; w < here.size(); ++w) expected.push_back(take(here[w], batches[w]));
      std::vector<sg::Steps> all_over(std::make_move_iterator(over.begin()),
                                      std::make_move_iterator(over.end()));
      std::vector<sg::Steps> all_expected(std::make_move_iterator(expected.begin()),
                                          std::make_move_iterator(expected.end()));
      sg::run_together(std::move(all_over));
      sg::run_together(std::move(all_expected));
      if (round % look_every != look_every - 1) continue;
      std::vector<std::vector<Numbers>> looked;  // all of them, which waits for what is late
      for (auto& each : here) looked.push_back(weights(each));
      for (std::size_t k = 0; k < own.size(); ++k)
        REQUIRE(weights(there[k]) == looked[static_cast<std::size_t>(own[k])]);
    }
  }
  server.serve();
}

/// What the processes remember of the layers that they keep, in all of them, once all have ended.
std::vector<std::vector<workers_oracle::ServerEvent>> logs_of_all(
    sg::mpi::ParameterServer const& server, std::vector<int> const& layer_processes) {
  MPI_Barrier(MPI_COMM_WORLD);
  std::vector<std::vector<workers_oracle::ServerEvent>> all(layers);
  for (std::size_t l = 0; l < layers; ++l) {
    int const keeper =
        layer_processes.empty() ? static_cast<int>(l) % processes() : layer_processes[l];
    if (process() == keeper)
      all[l] = server.log(l);
    else
      REQUIRE_THROWS_WITH(server.log(l), Catch::Matchers::Contains("; ask there"));
    auto size = static_cast<int>(all[l].size());
    MPI_Bcast(&size, 1, MPI_INT, keeper, MPI_COMM_WORLD);
    all[l].resize(static_cast<std::size_t>(size));
    MPI_Bcast(all[l].data(), size * static_cast<int>(sizeof all[l][0]), MPI_BYTE, keeper,
              MPI_COMM_WORLD);
  }
  return all;
}

/// Half of the processes, which share a worker; with one process, all of them.
struct Half {
  int workers = processes() > 1 ? 2 : 1;
  int own = process() * workers / processes();  // the worker of this process
  MPI_Comm processes_of_it = MPI_COMM_NULL;
  int stages = 0;  // one in each of them
  Half() {
    MPI_Comm_split(MPI_COMM_WORLD, own, 0, &processes_of_it);
    MPI_Comm_size(processes_of_it, &stages);
  }
  Half(Half const&) = delete;
  Half& operator=(Half const&) = delete;
  ~Half() { MPI_Comm_free(&processes_of_it); }
  [[nodiscard]] sg::mpi::Processes device() const { return {.processes = processes_of_it}; }
};

auto const streams = [](auto& train, Batch const& batch) { return train.stream(batch); };
auto const steps = [](auto& train, Batch const& batch) { return train.step(batch); };

}  // namespace

TEST_CASE("mpi/ParameterServer: steps have the bits of a server in one process", "[mpi]") {
  for (auto const& layer_processes : placements()) {
    CAPTURE(layer_processes);
    auto const in_step = [](sg::collective::ServerWorker worker, int number) {
      return on_threads(std::move(worker), number, sg::staleness::Synchronous{},
                        sg::schedule::OneFOneB{});
    };
    for (int const workers : {1, 2, 4})
      require_same_workers(workers, layer_processes, in_step, steps, 3);
    auto const local = [](sg::collective::ServerWorker worker, int number) {
      return on_threads(std::move(worker), number, sg::staleness::LocalSgd{.period = 2},
                        sg::schedule::OneFOneB{});
    };
    require_same_workers(3, layer_processes, local, steps, 4);
    auto const in_turn = [](sg::collective::ServerWorker worker, int number) {
      return on_threads(std::move(worker), number, sg::staleness::RoundRobinSynchronous{},
                        sg::schedule::OneFOneB{});
    };
    require_same_workers(3, layer_processes, in_turn, steps, 3);
  }
}

namespace {

/// Each time another one of `placements`.
class Placements {
 public:
  std::vector<int> const& next() { return all_[next_++ % all_.size()]; }

 private:
  std::vector<std::vector<int>> all_ = placements();
  std::size_t next_ = 0;
};

}  // namespace

TEST_CASE("mpi/ParameterServer: in the order of workers it has the bits of a sequential loop",
          "[mpi]") {
  Placements where;
  workers_oracle::sweep_waves(Sweep(167, processes()), [&](workers_oracle::Waves const& waves,
                                                           int rotation, int threads,
                                                           int minibatches, auto const& optimizer) {
    auto const& layer_processes = where.next();
    CAPTURE(layer_processes, threads);
    sg::mpi::ParameterServer const server(
        {.workers = waves.workers, .layer_processes = layer_processes});
    workers_oracle::compare_streams(
        waves, workers_here(waves.workers), minibatches, optimizer, [&](int n) {
          return workers_oracle::make(waves, server, n, cuts_of(n, rotation), threads, optimizer);
        });
    server.serve();
  });
}

TEST_CASE("mpi/ParameterServer: steps that push changes have the bits of a sequential loop",
          "[mpi]") {
  Placements where;
  workers_oracle::sweep_stale(
      Sweep(11, processes()),
      [&](workers_oracle::Stale const& stale, int rotation, int threads, auto const& optimizer) {
        auto const& layer_processes = where.next();
        CAPTURE(layer_processes);
        sg::mpi::ParameterServer const server(
            {.workers = stale.workers, .layer_processes = layer_processes});
        workers_oracle::compare_changes(stale, workers_here(stale.workers), optimizer, [&](int n) {
          return workers_oracle::stepping(stale.model(), server, n, optimizer, cuts_of(n, rotation),
                                          threads);
        });
        server.serve();
      });
}

TEST_CASE("mpi/ParameterServer: gradient groups have the bits of a sequential loop", "[mpi]") {
  workers_oracle::sweep_stale(
      Sweep(12, processes()),
      [](workers_oracle::Stale const& stale, int rotation, int threads, auto const& optimizer) {
        sg::mpi::ParameterServer const server({.workers = stale.workers});
        workers_oracle::InGroups const in_groups{server, sg::collective::grouping::Layerwise{}};
        workers_oracle::compare_changes(stale, workers_here(stale.workers), optimizer, [&](int n) {
          return workers_oracle::stepping(stale.model(), in_groups, n, optimizer,
                                          cuts_of(n, rotation), threads);
        });
        server.serve();
      });
}

TEST_CASE("mpi/ParameterServer: a worker over processes does not push gradient groups", "[mpi]") {
  sg::collective::ParameterServer const server({.workers = 1});
  sg::collective::GroupedPushes const pushes{server.worker(0)};
  CHECK_THROWS_WITH(
      (sg::Pipeline{sg::Sequential{std::vector<plain_layers::Layer>{plain_layers::Layer(0),
                                                                    plain_layers::Layer(1)}}}
           .with(sg::partition::Cuts{{1}}, sg::staleness::Synchronous{}, pushes,
                 plain_layers::Loss{}, sg::mpi::Processes{})),
      Catch::Matchers::Contains("a worker over processes pushes at the end of a step, so "
                                "that its layers cannot be pushed in groups"));
}

namespace {

/// What all workers have seen, each of them in one process.
std::vector<std::vector<workers_oracle::Seen>> of_all_processes(
    std::vector<std::vector<workers_oracle::Seen>> seen) {
  for (std::size_t n = 0; n < seen.size(); ++n)
    for (auto& [values] : seen[n]) {
      int const from = static_cast<int>(n) % processes();
      auto size = static_cast<int>(values.size());
      MPI_Bcast(&size, 1, MPI_INT, from, MPI_COMM_WORLD);
      values.resize(static_cast<std::size_t>(size));
      MPI_Bcast(values.data(), size, MPI_FLOAT, from, MPI_COMM_WORLD);
    }
  return seen;
}

}  // namespace

TEST_CASE("mpi/ParameterServer: carried out again, its logs give the bits of drifting steps",
          "[mpi]") {
  Placements where;
  Sweep sweep(15, processes());
  auto const replay = [&](auto const& model, int workers, int rotation, int threads) {
    if (!sweep.takes()) return;
    auto const& layer_processes = where.next();
    CAPTURE(layer_processes, rotation, threads);
    sg::mpi::ParameterServer const server(
        {.workers = workers, .log = true, .layer_processes = layer_processes}, adam);
    workers_oracle::replay_drifting(
        model.pushes, workers, workers_here(workers),
        [&] { return logs_of_all(server, layer_processes); },
        [&](int n) {
          return workers_oracle::stepping(model, server, n, adam, cuts_of(n, rotation), threads);
        });
    server.serve();
  };
  using sg::staleness::Pushes;
  workers_oracle::sweep_steps([&](int workers, int rotation, int threads) {
    for (auto const pushes : {Pushes::gradients, Pushes::changes}) {
      replay(sg::staleness::Asynchronous{pushes}, workers, rotation, threads);
      for (int const bound : {0, 1, 3})
        replay(sg::staleness::StaleSynchronous{bound, pushes}, workers, rotation, threads);
    }
    replay(sg::staleness::RoundRobinSynchronous{}, workers, rotation, threads);
  });
}

TEST_CASE("mpi/ParameterServer: carried out again, its logs give the bits of waves on arrival",
          "[mpi]") {
  Placements where;
  workers_oracle::sweep_waves(
      Sweep(173, processes()), [&](workers_oracle::Waves const& waves, int rotation, int threads,
                                   int minibatches, auto const& optimizer) {
        auto const& layer_processes = where.next();
        CAPTURE(layer_processes, threads);
        sg::mpi::ParameterServer const server(
            {.workers = waves.workers, .log = true, .layer_processes = layer_processes});
        workers_oracle::replay_waves(
            waves, workers_here(waves.workers), minibatches, optimizer,
            [&] { return logs_of_all(server, layer_processes); }, of_all_processes,
            [&](int n, auto& seen) {
              return workers_oracle::make_noting(waves, server.worker(n), cuts_of(n, rotation),
                                                 sg::host::Threads{threads}, optimizer, seen);
            });
        server.serve();
      });
}

TEST_CASE("mpi/ParameterServer: layers that lie where they run change no bit", "[mpi]") {
  auto const cuts = even_cuts(processes());
  sg::placement::Worker each{.cuts = cuts, .nodes = {}};
  for (int p = 0; p < processes(); ++p) each.nodes.push_back(p);
  std::vector<sg::placement::Worker> const both{each, each};
  auto const where = sg::placement::Local{}.layer_nodes(layers, processes(), both);
  for (int l = 0; l < layers; ++l)
    REQUIRE(where[static_cast<std::size_t>(l)] ==
            std::upper_bound(cuts.begin(), cuts.end(), l) - cuts.begin());
  sg::mpi::ParameterServer const server({.workers = 2, .layer_processes = where});
  sg::collective::ParameterServer const near({.workers = 2});
  {
    auto a = streaming(4, 1, server.worker(0), sg::mpi::Processes{});
    auto b = streaming(4, 1, server.worker(1), sg::mpi::Processes{});
    auto c = streaming(4, 1, near.worker(0), sg::host::Threads{1});
    auto d = streaming(4, 1, near.worker(1), sg::host::Threads{1});
    for (int stream = 0; stream < 2; ++stream) stream_alike(a, b, c, d, stream);
    a.gather_parameters();
    REQUIRE(weights(a) == weights(c));
  }
  server.serve();
}

TEST_CASE("mpi/Processes: processes that name different workers of a server are refused", "[mpi]") {
  if (processes() == 1) return;
  sg::mpi::ParameterServer const server({.workers = 2});
  REQUIRE_THROWS_WITH(streaming(2, 0, server.worker(process() == 0 ? 0 : 1), sg::mpi::Processes{}),
                      Catch::Matchers::Contains("the worker of the parameter server"));
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST_CASE("mpi/ParameterServer: late layers have the bits of a sequential loop", "[mpi]") {
  using namespace overlapped_oracle;
  Placements where;
  Sweep sweep(3, processes());
  workers_oracle::sweep_steps([&](int workers, int rotation, int threads) {
    if (!sweep.takes()) return;
    auto const& layer_processes = where.next();
    CAPTURE(layer_processes, rotation, threads);
    sg::mpi::ParameterServer const server({.workers = workers, .layer_processes = layer_processes},
                                          adam, local_split);
    compare_late(
        local_split_rules(), adam, workers, workers_here(workers),
        [&](int n) {
          return workers_oracle::stepping(local_split, server, n, adam, cuts_of(n, rotation),
                                          threads);
        },
        7);
    server.serve();
  });
}

TEST_CASE("mpi/ParameterServer: late layers have the bits of a server in one process", "[mpi]") {
  for (auto const& layer_processes : placements()) {
    CAPTURE(layer_processes);
    auto const late = [](sg::collective::ServerWorker worker, int number) {
      return on_threads(std::move(worker), number, split_late, sg::schedule::OneFOneB{});
    };
    for (int const workers : {1, 2, 3})
      require_same_workers(workers, layer_processes, late, steps, 6, 3, split_late);
  }
}

TEST_CASE("mpi/ParameterServer: workers over processes have the bits of workers on threads",
          "[mpi]") {
  Half const half;
  int const count = half.workers;
  int const own = half.own;
  for (auto const& layer_processes : placements())
    for (std::string const kind :
         {"stream", "step", "changes", "in turn", "clipped", "clipped changes", "local",
          "local clipped", "local with own state"}) {
      CAPTURE(layer_processes, kind);
      constexpr double clip = 0.05;
      bool const clips = kind.find("clipped") != std::string::npos;
      sg::mpi::ParameterServer const server({.workers = count, .layer_processes = layer_processes},
                                            adam);
      sg::collective::ParameterServer const near({.workers = count});
      auto const make = [&](sg::collective::ServerWorker worker, auto device, int number,
                            auto model, auto schedule) {
        sg::Options options;
        if (clips) options.clip_norm = clip;
        return sg::Pipeline{workers_test::model()}.with(
            sg::partition::Cuts{even_cuts(number == own ? half.stages : 2)}, schedule, model,
            std::move(worker), Loss{}, adam, device, options);
      };
      auto const compare = [&](auto staleness, auto schedule, auto take) {
        auto there = make(server.worker(own), half.device(), own, staleness, schedule);
        using Trainer =
            decltype(make(near.worker(0), sg::host::Threads{1}, 0, staleness, schedule));
        std::vector<Trainer> here;
        for (int w = 0; w < count; ++w)
          here.push_back(make(near.worker(w), sg::host::Threads{1}, w, staleness, schedule));
        for (int round = 0; round < 3; ++round) {
          std::vector<Batch> batches;
          for (int w = 0; w < count; ++w) batches.push_back(data(8, w + 10.0 * round));
          sg::Metrics const metrics = sg::run(take(there, batches[static_cast<std::size_t>(own)]));
          std::vector<sg::Steps> expected;
          for (std::size_t w = 0; w < here.size(); ++w)
            expected.emplace_back(take(here[w], batches[w]));
          auto const all = sg::run_together(std::move(expected));
          REQUIRE(metrics.loss == all[static_cast<std::size_t>(own)].loss);
          REQUIRE(metrics.gradient_norm == all[static_cast<std::size_t>(own)].gradient_norm);
          REQUIRE((metrics.gradient_norm > clip) == clips);
          double const held_out = sg::run(there.evaluate(batches[0])).loss;
          auto& same = here[static_cast<std::size_t>(own)];
          REQUIRE(held_out == sg::run(same.evaluate(batches[0])).loss);
          there.gather_parameters();
          REQUIRE(weights(there) == weights(same));
          REQUIRE(states(there) == states(same));
        }
      };
      if (kind == "stream")
        compare(exact(4, 1), sg::schedule::Fifo{.in_flight = 4}, streams);
      else if (kind == "step" || kind == "clipped")
        compare(sg::staleness::Synchronous{}, sg::schedule::OneFOneB{}, steps);
      else if (kind.starts_with("local"))
        compare(sg::staleness::LocalSgd{.period = 2, .average_state = !kind.ends_with("own state")},
                sg::schedule::OneFOneB{}, steps);
      else if (kind == "in turn")
        compare(sg::staleness::RoundRobinSynchronous{}, sg::schedule::OneFOneB{}, steps);
      else
        compare(workers_oracle::Stale{count, 2}.model(), sg::schedule::OneFOneB{}, steps);
      server.serve();
    }
}

TEST_CASE(
    "mpi/ParameterServer: late layers of workers over processes have the bits of a sequential "
    "loop",
    "[mpi]") {
  using namespace overlapped_oracle;
  namespace osp = sg::staleness::overlapped;
  Half const half;
  auto const check = [&](auto const& staleness, Rules const& rules, int look_every, double clip) {
    for (auto const& layer_processes : placements()) {
      CAPTURE(layer_processes, look_every, clip);
      sg::mpi::ParameterServer const server(
          {.workers = half.workers, .layer_processes = layer_processes}, adam, staleness);
      {
        sg::Options options;
        if (clip != 0) options.clip_norm = clip;
        auto train = sg::Pipeline{model()}.with(sg::partition::Cuts{even_cuts(half.stages)},
                                                staleness, server.worker(half.own), Loss{}, adam,
                                                half.device(), options);
        Oracle<sg::optimizer::AdamW> oracle{adam, rules, static_cast<std::size_t>(half.workers),
                                            clip};
        for (int step = 0; step < 7; ++step) {
          CAPTURE(step);
          std::vector<Batch> batches;
          for (int n = 0; n < half.workers; ++n) batches.push_back(data(3, n + 10.0 * step));
          static_cast<void>(sg::run(train.step(batches[static_cast<std::size_t>(half.own)])));
          oracle.train(batches);
          if (step % look_every != look_every - 1) continue;
          if (step % 2 == 0) static_cast<void>(sg::run(train.evaluate(batches[0])));
          train.gather_parameters();
          REQUIRE(weights(train) == oracle.p);
          oracle.theta.assign(oracle.workers, oracle.p);  // looking has brought what was late
        }
        CHECK((clip != 0 || oracle.split_steps == (rules.misfit == Rules::splits ? 7 : 0)));
      }
      server.serve();
    }
  };
  for (int const look_every : {1, 3, 7}) {
    check(local_split, local_split_rules(), look_every, 0);
    check(local_split, local_split_rules(), look_every, 0.05);
    Rules mixed = products(0.6);
    mixed.alpha = 0.3, mixed.gamma = 0.8;
    check(
        sg::staleness::OverlappedSynchronous<osp::ParameterGradientProduct, osp::FirstFit,
                                             osp::ShareLate, osp::MeanGradient>{
            .budget = {0.6}, .prediction = {.alpha = 0.3, .gamma = 0.8}},
        mixed, look_every, 0);
  }
}

TEST_CASE(
    "mpi/ParameterServer: after a failure, late layers over processes go on from what was pushed",
    "[mpi]") {
  using namespace overlapped_oracle;
  Half const half;
  auto const own = static_cast<std::size_t>(half.own);
  for (auto const& layer_processes : placements()) {
    CAPTURE(layer_processes);
    sg::mpi::ParameterServer const server(
        {.workers = half.workers, .layer_processes = layer_processes}, adam, local_split);
    {
      auto train = sg::Pipeline{model(half.own == 0 ? 4 : -1)}.with(
          sg::partition::Cuts{even_cuts(half.stages)}, local_split, server.worker(half.own), Loss{},
          adam, half.device());
      Oracle<sg::optimizer::AdamW> oracle{adam, local_split_rules(),
                                          static_cast<std::size_t>(half.workers)};
      auto const take_three = [&] {
        for (int step = 0; step < 3; ++step) {
          std::vector<Batch> batches;
          for (int n = 0; n < half.workers; ++n) batches.push_back(data(3, n + 10.0 * oracle.step));
          static_cast<void>(sg::run(train.step(batches[own])));
          oracle.train(batches);
        }
        MPI_Barrier(MPI_COMM_WORLD);
      };
      take_three();
      if (half.own == 0) {
        train.gather_parameters();  // waits for late pushes, so that the server has all of them
        REQUIRE_THROWS_WITH(
            sg::run(train.step(data(6))),
            Catch::Matchers::Contains("out of ink") || Catch::Matchers::Contains("has failed"));
      }
      MPI_Barrier(MPI_COMM_WORLD);
      train.gather_parameters();  // late values do not come any more; the server has added them
      REQUIRE(weights(train) == oracle.p);
      MPI_Barrier(MPI_COMM_WORLD);
      oracle.theta.assign(oracle.workers, oracle.p);
      oracle.late.assign(layers, 0);
      take_three();
      train.gather_parameters();
      REQUIRE(weights(train) == oracle.p);
    }
    server.serve();
  }
}

namespace {

/// With an odd number of microbatches, the stages are on the ranks in the reverse order.
struct Turning {
  using policy_tag = sg::ScheduleTag;
  static constexpr bool flushes = true;
  [[nodiscard]] static int chunks() { return 1; }
  [[nodiscard]] static sg::schedule::Table table(sg::Shape shape) {
    auto const usual = sg::schedule::OneFOneB{}.table(shape);
    if (shape.microbatches % 2 == 0) return usual;
    sg::schedule::Table turned;
    turned.stages = usual.stages;
    turned.microbatches = usual.microbatches;
    for (int r = usual.ranks() - 1; r >= 0; --r) {
      turned.begin_row();
      for (auto const& action : usual.row(r)) turned.add(action);
    }
    return turned;
  }
};

}  // namespace

TEST_CASE("mpi/ParameterServer: local steps go on where another program puts the stages", "[mpi]") {
  for (bool const state : {true, false}) {
    sg::mpi::ParameterServer const server({.workers = 1});
    sg::collective::ParameterServer const near({.workers = 1});
    {
      auto const make = [&](sg::collective::ServerWorker worker, auto device) {
        return sg::Pipeline{model()}.with(
            sg::partition::Cuts{even_cuts(processes())}, Turning{},
            sg::staleness::LocalSgd{.period = 3, .average_state = state}, std::move(worker), Loss{},
            adam, device);
      };
      auto there = make(server.worker(0), sg::mpi::Processes{});
      auto here = make(near.worker(0), sg::host::Threads{1});
      for (int const microbatches : {4, 3, 3, 2, 5, 1, 2}) {
        auto const batch = data(microbatches, 10.0 * microbatches);
        REQUIRE(sg::run(there.step(batch)).loss == sg::run(here.step(batch)).loss);
      }
      there.gather_parameters();
      REQUIRE(weights(there) == weights(here));
      REQUIRE(states(there) == states(here));
    }
    server.serve();
  }
}

TEST_CASE("mpi/ParameterServer: after a failure, local steps over processes go on from a mean",
          "[mpi]") {
  Half const half;
  sg::mpi::ParameterServer const server({.workers = half.workers});
  {
    auto train = sg::Pipeline{model(half.own == 0 ? 4 : -1)}.with(
        sg::partition::Cuts{even_cuts(half.stages)}, sg::staleness::LocalSgd{.period = 3},
        server.worker(half.own), Loss{}, adam, half.device());
    auto const take = [&](int microbatches) -> std::string {
      try {
        static_cast<void>(sg::run(train.step(data(microbatches, half.own))));
      } catch (std::exception const& error) {
        return error.what();
      }
      return {};
    };
    for (int step = 0; step < 3; ++step) REQUIRE(take(2).empty());
    train.gather_parameters();
    auto const mean = weights(train);
    REQUIRE(take(2).empty());  // a step beyond the mean
    train.gather_parameters();
    REQUIRE(weights(train) != mean);
    MPI_Barrier(MPI_COMM_WORLD);
    if (half.own == 0)
      REQUIRE_THAT(take(6), Catch::Matchers::Contains("out of ink") ||
                                Catch::Matchers::Contains("has failed"));
    MPI_Barrier(MPI_COMM_WORLD);  // the others learn of it in their next exchange, before they push
    std::string said;
    for (int step = 0; step < 2 && half.own != 0 && said.empty(); ++step) said = take(2);
    if (half.own != 0) REQUIRE_THAT(said, Catch::Matchers::Contains("has failed"));
    train.gather_parameters();
    REQUIRE(weights(train) == mean);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int step = 0; step < 3; ++step) REQUIRE(take(2).empty());
    train.gather_parameters();
    REQUIRE(weights(train) != mean);
    for (Numbers const& layer : weights(train)) {
      Numbers first = layer;
      MPI_Bcast(first.data(), static_cast<int>(first.size()), MPI_FLOAT, 0, MPI_COMM_WORLD);
      REQUIRE(first == layer);
    }
  }
  server.serve();
}

TEST_CASE(
    "mpi/ParameterServer: workers over processes that drift apart have the bits of the server's "
    "logs",
    "[mpi]") {
  Half const half;
  constexpr int count = 8;
  auto const N = static_cast<std::size_t>(half.workers);
  std::vector<std::vector<Batch>> batches(N);
  for (std::size_t n = 0; n < N; ++n)
    for (int step = 0; step < count; ++step)
      batches[n].push_back(data(2, static_cast<double>(n) + 10.0 * step));
  for (auto const& layer_processes : placements()) {
    auto const drift = [&](auto const& staleness) {
      CAPTURE(layer_processes);
      sg::mpi::ParameterServer const server(
          {.workers = half.workers, .log = true, .layer_processes = layer_processes}, adam);
      {
        auto train = sg::Pipeline{model()}.with(
            sg::partition::Cuts{even_cuts(half.stages)}, sg::schedule::OneFOneB{}, staleness,
            server.worker(half.own), Loss{}, adam, half.device());
        for (Batch const& batch : batches[static_cast<std::size_t>(half.own)])
          static_cast<void>(sg::run(train.step(batch)));
        workers_oracle::Replay replay(logs_of_all(server, layer_processes), N);
        workers_oracle::replay_steps(replay, adam, batches, staleness.pushes);
        train.gather_parameters();
        REQUIRE(weights(train) == replay.taken(static_cast<std::size_t>(half.own), count));
      }
      server.serve();
    };
    for (auto const pushes : {sg::staleness::Pushes::gradients, sg::staleness::Pushes::changes}) {
      drift(sg::staleness::Asynchronous{pushes});
      drift(sg::staleness::StaleSynchronous{1, pushes});
    }
    drift(sg::staleness::RoundRobinSynchronous{});
  }
}

TEST_CASE("mpi/ParameterServer: a worker that fails ends the streams of the others", "[mpi]") {
  int const workers = processes();
  sg::mpi::ParameterServer const server({.workers = workers});
  {
    auto train = on_threads(server.worker(process()), process(), exact(2, 0),
                            sg::schedule::Fifo{.in_flight = 2}, process() == 0 ? 7 : -1);
    auto const batch = data(12);
    std::string said;
    try {
      static_cast<void>(sg::run(train.stream(batch)));
    } catch (std::exception const& error) {
      said = error.what();
    }
    if (process() == 0)
      REQUIRE(said == "out of ink");
    else
      REQUIRE_THAT(said, Catch::Matchers::Contains("has failed"));
    auto const good = data(6);
    static_cast<void>(sg::run(train.stream(good)));
    auto const own = weights(train);
    for (Numbers const& layer : own) {
      Numbers first = layer;
      MPI_Bcast(first.data(), static_cast<int>(first.size()), MPI_FLOAT, 0, MPI_COMM_WORLD);
      REQUIRE(first == layer);
    }
  }
  server.serve();
}

TEST_CASE(
    "mpi/ParameterServer: after a worker has left, another one's failure ends the others' streams",
    "[mpi]") {
  int const workers = processes();
  if (workers < 3) return;
  bool const leaves = process() == 2;
  std::vector<Numbers> own;
  sg::mpi::ParameterServer const server({.workers = workers});
  {
    auto train = on_threads(server.worker(process()), process(), exact(2, 0),
                            sg::schedule::Fifo{.in_flight = 2}, process() == 0 ? 7 : -1);
    auto const good = data(6, process());
    auto const longer = data(12, process());
    static_cast<void>(sg::run(train.stream(good)));
    for (int round = 0; !leaves && round < 2; ++round) {
      std::string said;
      try {
        static_cast<void>(sg::run(train.stream(longer)));
      } catch (std::exception const& error) {
        said = error.what();
      }
      if (process() == 0)
        REQUIRE(said == "out of ink");
      else
        REQUIRE_THAT(said, Catch::Matchers::Contains("has failed"));
      static_cast<void>(sg::run(train.stream(good)));
    }
    if (!leaves) own = weights(train);
  }
  server.serve();
  for (int l = 0; l < layers; ++l) {
    Numbers const begun = initial(l);
    Numbers first = leaves ? begun : own[static_cast<std::size_t>(l)];
    MPI_Bcast(first.data(), static_cast<int>(first.size()), MPI_FLOAT, 0, MPI_COMM_WORLD);
    REQUIRE(first != begun);
    if (!leaves) REQUIRE(first == own[static_cast<std::size_t>(l)]);
  }
}

TEST_CASE("mpi/ParameterServer: a push that is not finite is refused", "[mpi]") {
  int const workers = processes();
  sg::mpi::ParameterServer const server({.workers = workers}, adam);
  {
    auto train = on_threads(server.worker(process()), process(), sg::staleness::Synchronous{},
                            sg::schedule::OneFOneB{});
    auto batch = data(2);
    static_cast<void>(sg::run(train.step(batch)));
    MPI_Barrier(MPI_COMM_WORLD);  // else the next step may fail before this one has ended elsewhere
    if (process() == workers - 1) batch.targets[1][0] = std::numeric_limits<float>::infinity();
    REQUIRE_THROWS_WITH(sg::run(train.step(batch)),
                        Catch::Matchers::Contains("is not finite, so this worker pushed nothing") ||
                            Catch::Matchers::Contains("has failed"));
  }
  server.serve();
}

TEST_CASE("mpi/ParameterServer: refuses workers that differ, and what cannot be", "[mpi]") {
  MPI_Barrier(MPI_COMM_WORLD);  // to make the server, too, all have to come before the deadline
  sg::mpi::ParameterServer const server({.workers = 2, .join_deadline_s = 2});
  auto const make = [&](int worker, int number, int in_flight = 2) {
    return on_threads(server.worker(worker), number, exact(in_flight, 0),
                      sg::schedule::Fifo{.in_flight = in_flight});
  };
  {
    std::optional<decltype(make(0, 0))> a;
    if (process() == 0) a.emplace(make(0, 0));
    MPI_Barrier(MPI_COMM_WORLD);
    REQUIRE_THROWS_WITH(make(0, 0), Catch::Matchers::Contains("worker 0 trains already"));
    REQUIRE_THROWS_WITH(make(1, 1, 3),
                        Catch::Matchers::Contains("worker 1 pushes after every 3 minibatches"));
    REQUIRE_THROWS_WITH(server.worker(2), Catch::Matchers::Contains("no worker 2"));
    if (process() == 0)
      REQUIRE_THROWS_WITH(server.serve(), Catch::Matchers::Contains("destroy its trainer"));
    MPI_Barrier(MPI_COMM_WORLD);
  }
  REQUIRE_THROWS_WITH(server.serve(),
                      Catch::Matchers::Contains("worker 1 has not joined the parameter server"));
  REQUIRE_THROWS_WITH(sg::mpi::ParameterServer({.workers = 1, .layer_processes = {9}}),
                      Catch::Matchers::Contains("no process 9"));
  REQUIRE_THROWS_WITH(sg::mpi::ParameterServer({.workers = 1, .join_deadline_s = 0}),
                      Catch::Matchers::Contains("ServerOptions::join_deadline_s is 0 s"));
  sg::mpi::ParameterServer const small({.workers = 1, .layer_processes = {0}});
  REQUIRE_THROWS_WITH(
      on_threads(small.worker(0), 0, exact(2, 0), sg::schedule::Fifo{.in_flight = 2}),
      Catch::Matchers::Contains("layer_processes has 1 layer, worker 0 has 4"));
  if (processes() == 1) return;
  REQUIRE_THROWS_WITH(sg::mpi::ParameterServer({.workers = 1 + process()}),
                      Catch::Matchers::Contains("ServerOptions::workers"));
  REQUIRE_THROWS_WITH(
      sg::mpi::ParameterServer({.workers = 1, .run = process() == 0 ? "today's" : "yesterday's"}),
      Catch::Matchers::Contains("ServerOptions::run") && Catch::Matchers::Contains("'today's'") &&
          Catch::Matchers::Contains("'yesterday's'"));
}

TEST_CASE("mpi/Connections: a worker that refuses what the server says can join again", "[mpi]") {
  if (processes() == 1) return;
  /// A worker's end, which does not take the first values that it reads.
  struct End final : link::MessageEnd {
    link::MessageEnd* to = nullptr;
    bool refuses = true;
    std::span<std::byte> payload_buffer(link::Message const& message) override {
      if (message.kind == link::MessageKind::newest && std::exchange(refuses, false))
        link::refuse_message(message, "comes too early");
      return to->payload_buffer(message);
    }
    void received(link::Message const& message) override { to->received(message); }
    bool next(link::Message& message, std::span<std::byte const>& payload) override {
      return to->next(message, payload);
    }
    void gone(std::exception_ptr why) noexcept override { to->gone(std::move(why)); }
  };
  struct Connector final : link::Connector {
    Connector(sg::mpi::detail::Connections& made, End& own) : all(made), end(own) {}
    std::unique_ptr<link::Transport> connect(link::MessageEnd& to) override {
      end.to = &to;
      return all.connect(1, end);
    }
    [[nodiscard]] double deadline_s() const override { return 20; }
    [[nodiscard]] std::string name() const override { return "process 1"; }
    sg::mpi::detail::Connections& all;
    End& end;
  };
  struct Silent final : sg::detail::ParameterListener {
    void arrived(std::size_t, std::uint32_t) noexcept override {}
    void lost(std::exception_ptr) noexcept override {}
  };
  auto rules = link::remote_rules(adam, sg::staleness::Synchronous{},
                                  &sg::detail::optimizer_call<false, sg::optimizer::AdamW>,
                                  static_cast<sg::detail::LateCalls const*>(nullptr));
  rules.model_bytes = 1U << 20U;
  sg::mpi::detail::Connections all(
      sg::mpi::detail::duplicate(MPI_COMM_WORLD, 20), 20,
      std::make_shared<link::ServerInProcess>(sg::collective::ServerOptions{}), rules);
  if (process() == 0) {
    sg::FixedArray<link::LayerParameters> model(1);
    sg::List<sg::detail::ParameterDeclaration> declared;
    declared.emplace_back();
    declared[0].size = 1;
    model[0].adopt(std::move(declared), 0, 0);
    sg::detail::WorkerRules own;
    own.optimizer = sg::detail::optimizer_call<true>(adam);
    End end;
    Silent silent;
    link::RemoteLink worker(std::make_unique<Connector>(all, end), 0);
    worker.join({model.data(), 1}, own, silent);
    worker.begin();
    REQUIRE_THROWS_WITH(worker.read(0, model[0].values().data()),
                        Catch::Matchers::Contains("comes too early"));
    worker.begin();
    worker.read(0, model[0].values().data());
    worker.end(nullptr);
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

}  // namespace workers_test
