// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Stages of equal work instead of equal length: a partitioner of one's own.

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/partition/policy.hpp>

namespace gpt {

/// Cuts a chain so that the stage with most work has as little as can be.
struct ByWork {
  using policy_tag = stagger::PartitionTag;
  std::vector<double> work;  ///< [layers] of each layer, in any unit
  int stages = 1;

  /// @throws Error  with Errc::bad_configuration if there are no stages, or more than layers
  [[nodiscard]] std::vector<int> cuts(int layers) const {
    if (stages < 1 || stages > layers)
      throw stagger::Error(stagger::Errc::bad_configuration,
                           std::to_string(stages) + " stages cannot be made of " +
                               std::to_string(layers) + " layers; use 1 to " +
                               std::to_string(layers));
    double enough = std::accumulate(work.begin(), work.end(), 0.0);
    double too_little = 0;
    for (int i = 0; i < 60; ++i) {  // bisection: is there a cut with no stage above the middle?
      double const middle = (enough + too_little) / 2;
      (static_cast<int>(fill(middle).size()) < stages ? enough : too_little) = middle;
    }
    // Every stage gets a layer: where `fill` needs fewer stages, the longest are halved.
    std::vector<int> result = fill(enough);
    while (static_cast<int>(result.size()) < stages - 1) {
      int longest = 0;
      int where = 0;
      for (int s = 0, begin = 0; s <= static_cast<int>(result.size()); ++s) {
        int const end =
            s < static_cast<int>(result.size()) ? result[static_cast<std::size_t>(s)] : layers;
        if (end - begin > longest) {
          longest = end - begin;
          where = begin + longest / 2;
        }
        begin = end;
      }
      result.insert(std::upper_bound(result.begin(), result.end(), where), where);
    }
    return result;
  }

 private:
  // Cuts of the stages that arise when each takes layers up to the limit, at least one.
  [[nodiscard]] std::vector<int> fill(double limit) const {
    std::vector<int> result;
    double sum = 0;
    for (std::size_t l = 0; l < work.size(); ++l) {
      if (sum > 0 && sum + work[l] > limit) {
        result.push_back(static_cast<int>(l));
        sum = 0;
      }
      sum += work[l];
    }
    return result;
  }
};

}  // namespace gpt
