// SPDX-License-Identifier: Apache-2.0
// Heap allocations per step from the second step on, which should be none.

#include "support/counted_allocation.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/empty.hpp"
#include "support/rows.hpp"
#include "support/transformer.hpp"

namespace {

/// Takes a first step, and counts the allocations of the following ones.
/// @return the name of the benchmark
template <class Trainer, class Batch>
std::string add_count(std::string const& name, Trainer trainer, Batch batch, int steps) {
  auto const train = std::make_shared<Trainer>(std::move(trainer));
  bench::add(name, 1, [=, batch = std::move(batch)](benchmark::State& state) {
    stagger::run(train->step(batch));
    auto const before = bench::allocation_counts();
    for (int i = 0; i < steps; ++i) stagger::run(train->step(batch));
    auto const after = bench::allocation_counts();
    for ([[maybe_unused]] auto _ : state) state.SetIterationTime(1e-9);
    state.counters["steps"] = steps;
    state.counters["operator_new"] = static_cast<double>(after.operator_new - before.operator_new);
    state.counters["malloc"] = static_cast<double>(after.malloc - before.malloc);
  });
  return name;
}

template <class Device> auto empty(Device device) {
  return stagger::Pipeline{std::vector<bench::EmptyStage>(8)}.with(stagger::schedule::OneFOneB{},
                                                                   bench::EmptyLoss{}, device);
}

bench::Row row(std::string const& what, std::string const& benchmarks,
               std::vector<std::string> names) {
  return {"heap allocations per step after the first, " + what, benchmarks,
          [=](bench::Results const& results) {
            double calls = 0;
            double steps = 0;
            for (auto const& name : names) {
              calls += results.counter(name, "operator_new") + results.counter(name, "malloc");
              steps += results.counter(name, "steps");
            }
            return bench::Line{
                bench::text("%.0f calls of operator new and malloc in %.0f steps", calls, steps),
                "0", calls == 0 ? bench::Grade::passed : bench::Grade::failed};
          }};
}

}  // namespace

int main(int argc, char** argv) {
  std::string const empty_name = "allocations/empty/";
  std::string const gpt_name = "allocations/gpt/";
  std::vector<std::string> empties, gpts;
  for (int const threads : {1, 2, 8})
    empties.push_back(add_count(empty_name + "threads:" + std::to_string(threads),
                                empty(stagger::host::Threads{threads}), bench::empty_batch(64),
                                100));
  empties.push_back(add_count(empty_name + "virtual_clock", empty(stagger::sim::VirtualClock{}),
                              bench::empty_batch(64), 100));
  for (int const threads : {1, 2})
    for (bool const recompute : {false, true})
      gpts.push_back(add_count(
          gpt_name + "threads:" + std::to_string(threads) + (recompute ? "/recompute" : ""),
          bench::transformer_in_two(threads, {.recompute = recompute, .record = true}),
          bench::transformer_batch(8), 10));
  return bench::run(
      argc, argv, {row("empty stages", empty_name, empties), row("examples/gpt", gpt_name, gpts)});
}
