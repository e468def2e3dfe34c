// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Pipelines whose stages have replicas, over GPUs.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <stagger/cuda/gpus.hpp>
#include <stagger/placement/explicit_map.hpp>
#include <stagger/schedule/chimera.hpp>
#include <stagger/schedule/dual_pipe.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/interleaved.hpp>

#include "cuda/gpus_cases.hpp"
#include "cuda/replica_model.hpp"

namespace replica_cases {

using namespace replica_model;
using gpus_model::has;
using gpus_model::words_of;

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

inline Grouping by(char const* name, int measured_steps) {
  Grouping policy;
  policy.grouping = grouping::named(name);
  policy.measured_steps = measured_steps;
  return policy;
}

inline sg::cuda::Gpus on(int count) {
  sg::cuda::Gpus gpus;
  for (int g = 0; g < count; ++g) gpus.devices.push_back(g);
  gpus.kernels = &kernels;
  return gpus;
}
inline int gpus_of(std::vector<int> const& place) {
  return *std::max_element(place.begin(), place.end()) + 1;
}

template <class Device>
auto placed(Device device, Grouping policy, Case const& c, sg::Options options) {
  options.seed = run_seed;
  options.replicas = c.replicas;
  return sg::Pipeline{layers_there()}.with(
      sg::partition::Cuts{even_cuts(c.positions * c.schedule.each)}, c.schedule, LossThere{},
      sg::cuda::Enqueued<sg::optimizer::AdamW, Launch>{optimizer()}, std::move(device), policy,
      sg::placement::ExplicitMap{c.place}, options);
}

inline sg::Options options_with(bool clips, bool recompute = false, double deadline_s = 60) {
  sg::Options options;
  if (clips) options.clip_norm = clip;
  options.recompute = recompute;
  options.deadline_s = deadline_s;
  return options;
}

inline auto on_the_host(Case const& c, sg::Options options) {
  options.replicas = c.replicas;
  return row_model::pipeline(sg::host::Threads{1}, even_cuts(c.positions * c.schedule.each),
                             c.schedule, options);
}

inline Case uneven() {
  return {"uneven", made(sg::schedule::OneFOneB{}), 2, {{3, 1}, {1, 1}}, {0, 1, 2, 3}};
}
inline Batch batch_of(int step) { return row_model::batch(step, 3, 4, false); }

/// Steps of which all are captured that may be; the sums of replicas are then part of the graphs.
/// @return what was wrong
template <class Gpus>
std::string words_after_replays(Gpus gpus, Case const& c, bool decides,
                                std::vector<std::byte> const& expected) {
  constexpr int steps = 8;
  sg::cuda::GraphCounts counts;
  gpus.capture = true;
  gpus.counts = &counts;
  auto train = placed(gpus, by("optimal", decides ? 2 : 0), c, options_with(true));
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
