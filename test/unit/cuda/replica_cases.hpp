// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Pipelines whose stages have replicas, over GPUs.

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <stagger/cuda/gpus.hpp>
#include <stagger/placement/explicit_map.hpp>
#include <stagger/schedule/chimera.hpp>
#include <stagger/schedule/dual_pipe.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/interleaved.hpp>

#include "cuda/checks.hpp"
#include "cuda/replica_model.hpp"

namespace replica_cases {

using namespace replica_model;

struct Case {
  char const* name;
  Made schedule;
  int positions;
  sg::Replicas replicas;
  std::vector<int> place;  // GPU of each rank
  std::size_t rows = 4;
};

inline std::vector<Case> cases() {
  using namespace sg::schedule;
  return {{"gpipe", made(GPipe{}), 1, {2}, {0, 1}},
          {"1f1b", made(OneFOneB{}), 2, {3, 1}, {0, 1, 2, 3}},
          {"split", split(made(OneFOneB{}), 2), 2, {2, 3}, {0, 1, 2, 3, 4}},
          {"uneven", made(OneFOneB{}), 2, {{15, 1}, {1, 1}}, {0, 1, 2, 3}, 16},
          {"uneven, side by side", made(OneFOneB{}), 2, {{3, 1}, {1, 1}}, {0, 1, 0, 1}},
          {"interleaved", made(Interleaved{}), 2, {2, 2}, {0, 1, 0, 1}},
          {"chimera", made(Chimera{}), 2, {2, 1}, {0, 1, 2}},
          {"dualpipe", made(DualPipe{}), 2, {1, 1}, {0, 1}},
          {"one GPU each stage", made(OneFOneB{}), 2, {2, 3}, {0, 0, 1, 1, 1}}};
}

using Grouping = sg::collective::AllReduce<grouping::Named>;

inline Grouping by(char const* name, int measured_steps, bool shards = false) {
  Grouping policy;
  policy.grouping = grouping::named(name);
  policy.measured_steps = measured_steps;
  policy.shard_optimizer = shards;
  return policy;
}

inline sg::cuda::Gpus on(int count) {
  sg::cuda::Gpus gpus;
  for (int g = 0; g < count; ++g) gpus.devices.push_back(g);
  gpus.kernels = &sg::cuda::parameter_kernels;
  return gpus;
}
inline int gpus_of(std::vector<int> const& place) {
  return *std::max_element(place.begin(), place.end()) + 1;
}

template <class Device, class Rule = sg::optimizer::AdamW>
auto placed(Device device, Grouping policy, Case const& c, sg::Options options,
            Rule rule = optimizer()) {
  options.seed = run_seed;
  options.replicas = c.replicas;
  return sg::Pipeline{layers_there()}.with(
      sg::partition::Cuts{even_cuts(c.positions * c.schedule.each)}, c.schedule, LossThere{},
      sg::cuda::Enqueued<Rule, Launch>{rule}, std::move(device), policy,
      sg::placement::ExplicitMap{c.place}, options);
}

inline auto on_the_host(Case const& c, sg::Options options) {
  options.replicas = c.replicas;
  return row_model::pipeline(sg::host::Threads{1}, even_cuts(c.positions * c.schedule.each),
                             c.schedule, options);
}

/// One stage with replicas on a GPU each.
inline Case replicated(int count) {
  Case c{"replicated", made(sg::schedule::GPipe{}), 1, {count}, {}, 4};
  for (int g = 0; g < count; ++g) c.place.push_back(g);
  return c;
}

inline Case uneven() {
  return {"uneven", made(sg::schedule::OneFOneB{}), 2, {{3, 1}, {1, 1}}, {0, 1, 2, 3}};
}
inline Batch batch_of(int step) { return row_model::batch(step, 3, 4, false); }

/// Parameters of the host after steps 0, 1 and 2 of `uneven`.
inline std::vector<std::vector<std::byte>> course_of_uneven() {
  std::vector<std::vector<std::byte>> course;
  auto host = on_the_host(uneven(), clipping());
  for (int s = 0; s < 3; ++s) {
    auto const data = batch_of(s);
    sg::run(host.step(data));
    course.push_back(bits(host));
  }
  return course;
}

/// Steps, an evaluation, a prediction and steps ahead of the devices have the host's numbers.
/// @param gpus  as many as the case names
inline void check_replicas(Case const& c, sg::cuda::Gpus gpus, Grouping policy, bool clips,
                           bool recompute) {
  CAPTURE(c.name, clips, recompute, gpus.capture);
  bool const rows_vary = !gpus.capture;
  si::Session const session;
  si::set_machine({.devices = 8});
  si::jitter(7);
  astray = 0;
  {
    constexpr int microbatches = 4;
    auto const options = options_with(clips, recompute);
    auto host = on_the_host(c, options);
    auto train = placed(std::move(gpus), std::move(policy), c, options);
    std::vector<BatchThere> data;  // what was enqueued is used until its ticket is done
    std::vector<sg::Ticket> tickets;
    for (int s = 0; s < 4; ++s) {
      auto const here = row_model::batch(s, microbatches, c.rows, rows_vary);
      auto const expected = sg::run(host.step(here));
      data.push_back(upload(here));
      auto const got = sg::run(train.step(data.back()));
      REQUIRE(got.loss == expected.loss);
      REQUIRE(got.gradient_norm == expected.gradient_norm);
      REQUIRE((bits(train) == bits(host)));
    }
    auto const last = row_model::batch(9, microbatches, c.rows, rows_vary);
    auto const last_there = upload(last);
    REQUIRE(sg::run(train.evaluate(last_there)).loss == sg::run(host.evaluate(last)).loss);
    std::vector<Matrix> expected(microbatches);
    std::vector<Values> outputs(microbatches);
    sg::run(host.predict(last.inputs, expected));
    sg::run(train.predict(last_there.inputs, outputs));
    sg::cuda::check(cudaStreamSynchronize(sg::cuda::stream()), "wait");
    for (std::size_t m = 0; m < expected.size(); ++m) {
      auto const got = load<Matrix>(bare(outputs[m]));
      REQUIRE(got.size() == expected[m].size());
      REQUIRE(std::equal(got.data(), got.data() + got.size(), expected[m].data()));
    }
    for (int s = 4; s < 7; ++s) {  // ahead of the devices
      auto const next = row_model::batch(s, microbatches, c.rows, rows_vary);
      sg::run(host.step(next));
      data.push_back(upload(next));
      tickets.push_back(sg::enqueue(train.step(data.back())));
    }
    for (auto& ticket : tickets) ticket.wait();
    REQUIRE((bits(train) == bits(host)));
  }
  CHECK(astray == 0);
  si::reset();
  REQUIRE(session.left() == si::Live{});
}

/// Each case with groupings of several kinds; if the optimizer's state is shared out, with one.
/// @param gpus_for  (case) the device
template <class GpusFor>
void check_all_replicas(std::vector<Case> const& all, GpusFor gpus_for, bool shards = false) {
  int number = 0;
  for (auto const& c : all) {
    int const own = number++;
    if (sanitized && own % 3 != 0) continue;
    auto const check = [&](int kind, Grouping const& policy, bool clips, bool recompute) {
      if (!shards || own % 3 == kind) check_replicas(c, gpus_for(c), policy, clips, recompute);
    };
    check(0, by("single", 0, shards), true, false);
    check(1, by("layerwise", 0, shards), false, true);
    check(2, by("optimal", 1, shards), true, false);
  }
}

/// Steps of which all are captured that may be; the sums of replicas are then part of the graphs.
/// @return what was wrong
template <class Gpus>
std::string words_after_replays(Gpus gpus, Case const& c, bool decides,
                                std::vector<std::byte> const& expected, bool shards = false) {
  constexpr int steps = 8;
  sg::cuda::GraphCounts counts;
  gpus.capture = true;
  gpus.counts = &counts;
  auto train = placed(gpus, by("optimal", decides ? 2 : 0, shards), c, clipping());
  BatchThere const data[] = {upload(row_model::batch(0, 4, c.rows, false)),
                             upload(row_model::batch(1, 4, c.rows, false))};
  for (int s = 0; s < steps; ++s) (void)sg::enqueue(train.step(data[s % 2]));
  train.settle();
  std::string words;
  train.gather_parameters();
  if (bits(train) != expected) words += "parameters ";
  // One step warms up; measured ones are enqueued, and the first of a new program.
  if (counts.replays < (decides ? steps - 4 : steps - 1) || counts.replays >= steps)
    words += std::to_string(counts.replays) + " replays";
  return words;
}

}  // namespace replica_cases
