// SPDX-License-Identifier: Apache-2.0
// The smallest task with which a 4-stage pipeline on 2 threads is 50 % efficient (METG), compared
// with oneTBB's. A task is a forward pass, a backward pass or a filter call, and spins. Efficiency
// is all work / (threads * wall time). Source: E. Slaughter et al., "Task Bench", SC 2020, section
// IV.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <stagger/stagger.hpp>

#include "support/empty.hpp"
#include "support/rows.hpp"
#include "support/spin.hpp"
#include "support/tbb_pipeline.hpp"

namespace {

constexpr int stages = 4;
constexpr int threads = 2;
constexpr int repetitions = 25;
constexpr int warm_ups = 2;    // to wake the threads
constexpr int iterations = 2;  // per repetition
constexpr int token_counts[] = {4, 8, 16};
constexpr int task_ns[] = {25, 50, 100, 200, 400, 800, 1600, 3200, 6400};

/// How many of `task_ns` are tried. With many microbatches, long tasks take long and add nothing.
std::size_t sizes_for(int microbatches) {
  return microbatches > 100 ? std::size(task_ns) - 2 : std::size(task_ns);
}

std::uint64_t rounds = 0;  // spins of every task; changed between steps

struct SpinningStage {
  using Input = int;
  using Output = int;
  void forward(stagger::Context&, int const& x, int& y, stagger::NothingSaved&) {
    bench::spin(rounds);
    y = x;
  }
  void backward(stagger::Context&, int const&, int const& dy, int& dx, stagger::NothingSaved&) {
    bench::spin(rounds);
    dx = dy;
  }
};

std::string name_of(std::string const& who, int microbatches, int ns) {
  return "metg/M:" + std::to_string(microbatches) + "/" + who + "/ns:" + std::to_string(ns);
}

std::uint64_t rounds_for(int ns, double round_s) {
  return static_cast<std::uint64_t>(std::lround(ns * 1e-9 / round_s));
}

std::string tbb_name(int tokens) { return "oneTBB/tokens:" + std::to_string(tokens); }

/// One engine for all task sizes, so that idle threads of other engines do not disturb.
void add_engine(int microbatches, double round_s) {
  auto const make = [] {
    return stagger::Pipeline{std::vector<SpinningStage>(stages)}.with(
        stagger::schedule::OneFOneB{}, bench::EmptyLoss{}, stagger::host::Threads{threads});
  };
  auto const train = std::make_shared<decltype(make())>(make());
  for (std::size_t i = 0; i < sizes_for(microbatches); ++i)
    bench::add(
        name_of("1F1B", microbatches, task_ns[i]), repetitions,
        [=, ns = task_ns[i], batch = bench::empty_batch(microbatches)](benchmark::State& state) {
          rounds = rounds_for(ns, round_s);
          double const took_s =
              bench::time_each(state, [&] { stagger::run(train->step(batch)); }, warm_ups);
          state.counters["efficiency"] =
              2.0 * stages * microbatches * ns * 1e-9 / (threads * took_s);
        })
        ->Iterations(iterations);
}

void add_tbb(int items, double round_s, int tokens) {
  for (std::size_t i = 0; i < sizes_for(items); ++i)
    bench::add(name_of(tbb_name(tokens), items, task_ns[i]), repetitions,
               [=, ns = task_ns[i]](benchmark::State& state) {
                 bench::TbbPipeline pipeline(threads);
                 auto const work = [turns = rounds_for(ns, round_s)](int x) {
                   bench::spin(turns);
                   return x;
                 };
                 double const took_s = bench::time_each(
                     state, [&] { pipeline.run(stages, items, tokens, work); }, warm_ups);
                 state.counters["efficiency"] =
                     1.0 * stages * items * ns * 1e-9 / (threads * took_s);
               })
        ->Iterations(iterations);
}

/// The task size, in nanoseconds, at which the efficiency last rises above one half, interpolated
/// linearly over the logarithm of the task size. Infinite if it never reaches one half; the
/// smallest size if it is always above.
double metg_ns(bench::Results const& results, std::string const& who, int microbatches) {
  double metg = INFINITY;
  double above = 0;
  int above_ns = 0;
  for (std::size_t i = sizes_for(microbatches); i-- > 0;) {
    double const efficiency = results.counter(name_of(who, microbatches, task_ns[i]), "efficiency");
    if (efficiency < 0.5) {
      if (above_ns == 0) return INFINITY;
      double const part = (0.5 - efficiency) / (above - efficiency);
      return task_ns[i] * std::pow(static_cast<double>(above_ns) / task_ns[i], part);
    }
    above = efficiency;
    above_ns = task_ns[i];
    metg = above_ns;
  }
  return metg;
}

bench::Row row(int microbatches) {
  return {
      "smallest task at 50 % efficiency, 4 stages, 2 threads, M=" + std::to_string(microbatches),
      "metg/M:" + std::to_string(microbatches) + "/", [=](bench::Results const& results) {
        double const ours = metg_ns(results, "1F1B", microbatches);
        double tbb = INFINITY;
        for (int const tokens : token_counts)
          tbb = std::fmin(tbb, metg_ns(results, tbb_name(tokens), microbatches));
        return bench::Line{bench::text("%.2f us; oneTBB %.2f us", ours / 1000, tbb / 1000),
                           "aim 2 us", ours <= 2000 ? bench::Grade::passed : bench::Grade::failed};
      }};
}

}  // namespace

int main(int argc, char** argv) {
  double const round_s = bench::calibrate_spin();
  for (int const microbatches : {64, 1024}) {
    add_engine(microbatches, round_s);
    for (int const tokens : token_counts) add_tbb(microbatches, round_s, tokens);
  }
  return bench::run(argc, argv, {row(64), row(1024)});
}
