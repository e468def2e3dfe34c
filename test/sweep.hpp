// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Which cases of a large product a test takes.

#include <cstdint>

#include "full.hpp"
#include "sanitized.hpp"

/// Counts the cases of a product, in the order of its loops. A test takes all of them with
/// `./run test --full`, else a fixed sample, and a tenth of that under a sanitizer.
class Sweep {
 public:
  /// @param every   one case in so many, spread evenly, so that each value of a loop meets each of
  ///                the others
  /// @param sample  another number, another sample
  explicit Sweep(std::uint32_t every, int sample = 0)
      : every_(full()      ? 1
               : sanitized ? 10 * every
                           : every),
        next_(static_cast<std::uint32_t>(sample) << 24U) {}

  /// Whether the test takes the next case.
  [[nodiscard]] bool takes() {
    std::uint32_t mixed = next_++;
    mixed = (mixed ^ mixed >> 16U) * 0x7feb352dU;
    mixed = (mixed ^ mixed >> 15U) * 0x846ca68bU;
    return (mixed ^ mixed >> 16U) % every_ == 0;
  }

 private:
  std::uint32_t every_;
  std::uint32_t next_;
};
