// SPDX-License-Identifier: Apache-2.0
// The engine's cost per compute action (a forward or backward pass with its messages), compared
// with the cost per filter call of oneTBB's pipeline. Stages and filters do nothing.

#include <memory>
#include <string>
#include <vector>

#include <stagger/stagger.hpp>

#include "support/empty.hpp"
#include "support/rows.hpp"
#include "support/tbb_pipeline.hpp"

namespace {

constexpr int ranks = 8;
constexpr int repetitions = 51;
constexpr int iterations = 8;  // per repetition, after as many to wake the threads
constexpr int warm_ups = 8;
constexpr int token_counts[] = {4, 8, 16, 64};

std::string name_of(std::string const& who, int threads, int microbatches) {
  return "engine/threads:" + std::to_string(threads) + "/M:" + std::to_string(microbatches) + "/" +
         who;
}

std::string tbb_name(int tokens) { return "oneTBB/tokens:" + std::to_string(tokens); }

template <class Schedule>
void add_engine(std::string const& who, Schedule schedule, int threads, int microbatches) {
  auto const make = [=] {
    return stagger::Pipeline{std::vector<bench::EmptyStage>(ranks)}.with(
        schedule, bench::EmptyLoss{}, stagger::host::Threads{threads});
  };
  auto const train = std::make_shared<decltype(make())>(make());
  bench::add(name_of(who, threads, microbatches), repetitions,
             [=, batch = bench::empty_batch(microbatches)](benchmark::State& state) {
               double const took_s =
                   bench::time_each(state, [&] { stagger::run(train->step(batch)); }, warm_ups);
               state.counters["ns/action"] = took_s * 1e9 / (2.0 * ranks * microbatches);
             })
      ->Iterations(iterations);
}

void add_tbb(int threads, int items, int tokens) {
  bench::add(name_of(tbb_name(tokens), threads, items), repetitions, [=](benchmark::State& state) {
    bench::TbbPipeline pipeline(threads);
    double const took_s = bench::time_each(
        state, [&] { pipeline.run(ranks, items, tokens, [](int x) { return x; }); }, warm_ups);
    state.counters["ns/call"] = took_s * 1e9 / (1.0 * ranks * items);
  })->Iterations(iterations);
}

bench::Row row(int threads, char const* aim) {
  return {"engine cost per compute action, " + std::to_string(threads) +
              (threads == 1 ? " thread" : " threads"),
          name_of("", threads, 1024), [=](bench::Results const& results) {
            double const ours = results.counter(name_of("1F1B", threads, 1024), "ns/action");
            double tbb = 1e300;
            int best = 0;
            for (int const tokens : token_counts) {
              double const ns =
                  results.counter(name_of(tbb_name(tokens), threads, 1024), "ns/call");
              if (ns < tbb) {
                tbb = ns;
                best = tokens;
              }
            }
            return bench::Line{
                bench::text("%.1f ns; oneTBB %.1f ns per filter call (%d tokens): %.2f of it", ours,
                            tbb, best, ours / tbb),
                std::string("at most 0.50 of it") + aim,
                ours <= tbb / 2 ? bench::Grade::passed : bench::Grade::failed};
          }};
}

}  // namespace

int main(int argc, char** argv) {
  for (int const threads : {1, 2})
    for (int const microbatches : {64, 1024}) {
      add_engine("1F1B", stagger::schedule::OneFOneB{}, threads, microbatches);
      add_engine("GPipe", stagger::schedule::GPipe{}, threads, microbatches);
      if (microbatches == 1024)
        for (int const tokens : token_counts) add_tbb(threads, microbatches, tokens);
    }
  return bench::run(argc, argv, {row(1, "; aim 8 ns"), row(2, "")});
}
