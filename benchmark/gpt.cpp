// SPDX-License-Identifier: Apache-2.0
// The transformer of examples/gpt in two stages on two threads, compared with the same model in a
// plain loop on one thread.

#include <memory>
#include <string>
#include <utility>
#include <vector>

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

}  // namespace

int main(int argc, char** argv) {
  add_pair();
  std::string const name = "gpt/2_stages_2_threads";
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
        }}});
}
