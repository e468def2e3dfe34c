// SPDX-License-Identifier: Apache-2.0
// Measured step times against those that `schedule::evaluate` predicts, for every schedule of the
// catalog. Actions sleep, and each rank has a thread. The predictions use the measured and the
// requested sleep times. A thread runs the two actions of an overlapped pair one after the other,
// and the prediction assumes that.

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/schedule/named.hpp>
#include <stagger/schedule/proof/evaluate.hpp>
#include <stagger/schedule/proof/verify.hpp>
#include <stagger/stagger.hpp>

#include "support/empty.hpp"
#include "support/rows.hpp"

namespace {

namespace schedule = stagger::schedule;

constexpr int repetitions = 5;
constexpr std::chrono::milliseconds sleep_time{4};  // of F, of I and of W
constexpr double bound = 0.03;

struct SleepingStage {
  using Input = int;
  using Output = int;
  void forward(stagger::Context&, int const& x, int& y, stagger::NothingSaved&) {
    std::this_thread::sleep_for(sleep_time);
    y = x;
  }
  void backward_input(stagger::Context&, int const&, int const& dy, int& dx,
                      stagger::NothingSaved&) {
    std::this_thread::sleep_for(sleep_time);
    dx = dy;
  }
  void backward_weight(stagger::Context&, int const&, int const&, stagger::NothingSaved&) {
    std::this_thread::sleep_for(sleep_time);
  }
};

/// A policy that returns a given table, which runs step by step, whether its schedule flushes or
/// not.
struct Made {
  using policy_tag = stagger::ScheduleTag;
  static constexpr bool flushes = true;
  schedule::Table made;
  [[nodiscard]] int chunks() const { return made.stages / made.ranks(); }
  [[nodiscard]] schedule::Table table(stagger::Shape) const { return made; }
};

struct Case {
  std::string name;
  schedule::Table table;
  int microbatches = 0;
  [[nodiscard]] std::string benchmark() const {
    return "makespan/" + name + "/" + std::to_string(table.ranks()) + "x" +
           std::to_string(microbatches);
  }
};

/// Mean seconds of each kind of action of each stage; a whole backward pass counts as half I, half
/// W.
schedule::Costs costs_of(schedule::Timeline const& timeline, schedule::Table const& table) {
  struct Sum {
    double s = 0;
    int count = 0;
    [[nodiscard]] double mean() const { return count > 0 ? s / count : 0; }
  };
  std::vector<std::array<Sum, 4>> sums(static_cast<std::size_t>(table.stages));
  for (auto const& span : timeline.spans) {
    if (!schedule::is_compute(span.action.kind)) continue;
    Sum& sum = sums[static_cast<std::size_t>(span.action.stage)]
                   [static_cast<std::size_t>(span.action.kind)];
    sum.s += span.end_s - span.start_s;
    ++sum.count;
  }
  schedule::Costs costs;
  for (auto const& kinds : sums) {
    auto const mean = [&](schedule::Kind kind) {
      return kinds[static_cast<std::size_t>(kind)].mean() * table.slices;
    };
    double const half = mean(schedule::Kind::backward) / 2;
    double const input = mean(schedule::Kind::backward_input);
    double const weight = mean(schedule::Kind::backward_weight);
    costs.stages.push_back({.forward_s = mean(schedule::Kind::forward),
                            .backward_input_s = input > 0 ? input : half,
                            .backward_weight_s = weight > 0 ? weight : half});
  }
  return costs;
}

void add_case(Case const& one) {
  auto train =
      stagger::Pipeline{std::vector<SleepingStage>(static_cast<std::size_t>(one.table.stages))}
          .with(Made{one.table}, bench::EmptyLoss{}, stagger::host::Threads{one.table.ranks()},
                stagger::Options{.record = true});
  auto const shared = std::make_shared<decltype(train)>(std::move(train));
  bench::add(
      one.benchmark(), repetitions,
      [one, shared,
       batch = bench::empty_batch(one.microbatches * one.table.slices)](benchmark::State& state) {
        bool const trains =
            std::any_of(one.table.actions.begin(), one.table.actions.end(),
                        [](auto const& a) { return a.kind != schedule::Kind::forward; });
        double const took_s = bench::time_each(
            state, [&] { stagger::run(trains ? shared->step(batch) : shared->evaluate(batch)); });
        schedule::Table apart = one.table;
        for (auto& action : apart.actions) action.overlaps_next = false;
        double const predicted_s = evaluate(apart, costs_of(shared->timeline(), apart)).makespan_s;
        double const asked_s = std::chrono::duration<double>(sleep_time).count() *
                               one.table.slices;  // a slice sleeps as long as a microbatch
        double const nominal_s =
            evaluate(apart, schedule::Costs::uniform(asked_s, asked_s, asked_s)).makespan_s;
        state.counters["predicted_s"] = predicted_s;
        state.counters["off"] = took_s / predicted_s - 1;
        state.counters["off_nominal"] = took_s / nominal_s - 1;
      })
      ->Unit(benchmark::kMillisecond);
}

bench::Row row(Case const& one) {
  std::string const name = one.benchmark();
  return {"makespan, " + std::to_string(one.table.ranks()) +
              " ranks that sleep, M=" + std::to_string(one.microbatches) + ", " + one.name,
          name + "/", [name](bench::Results const& results) {
            double const off = results.counter(name, "off");
            return bench::Line{
                bench::text(
                    "%.1f ms, predicted %.1f ms: %+.2f %% off (of the sleeps asked for %+.2f %%)",
                    results.time_s(name) * 1e3, results.counter(name, "predicted_s") * 1e3,
                    off * 100, results.counter(name, "off_nominal") * 100),
                "within 3 %",
                std::fabs(off) <= bound ? bench::Grade::passed : bench::Grade::failed};
          }};
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<Case> cases;
  for (char const* name : {"gpipe", "1f1b"})
    cases.push_back({name, schedule::Named{name}.table({8, 32}), 32});
  for (auto const& entry : schedule::catalog) {
    std::string const name(entry.name);
    cases.push_back({name, schedule::Named{name}.table({4, 8, entry.chunks}), 8});
  }
  std::vector<bench::Row> rows;
  for (Case const& one : cases) {
    add_case(one);
    rows.push_back(row(one));
  }
  return bench::run(argc, argv, rows);
}
