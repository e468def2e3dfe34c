// SPDX-License-Identifier: Apache-2.0
/// @file   What a table costs to make, to prove, to lower and to evaluate.

#include <cstdint>

#include <benchmark/benchmark.h>

#include <stagger/schedule/evaluate.hpp>
#include <stagger/schedule/lower.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/schedule/verify.hpp>
#include <stagger/schedule/zero_bubble_v.hpp>

namespace {

using namespace stagger;
using namespace stagger::schedule;

constexpr Shape large{64, 1024};

void count(benchmark::State& state, std::size_t actions) {
  state.SetItemsProcessed(static_cast<std::int64_t>(actions) * static_cast<std::int64_t>(state.iterations()));
}

/// From nothing to a timeline: 131 072 compute actions. Aim: 20 ms.
void all_of_it(benchmark::State& state) {
  std::size_t actions = 0;
  for (auto _ : state) {
    Table const table = OneFOneB{}.table(large);
    if (verify(table)) state.SkipWithError("refused");
    Table const lowered = lower(table);
    benchmark::DoNotOptimize(lowered.actions.data());
    Evaluation const e = evaluate(table);
    benchmark::DoNotOptimize(e.makespan_s);
    actions = table.actions.size();
  }
  count(state, actions);
}
BENCHMARK(all_of_it)->Name("schedule/1f1b 64x1024: generate, verify, lower, evaluate")->Unit(benchmark::kMillisecond);

void generate(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(OneFOneB{}.table(large).actions.data());
  count(state, OneFOneB{}.table(large).actions.size());
}
BENCHMARK(generate)->Name("schedule/1f1b 64x1024: generate")->Unit(benchmark::kMillisecond);

void verify_compute(benchmark::State& state) {
  Table const table = OneFOneB{}.table(large);
  for (auto _ : state) benchmark::DoNotOptimize(verify(table));
  count(state, table.actions.size());
}
BENCHMARK(verify_compute)->Name("schedule/1f1b 64x1024: verify")->Unit(benchmark::kMillisecond);

void verify_lowered(benchmark::State& state) {
  Table const table = lower(OneFOneB{}.table(large));
  for (auto _ : state) benchmark::DoNotOptimize(verify(table));
  count(state, table.actions.size());
}
BENCHMARK(verify_lowered)->Name("schedule/1f1b 64x1024: verify with messages")->Unit(benchmark::kMillisecond);

void lower_table(benchmark::State& state) {
  Table const table = OneFOneB{}.table(large);
  for (auto _ : state) benchmark::DoNotOptimize(lower(table).actions.data());
  count(state, table.actions.size());
}
BENCHMARK(lower_table)->Name("schedule/1f1b 64x1024: lower")->Unit(benchmark::kMillisecond);

/// Aim: 20 million actions per second.
void evaluate_compute(benchmark::State& state) {
  Table const table = OneFOneB{}.table(large);
  for (auto _ : state) benchmark::DoNotOptimize(evaluate(table).makespan_s);
  count(state, table.actions.size());
}
BENCHMARK(evaluate_compute)->Name("schedule/1f1b 64x1024: evaluate")->Unit(benchmark::kMillisecond);

void evaluate_zero_bubble_v(benchmark::State& state) {
  Table const table = ZeroBubbleV{}.table({64, 256, 2});
  Costs const costs = Costs::uniform(1, 1, 1, 0.1);
  for (auto _ : state) benchmark::DoNotOptimize(evaluate(table, costs).makespan_s);
  count(state, table.actions.size());
}
BENCHMARK(evaluate_zero_bubble_v)->Name("schedule/zb-v 64x256: evaluate")->Unit(benchmark::kMillisecond);

void evaluate_lowered(benchmark::State& state) {
  Table const table = lower(OneFOneB{}.table(large));
  Costs const costs = Costs::uniform(1, 1, 1, 0.1);
  for (auto _ : state) benchmark::DoNotOptimize(evaluate(table, costs).makespan_s);
  count(state, table.actions.size());
}
BENCHMARK(evaluate_lowered)->Name("schedule/1f1b 64x1024: evaluate with messages")->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
