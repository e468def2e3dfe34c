// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A partitioner that makes stages of equal work instead of equal length.

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/partition/policy.hpp>

namespace layers {

/// Splits a chain of layers so that the largest amount of work of a stage is minimal.
struct ByWork {
  using policy_tag = stagger::PartitionTag;
  std::vector<double> work;  ///< [layers] in any unit
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
    for (int i = 0; i < 60; ++i) {  // bisection over the largest work of a stage
      double const middle = (enough + too_little) / 2;
      (static_cast<int>(fill(middle).size()) < stages ? enough : too_little) = middle;
    }
    // `fill` may need fewer stages than asked for; then the longest ones are halved.
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
  // Fills each stage with layers up to the limit, with at least one.
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

}  // namespace layers
