// SPDX-License-Identifier: Apache-2.0
// The transformer of examples/gpt in two stages on two threads, compared with the same model in a
// plain loop on one thread; a group of two ranks that share its blocks, compared with the same loop;
// and two workers that train it in step through a parameter server, compared with two replicas of
// one pipeline.

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <stagger/collective/all_reduce.hpp>
#include <stagger/collective/parameter_server.hpp>
#include <stagger/engine/groups.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/partition/layer_split.hpp>
#include <stagger/schedule/proof/evaluate.hpp>

#include "support/rows.hpp"
#include "support/transformer.hpp"

namespace {

constexpr std::size_t microbatches = 8;
constexpr std::size_t several = 4;  // microbatches, of several sequences for each of two ranks
constexpr int pairs = 41;
constexpr double bound = 1.6;
constexpr double group_bound = 1.4;

/// The speed-up over one thread that the schedule allows with the stage times of the last step and
/// no other costs.
double allowed(stagger::schedule::Timeline const& timeline) {
  stagger::schedule::Costs costs;
  double work_s = 0;
  for (int r = 0; r < timeline.ranks(); ++r) {
    double forward_s = 0;
    double backward_s = 0;
    for (auto const& span : timeline.row(r))
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

/// Alternates steps of a pipeline and of the loop, so that disturbances of the machine affect
/// both.
/// @param count  counts more of the pipeline after a step
template <class Pipeline, class Count>
void add_pair(char const* name, Pipeline made, std::size_t parts, Count count) {
  auto const make_one = [] {
    return bench::transformer_pipeline().on_one_device(
        stagger::optimizer::AdamW{}, gpt::CrossEntropy<float>{},
        stagger::Options{.clip_norm = bench::transformer.clip});
  };
  auto const pipeline = std::make_shared<Pipeline>(std::move(made));
  auto const one = std::make_shared<decltype(make_one())>(make_one());
  bench::add(name, pairs, [=, batch = bench::transformer_batch(parts)](benchmark::State& state) {
    double const took_s = bench::time_each(state, [&] { stagger::run(pipeline->step(batch)); });
    one->step(batch);
    double const start_s = bench::now_s();
    one->step(batch);
    double const one_s = bench::now_s() - start_s;
    state.counters["one_thread_ms"] = one_s * 1e3;
    state.counters["speed_up"] = one_s / took_s;
    count(*pipeline, state);
  })->Unit(benchmark::kMillisecond);
}

void add_stages() {
  add_pair("gpt/2_stages_2_threads", bench::transformer_in_two(2, {.record = true}), microbatches,
           [](auto const& pipeline, benchmark::State& state) {
             state.counters["allowed"] = allowed(pipeline.timeline());
           });
}

/// One stage, whose half blocks a rank on each thread shares.
void add_group() {
  add_pair(
      "gpt/group_of_2_2_threads",
      bench::transformer_pipeline().with(
          stagger::partition::LayerSplit{.group = 2, .threshold = 0}, stagger::schedule::OneFOneB{},
          stagger::optimizer::AdamW{}, gpt::CrossEntropy<float>{}, stagger::host::Threads{2},
          stagger::Options{.clip_norm = bench::transformer.clip, .replicas = {2}}),
      several, [](auto const&, benchmark::State&) {});
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
  auto const whole = bench::transformer_batch(several);
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
  add_stages();
  add_group();
  add_in_step();
  std::string const name = "gpt/2_stages_2_threads";
  std::string const group = "gpt/group_of_2_2_threads";
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
       {"examples/gpt, 1 stage, a group of 2 ranks on 2 threads against one thread, M=4", group,
        [=](bench::Results const& results) {
          double const speed_up = results.counter(group, "speed_up");
          return bench::Line{
              bench::text("%.2f x (%.1f ms against %.1f ms)", speed_up, results.time_s(group) * 1e3,
                          results.counter(group, "one_thread_ms")),
              "at least 1.4 x",
              speed_up >= group_bound ? bench::Grade::passed : bench::Grade::failed};
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
