// SPDX-License-Identifier: Apache-2.0
// Draws two workers of a parameter server under each staleness model, in virtual time: the second
// takes twice as long for everything, and both push and pull over one link. One picture more is of
// pushes while backward runs, and one of a model of one's own.
//
// Build:  g++ -std=c++20 -O2 -ffp-contract=off -I include examples/22_worker_pictures.cpp -pthread
// Run:    ./worker_pictures [FOLDER]     (default: the current folder)
// Prints: the names of the files, which are the same on every machine, byte for byte
// expect: workers_bsp\.svg
// expect: workers_bsp_grouped\.svg
// expect: workers_wsp\.svg
// expect: workers_own\.svg
#include <array>
#include <cstdio>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <stagger/collective/grouped_pushes.hpp>
#include <stagger/collective/grouping/layerwise.hpp>
#include <stagger/collective/parameter_server.hpp>
#include <stagger/core/file.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/report/svg.hpp>
#include <stagger/schedule/fifo.hpp>
#include <stagger/sim/clock.hpp>
#include <stagger/stagger.hpp>
#include <stagger/staleness/asynchronous.hpp>
#include <stagger/staleness/local_sgd.hpp>
#include <stagger/staleness/overlapped_synchronous.hpp>
#include <stagger/staleness/round_robin_synchronous.hpp>
#include <stagger/staleness/stale_synchronous.hpp>
#include <stagger/staleness/wave_synchronous.hpp>
namespace sg = stagger;

struct Layer {  // for the virtual clock, which knows what it costs
  using Input = sg::Tensor<>;
  using Output = sg::Tensor<>;
  sg::Parameter<> a{"a", {1}};
  auto parameters() { return std::tie(a); }
  void forward(sg::Context&, Input const& x, Output& y, sg::NothingSaved&) { y = x; }
  void backward(sg::Context&, Input const&, Output const& dy, Input& dx, sg::NothingSaved&) {
    dx = dy;
  }
};

// In step for the first four minibatches, then up to `later` behind the other worker.
struct SlowStart {
  using policy_tag = sg::StalenessTag;
  static constexpr bool synchronous = false;
  static constexpr auto pushes = sg::staleness::Pushes::changes;
  static constexpr auto adds = sg::staleness::Adds::in_worker_order;
  int later = 2;
  int microbatches() const { return 1; }
  int minibatches() const { return 1; }                     // in one push
  int version(int m, int) const { return m; }               // own changes in what m sees
  int needs(int m) const { return m < 4 ? m : m - later; }  // pushes of every worker
};

constexpr int steps = 4;
constexpr int microbatches = 2;  // of a step

using Batch = sg::Batch<sg::Tensor<>, sg::Tensor<>>;

Batch batch_of(int count) {
  Batch batch;
  batch.inputs.resize(static_cast<std::size_t>(count));
  batch.targets.resize(static_cast<std::size_t>(count));
  return batch;
}

// A link on which one layer, of 4 bytes, takes one unit of time.
sg::sim::Links const server_link{.rate = 4};

auto worker(auto collective, int number, sg::sim::Clock const& clock, auto model, auto schedule) {
  double const slower = number == 0 ? 1 : 2;
  return sg::Pipeline{Layer{}, Layer{}}.with(
      schedule, model, collective, sg::loss::MeanSquaredError<>{}, sg::optimizer::Sgd{.rate = 0.01},
      sg::sim::VirtualClock{.costs = sg::schedule::Costs::uniform(slower, slower, slower),
                            .clock = clock},
      sg::Options{.record = true});
}

using Rows = std::vector<std::vector<sg::schedule::Span>>;

void append(Rows& all, sg::schedule::Timeline const& step, int first) {
  all.resize(step.row_begin.size());
  for (std::size_t r = 0; r < all.size(); ++r)
    for (sg::schedule::Span span : step.row(r)) {
      span.action.microbatch += first;
      all[r].push_back(span);
    }
}

