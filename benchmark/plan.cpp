// SPDX-License-Identifier: Apache-2.0
/// @file   Time that planning takes, and the error of the closed-form estimate against the
/// simulation.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <stagger/cluster/presets.hpp>
#include <stagger/plan/auto.hpp>
#include <stagger/plan/baselines.hpp>
#include <stagger/plan/dapple.hpp>
#include <stagger/plan/replan.hpp>

#include "stagger/dapple_models.hpp"
#include "support/rows.hpp"

namespace {

using namespace stagger;
using namespace stagger::plan;

constexpr int repetitions = 5;

Workload bert(cluster::Cluster cluster, std::vector<int> without = {}) {
  return {dapple_models::bert(), std::move(cluster), {.batch = 64, .without = std::move(without)}};
}

template <class Work> void add(std::string const& name, Work work) {
  bench::add(name, repetitions, [work](benchmark::State& state) { bench::time_each(state, work); });
}

bench::Row at_most(std::string const& what, std::string const& name, double bound_s,
                   std::string const& more, bool holds = true) {
  return {what, name, [=](bench::Results const& results) {
            double const took_s = results.time_s(name);
            return bench::Line{
                bench::text("%.1f ms%s", took_s * 1e3, more.c_str()),
                bench::text("at most %g ms", bound_s * 1e3),
                took_s <= bound_s && holds ? bench::Grade::passed : bench::Grade::failed};
          }};
}

/// The best plan with two stages, by the estimate.
double best_of_two(Workload const& w) {
  Evaluator evaluator(w);
  double best = 1e300;
  for (int r = 1; r < static_cast<int>(w.devices().size()); ++r) {
    for (auto const& fill :
         {placement::FreshFirst{}.fill(w.free(), r), placement::ScatterFirst{}.fill(w.free(), r)}) {
      auto const front = w.free().devices(fill);
      std::vector<int> back;
      for (int const id : w.devices())
        if (!std::binary_search(front.begin(), front.end(), id)) back.push_back(id);
      for (int cut = 1; cut < w.layers(); ++cut) {
        auto const p = evaluator({.stages = {{0, cut, front}, {cut, w.layers(), back}}}, "two");
        if (p) best = std::min(best, p->latency_s);
      }
    }
  }
  return best;
}

/// Relative errors of the estimate for random plans whose transfers take up to `boundary`.
std::vector<double> errors(double boundary) {
  std::mt19937 random(1);
  auto const between = [&](double low, double high) {
    return std::uniform_real_distribution<>(low, high)(random);
  };
  std::vector<double> all;
  for (int round = 0; round < 20000; ++round) {
    int const S = std::uniform_int_distribution<>(1, 6)(random);
    int const M = std::uniform_int_distribution<>(2, 24)(random);
    std::vector<StageTime> v;
    for (int s = 0; s < S; ++s) {
      double const f = between(1, 2), c = between(0, boundary);
      if (s > 0) v.push_back({c, c});
      v.push_back({f, f * between(1.5, 2.5), between(0, 5)});
    }
    all.push_back(latency(v, M).seconds / simulate(v, M, warm_up_counts(S, 2, M)) - 1);
  }
  return all;
}

bench::Row estimate(std::string const& what, double boundary, bool judged) {
  return {what, "", [=](bench::Results const&) {
            auto const all = errors(boundary);
            double mean = 0, near = 0;
            for (double const e : all) {
              mean += e / static_cast<double>(all.size());
              near += std::fabs(e) <= 0.03 ? 1 / static_cast<double>(all.size()) : 0;
            }
            bool const holds = std::fabs(mean) <= 0.01 && near >= 0.9;
            return bench::Line{
                bench::text("mean error %+.2f %%, %.1f %% within 3 %%", mean * 100, near * 100),
                judged ? "within 1 %, 90 % within 3 %" : "",
                !judged ? bench::Grade::shown
                : holds ? bench::Grade::passed
                        : bench::Grade::failed};
          }};
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<bench::Row> rows;
  for (auto const& cluster : {cluster::dapple_a(2, 8), cluster::dapple_b(16)}) {
    Workload const w = bert(cluster);
    std::string const shape = cluster.nodes() == 2 ? "2x8" : "16x1";
    std::string const by_estimate = "plan/dapple " + shape, by_simulation = "plan/auto " + shape;
    std::string const again = "plan/replan " + shape;
    add(by_estimate, [w] { benchmark::DoNotOptimize(Dapple{}.plan(w).latency_s); });
    add(by_simulation, [w] { benchmark::DoNotOptimize(Auto{}.plan(w).simulated_s); });
    Plan const found = Dapple{}.plan(w), simulated = Auto{}.plan(w);
    double const others =
        std::min({DataParallel{}.plan(w).latency_s, Straight{}.plan(w).latency_s, best_of_two(w)});
    rows.push_back(at_most("Dapple, BERT-48, " + shape, by_estimate, 1,
                           bench::text(", %.4f s; best of data-parallel, straight and all cuts in "
                                       "two %.4f s",
                                       found.latency_s, others),
                           found.latency_s <= others));
    rows.push_back({"Auto, the same", by_simulation, [=](bench::Results const& results) {
                      return bench::Line{
                          bench::text("%.0f ms; simulated %.4f s, Dapple's %.4f s, bound %.4f s",
                                      results.time_s(by_simulation) * 1e3, simulated.simulated_s,
                                      found.simulated_s, simulated.lower_bound_s),
                          "never behind Dapple's",
                          simulated.simulated_s <= found.simulated_s ? bench::Grade::passed
                                                                     : bench::Grade::failed};
                    }});
    Workload const left = bert(cluster, {7});
    Plan const after = Replan{}.plan(found, left), anew = Dapple{}.plan(left);
    add(again, [found, left] { benchmark::DoNotOptimize(Replan{}.plan(found, left).simulated_s); });
    rows.push_back(at_most("re-plan without one of 16 devices, " + shape, again, 0.1,
                           bench::text("; simulated %.4f s, Dapple anew %.4f s", after.simulated_s,
                                       anew.simulated_s)));
  }
  rows.push_back(estimate("estimate against simulation, 20000 random plans", 0.5, true));
  rows.push_back(estimate("the same, transfers of up to 4 forwards", 4, false));
  return bench::run(argc, argv, rows);
}
