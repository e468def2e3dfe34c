// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The examples of a minibatch, cut into microbatches.

#include <algorithm>
#include <cstddef>

namespace vgg {

/// Examples are distributed over the microbatches as evenly as possible, larger ones first.
struct Minibatch {
  std::size_t examples = 0;      ///< of all microbatches together
  std::size_t microbatches = 1;  ///< >= 1

  /// Examples of microbatch m.
  [[nodiscard]] std::size_t rows(std::size_t m) const noexcept {
    return examples / microbatches + (m < examples % microbatches ? 1 : 0);
  }
  /// Which example of the minibatch is the first of microbatch m.
  [[nodiscard]] std::size_t first(std::size_t m) const noexcept {
    return m * (examples / microbatches) + std::min(m, examples % microbatches);
  }
};

}  // namespace vgg
