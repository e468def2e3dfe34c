// SPDX-License-Identifier: Apache-2.0
#include <stagger/core/random.hpp>

#include "catch.hpp"

#include <array>
#include <bit>
#include <cstdint>
#include <set>

namespace random_test {

using stagger::random_bits;

TEST_CASE("core/random_bits: the same names give the same bits, at compile time as well",
          "[core]") {
  constexpr auto fixed = random_bits(1, {2, 3});
  CHECK(random_bits(1, {2, 3}) == fixed);
  CHECK(random_bits(1, {3, 2}) != fixed);
  CHECK(random_bits(2, {2, 3}) != fixed);
}

TEST_CASE("core/random_bits: steps, microbatches and layers that lie close have bits far apart",
          "[core]") {
  std::set<std::uint64_t> seen;
  std::array<int, 64> ones{};
  int count = 0;
  for (std::uint64_t seed = 0; seed < 3; ++seed)
    for (std::uint64_t step = 0; step < 20; ++step)
      for (std::uint64_t microbatch = 0; microbatch < 20; ++microbatch)
        for (std::uint64_t layer = 0; layer < 20; ++layer) {
          auto const bits = random_bits(seed, {step, microbatch, layer});
          seen.insert(bits);
          ++count;
          for (unsigned b = 0; b < 64; ++b) ones[b] += static_cast<int>(bits >> b & 1U);
        }
  CHECK(seen.size() == static_cast<std::size_t>(count));
  for (int const n : ones)
    CHECK(std::abs(n - count / 2) < 5 * 78);  // 5 standard deviations of 24000 flips
}

TEST_CASE("core/random_bits: one bit more in a name changes half of all bits", "[core]") {
  int changed = 0;
  for (std::uint64_t i = 0; i < 1000; ++i)
    changed += std::popcount(random_bits(7, {i, 5}) ^
                             random_bits(7, {i ^ (std::uint64_t{1} << (i % 64)), 5}));
  CHECK(changed > 31 * 1000);
  CHECK(changed < 33 * 1000);
}

}  // namespace random_test
