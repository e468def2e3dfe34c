// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Random bits that depend only on a seed and on the numbers that identify a draw.

#include <stagger/core/requirements.hpp>

#include <cstdint>
#include <initializer_list>

namespace stagger {

/// 64 random bits for a seed and the numbers that identify a draw (step, microbatch, ...): the same
/// on every machine, in any order of drawing.
/// @source G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA
/// 2014 (SplitMix64)
[[nodiscard]] constexpr std::uint64_t random_bits(
    std::uint64_t seed, std::initializer_list<std::uint64_t> names) noexcept {
  std::uint64_t x = seed;
  for (std::uint64_t const name : names) {
    x += 0x9e3779b97f4a7c15U * (name + 1);
    x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
    x ^= x >> 31U;
  }
  return x;
}

}  // namespace stagger
