// SPDX-License-Identifier: Apache-2.0
// Whether a step takes as long as `schedule::evaluate` says: stages that sleep, each rank on a
// thread of its own. Predicted from the sleeps as they were measured, and from those asked for.

#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/schedule/evaluate.hpp>
#include <stagger/stagger.hpp>

#include "support/empty.hpp"
#include "support/rows.hpp"

namespace {

constexpr int ranks = 8;
constexpr int microbatches = 32;
constexpr int repetitions = 7;
constexpr std::chrono::milliseconds forward_time{4};
constexpr std::chrono::milliseconds backward_time{8};
constexpr double bound = 0.03;

struct SleepingStage {
  using Input = int;
  using Output = int;
  void forward(stagger::Context&, int const& x, int& y, stagger::NothingSaved&) {
    std::this_thread::sleep_for(forward_time);
    y = x;
  }
  void backward(stagger::Context&, int const&, int const& dy, int& dx, stagger::NothingSaved&) {
    std::this_thread::sleep_for(backward_time);
    dx = dy;
  }
};

/// Mean seconds of forward and backward of each stage.
stagger::schedule::Costs costs_of(stagger::schedule::Timeline const& timeline) {
  stagger::schedule::Costs costs;
  for (auto const& row : timeline.rows) {
    double forward_s = 0;
    double backward_s = 0;
    for (auto const& span : row)
      (span.action.kind == stagger::schedule::Kind::forward ? forward_s : backward_s) +=
          span.end_s - span.start_s;
    costs.stages.push_back({.forward_s = forward_s / microbatches,
                            .backward_input_s = backward_s / microbatches,
                            .backward_weight_s = 0});
  }
  return costs;
}

std::string name_of(std::string const& schedule) { return "makespan/" + schedule; }

template <class Schedule> void add_schedule(std::string const& name, Schedule schedule) {
  auto train = stagger::Pipeline{std::vector<SleepingStage>(ranks)}.with(
      schedule, bench::EmptyLoss{}, stagger::host::Threads{ranks},
      stagger::Options{.record = true});
  auto const shared = std::make_shared<decltype(train)>(std::move(train));
  bench::add(name_of(name), repetitions,
             [schedule, shared, batch = bench::empty_batch(microbatches)](benchmark::State& state) {
               double const took_s =
                   bench::time_each(state, [&] { stagger::run(shared->step(batch)); });
               auto const table = schedule.table({.ranks = ranks, .microbatches = microbatches});
               double const predicted_s = evaluate(table, costs_of(shared->timeline())).makespan_s;
               double const nominal_s =
                   evaluate(table, stagger::schedule::Costs::uniform(
                                       std::chrono::duration<double>(forward_time).count(),
                                       std::chrono::duration<double>(backward_time).count(), 0))
                       .makespan_s;
               state.counters["predicted_s"] = predicted_s;
               state.counters["off"] = took_s / predicted_s - 1;
               state.counters["off_nominal"] = took_s / nominal_s - 1;
             })
      ->Unit(benchmark::kMillisecond);
}

bench::Row row(std::string const& schedule) {
  return {"makespan, 8 ranks that sleep, M=32, " + schedule, name_of(schedule),
          [=](bench::Results const& results) {
            double const off = results.counter(name_of(schedule), "off");
            return bench::Line{
                bench::text(
                    "%.1f ms, predicted %.1f ms: %+.2f %% off (of the sleeps asked for %+.2f %%)",
                    results.time_s(name_of(schedule)) * 1e3,
                    results.counter(name_of(schedule), "predicted_s") * 1e3, off * 100,
                    results.counter(name_of(schedule), "off_nominal") * 100),
                "within 3 %",
                std::fabs(off) <= bound ? bench::Grade::passed : bench::Grade::failed};
          }};
}

}  // namespace

int main(int argc, char** argv) {
  add_schedule("GPipe", stagger::schedule::GPipe{});
  add_schedule("1F1B", stagger::schedule::OneFOneB{});
  return bench::run(argc, argv, {row("GPipe"), row("1F1B")});
}
