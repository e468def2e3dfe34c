// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Schedules over GPUs.

#include <exception>
#include <string>
#include <vector>

#include <stagger/schedule/named.hpp>

#include "cuda/gpus_model.hpp"

namespace gpus_model {

struct Case {
  char const* name;
  int ranks;
  int chunks;
  int microbatches;
  int gpus;
};

inline Made schedule_of(Case const& c) {
  std::string const name = c.name;
  return {[name](sg::Shape shape) {
            if (name == "seq-1f1b") shape.microbatches /= 2;  // two slices each
            return sg::schedule::Named{name}.table(shape);
          },
          c.chunks};
}

/// GPUs 0 to count - 1.
inline std::vector<int> first(int count) {
  std::vector<int> devices;
  for (int g = 0; g < count; ++g) devices.push_back(g);
  return devices;
}

inline sg::Options clipping(double deadline_s = 60) {
  sg::Options options;
  options.clip_norm = clip;
  options.seed = run_seed;
  options.deadline_s = deadline_s;
  return options;
}

/// What `body` throws, in words; empty: nothing.
template <class Body> [[nodiscard]] std::string words_of(Body body) {
  try {
    body();
  } catch (std::exception const& error) {
    return error.what();
  }
  return {};
}

[[nodiscard]] inline bool has(std::string const& words, char const* part) {
  return words.find(part) != std::string::npos;
}

}  // namespace gpus_model