// Each trainer's steps one after the other, as fast as its model lets it.
auto steps_of(auto& train, Batch const& batch, Rows& all) {
  return [&, taken = 0](sg::Metrics const* before) mutable -> std::optional<sg::Step> {
    if (before != nullptr) append(all, train.timeline(), (taken - 1) * microbatches);
    return taken++ < steps ? std::optional(train.step(batch)) : std::nullopt;
  };
}

void draw(std::string const& path, std::vector<sg::schedule::Timeline> const& workers) {
  std::vector<sg::report::SvgPanel> const panels{{"worker 0", workers.data()},
                                                 {"worker 1, half as fast", &workers[1]}};
  sg::write_file(path, sg::report::svg(panels, {.theme = sg::report::SvgTheme::automatic,
                                                .figures = false,
                                                .time_unit = "units of F"}));
  std::printf("%s\n", path.c_str());
}

// Pushes all gradients at the end of a step.
auto const at_the_end = [](sg::collective::ServerWorker const& worker) { return worker; };
// Pushes the gradients of each layer as soon as they are there.
auto const as_backward_runs = [](sg::collective::ServerWorker const& worker) {
  return sg::collective::GroupedPushes{worker, sg::collective::grouping::Layerwise{}};
};

void draw_steps(std::string const& path, auto model, auto pushing) {
  sg::sim::Clock const clock(server_link);
  sg::collective::ParameterServer const server({.workers = 2});
  auto a = worker(pushing(server.worker(0)), 0, clock, model, sg::schedule::OneFOneB{});
  auto b = worker(pushing(server.worker(1)), 1, clock, model, sg::schedule::OneFOneB{});
  auto const batch = batch_of(microbatches);
  std::array<Rows, 2> all;
  sg::run_together(steps_of(a, batch, all[0]), steps_of(b, batch, all[1]));
  std::vector<sg::schedule::Timeline> timelines(2);
  for (std::size_t w = 0; w < 2; ++w)
    for (auto const& row : all[w]) timelines[w].add_row(row);
  draw(path, timelines);
}

void draw_stream(std::string const& path, auto model, int in_flight) {
  sg::sim::Clock const clock(server_link);
  sg::collective::ParameterServer const server({.workers = 2});
  auto a = worker(server.worker(0), 0, clock, model, sg::schedule::Fifo{in_flight});
  auto b = worker(server.worker(1), 1, clock, model, sg::schedule::Fifo{in_flight});
  auto const batch = batch_of(steps * microbatches);
  sg::run_together(a.stream(batch), b.stream(batch));
  draw(path, {a.timeline(), b.timeline()});
}

int main(int argc, char** argv) {
  std::string const folder = argc > 1 ? std::string(argv[1]) + "/" : "";
  namespace staleness = sg::staleness;
  draw_steps(folder + "workers_bsp.svg", staleness::Synchronous{}, at_the_end);
  draw_steps(folder + "workers_bsp_grouped.svg", staleness::Synchronous{}, as_backward_runs);
  draw_steps(folder + "workers_ssp.svg", staleness::StaleSynchronous{.bound = 1}, at_the_end);
  draw_steps(folder + "workers_asp.svg", staleness::Asynchronous{}, at_the_end);
  draw_steps(folder + "workers_r2sp.svg", staleness::RoundRobinSynchronous{}, at_the_end);
  draw_steps(folder + "workers_local_sgd.svg", staleness::LocalSgd{.period = 2}, at_the_end);
  draw_steps(folder + "workers_osp.svg",
             staleness::OverlappedSynchronous{.budget = staleness::overlapped::ShareLate{0.5}},
             at_the_end);
  draw_stream(folder + "workers_wsp.svg",
              staleness::WaveSynchronous{.in_flight = microbatches, .distance = 0}, microbatches);
  draw_stream(folder + "workers_own.svg", SlowStart{}, 1);
}
