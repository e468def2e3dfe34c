// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The settings of a run and the plan that was made for it.

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/core/file.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/train/planned.hpp>

#include "model/model.hpp"
#include "schedules.hpp"
#include "settings.hpp"
#include "text.hpp"

namespace gpt {

namespace sg = stagger;

inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

[[nodiscard]] inline ModelShape shape_of(Settings const& s) {
  return {s.layers, s.width, s.heads, s.context};
}

inline std::string describe_model(Settings const& s) {
  return "gpt, half blocks " + std::to_string(2 * s.layers) + ", width " + std::to_string(s.width) +
         ", heads " + std::to_string(s.heads) + ", context " + std::to_string(s.context);
}

/// The settings of a run, and the plan that was made for it, if any.
struct RunConfig {
  Settings s;
  std::optional<sg::Planned> planned{};
};

inline Schedule schedule_of(RunConfig const& config) {
  Settings const& s = config.s;
  if (config.planned)
    return {{.name = "1f1b"}, static_cast<int>(s.microbatches), config.planned->schedule.warm_up};
  return Schedule::named(s.schedule, s.chunks, s.microbatches);
}

/// The schedule's table for a step.
inline sg::schedule::Table table_of(RunConfig const& config) {
  return schedule_of(config).table({.ranks = static_cast<int>(config.s.ranks()),
                                    .microbatches = static_cast<int>(config.s.microbatches),
                                    .chunks = static_cast<int>(config.s.chunks)});
}

/// Replicas of each row of the table.
inline sg::Replicas replicas_of(RunConfig const& config) {
  if (config.planned) return config.planned->options.replicas;
  if (config.s.ranks_of_row() == 1) return {};
  std::vector<int> const counts(static_cast<std::size_t>(config.s.ranks()),
                                static_cast<int>(config.s.ranks_of_row()));
  return sg::Replicas::even(counts.data(), counts.size());
}

inline std::string describe_replicas(RunConfig const& config) {
  std::string description;
  auto const replicas = replicas_of(config);
  for (int const count : replicas.counts())
    description += sg::text(description.empty() ? ", replicas " : ":",
                            count / static_cast<int>(config.s.tensor_parallel));
  if (config.s.replicas == 1 && !config.planned) description.clear();
  if (config.s.tensor_parallel > 1)
    description += sg::text(", tensor-parallel ", config.s.tensor_parallel);
  return description;
}

/// Describes all settings on which the bits of the result depend, besides the model.
inline std::string describe_training(RunConfig const& config, Text const& text) {
  Settings const& s = config.s;
  char line[256];
  std::snprintf(line, sizeof line,
                "steps %lld, batch %lld, microbatches %lld, rate %.17g, warm-up %lld, clip %.17g, "
                "seed %lld, text %016llx",
                static_cast<long long>(s.steps), static_cast<long long>(s.batch),
                static_cast<long long>(s.microbatches), s.rate, static_cast<long long>(s.warmup),
                s.clip, static_cast<long long>(s.seed),
                static_cast<unsigned long long>(text.fingerprint()));
  return std::string(line) +
         (gradient_order(table_of(config)) == GradientOrder::descending ? ", sums falling" : "") +
         describe_replicas(config) + (s.on_gpu() ? ", on a GPU in " + s.precision : "");
}

/// Creates the output folder and checks that it can be written to, before hours of training.
inline void prepare_output(std::string const& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    throw sg::Error(sg::Errc::io,
                    "cannot create the folder '" + folder + "': " + error.message() +
                        "; give --output DIR a place that can be written to, or none");
  sg::WholeFile probe(folder + "/trace.json");  // not committed, so no file remains
}

}  // namespace gpt
