// SPDX-License-Identifier: Apache-2.0
// The transformer of examples/gpt in two stages on two threads, compared with the same model in a
// plain loop on one thread; and two workers that train it in step through a parameter server,
// compared with two replicas of one pipeline.

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <stagger/collective/all_reduce.hpp>
#include <stagger/collective/parameter_server.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/schedule/proof/evaluate.hpp>

#include "support/rows.hpp"
#include "support/transformer.hpp"

namespace {

constexpr std::size_t microbatches = 8;
constexpr int pairs = 41;
constexpr double bound = 1.6;

/// The speed-up over one thread that the schedule allows with the stage times of the last step and
/// no other costs.
double allowed(stagger::schedule::Timeline const& timeline) {
  stagger::schedule::Costs costs;
  double work_s = 0;
  for (auto const& row : timeline.rows) {
    double forward_s = 0;
    double backward_s = 0;
    for (auto const& span : row)
      (span.action.kind == stagger::schedule::Kind::forward ? forward_s : backward_s) +=
          span.end_s - span.start_s;
    work_s += forward_s + backward_s;
    costs.stages.push_back({.forward_s = forward_s / microbatches,
                            .backward_input_s = backward_s / microbatches,
                            .backward_weight_s = 0});
  }
  auto const table = stagger::schedule::OneFOneB{}.table(
      {.ranks = timeline.ranks(), .microbatches = static_cast<int>(microbatches)});
  return work_s / evaluate(table, costs).makespan_s;
}

/// Alternates steps of the pipeline and of the loop, so that disturbances of the machine affect
/// both.
void add_pair() {
  using Pipeline = decltype(bench::transformer_in_two(2, {}));
  auto const make_one = [] {
    return bench::transformer_pipeline().on_one_device(
        stagger::optimizer::AdamW{}, gpt::CrossEntropy<float>{},
        stagger::Options{.clip_norm = bench::transformer.clip});
  };
  auto const pipeline = std::make_shared<Pipeline>(bench::transformer_in_two(2, {.record = true}));
  auto const one = std::make_shared<decltype(make_one())>(make_one());
  bench::add("gpt/2_stages_2_threads", pairs,
             [=, batch = bench::transformer_batch(microbatches)](benchmark::State& state) {
               double const took_s =
                   bench::time_each(state, [&] { stagger::run(pipeline->step(batch)); });
               one->step(batch);
               double const start_s = bench::now_s();
               one->step(batch);
               double const one_s = bench::now_s() - start_s;
               state.counters["one_thread_ms"] = one_s * 1e3;
               state.counters["speed_up"] = one_s / took_s;
               state.counters["allowed"] = allowed(pipeline->timeline());
             })
      ->Unit(benchmark::kMillisecond);
}

using Examples = stagger::Batch<gpt::Tokens, gpt::Tokens>;

/// The rows of each microbatch that worker `n` of 2 takes, as a replica would.
Examples half_of(Examples const& whole, std::size_t n) {
  Examples half;
  auto const take = [n](std::vector<gpt::Tokens> const& from, std::vector<gpt::Tokens>& to) {
    for (gpt::Tokens const& tokens : from) {
      auto const rows = tokens.rows() / 2;
      to.emplace_back().resize_rows(tokens, rows);
      to.back().copy_rows(0, tokens, n * rows, rows);
    }
  };
  take(whole.inputs, half.inputs);
  take(whole.targets, half.targets);
  return half;
}

/// Alternates steps of two workers that push and pull in each step, and of two replicas that add up
/// their gradients. Both have a stage with all layers on a thread of their own.
void add_in_step() {
  constexpr std::size_t split = 4;  // microbatches of several sequences each
  auto const made = [](auto device, auto collective, stagger::Options options) {
    return std::make_shared<decltype(bench::transformer_pipeline().with(
        stagger::partition::Cuts{}, stagger::schedule::OneFOneB{}, stagger::optimizer::AdamW{},
        gpt::CrossEntropy<float>{}, device, collective, options))>(
        bench::transformer_pipeline().with(
            stagger::partition::Cuts{}, stagger::schedule::OneFOneB{}, stagger::optimizer::AdamW{},
            gpt::CrossEntropy<float>{}, device, collective, options));
  };
  stagger::collective::ParameterServer const server({.workers = 2, .shards = 4});
  auto const first = made(stagger::host::Threads{1}, server.worker(0), {});
  auto const second = made(stagger::host::Threads{1}, server.worker(1), {});
  auto const replicas =
      made(stagger::host::Threads{2}, stagger::collective::AllReduce<>{}, {.replicas = {2}});
  auto const whole = bench::transformer_batch(split);
  bench::add(
      "gpt/2_workers_in_step", pairs,
      [=, halves = std::vector{half_of(whole, 0), half_of(whole, 1)}](benchmark::State& state) {
        double const took_s = bench::time_each(
            state, [&] { stagger::run_together(first->step(halves[0]), second->step(halves[1])); });
        stagger::run(replicas->step(whole));
        double const start_s = bench::now_s();
        stagger::run(replicas->step(whole));
        double const replicas_s = bench::now_s() - start_s;
        state.counters["replicas_ms"] = replicas_s * 1e3;
        state.counters["ratio"] = took_s / replicas_s;
      })
      ->Unit(benchmark::kMillisecond);
}

}  // namespace

int main(int argc, char** argv) {
  add_pair();
  add_in_step();
  std::string const name = "gpt/2_stages_2_threads";
  std::string const in_step = "gpt/2_workers_in_step";
  return bench::run(
      argc, argv,
      {{"examples/gpt, 2 stages on 2 threads against one thread, M=8", name,
        [=](bench::Results const& results) {
          double const speed_up = results.counter(name, "speed_up");
          return bench::Line{
              bench::text("%.2f x (%.1f ms against %.1f ms; the stages as timed allow %.2f x)",
                          speed_up, results.time_s(name) * 1e3,
                          results.counter(name, "one_thread_ms"), results.counter(name, "allowed")),
              "at least 1.6 x; equal stages allow 1.78 x",
              speed_up >= bound ? bench::Grade::passed : bench::Grade::failed};
        }},
       {"examples/gpt, 2 workers in step through a parameter server against 2 replicas, 2 threads",
        in_step, [=](bench::Results const& results) {
          double const ratio = results.counter(in_step, "ratio");
          return bench::Line{
              bench::text("%.2f x (%.1f ms against %.1f ms)", ratio, results.time_s(in_step) * 1e3,
                          results.counter(in_step, "replicas_ms")),
              "at most 1.10 x", ratio <= 1.10 ? bench::Grade::passed : bench::Grade::failed};
        }}});
}
