// SPDX-License-Identifier: Apache-2.0
// A small model is cut by the compiler.
#include <stagger/partition/min_max.hpp>

#include <vector>

namespace {

using stagger::partition::Costs;
using stagger::partition::MinMax;

/// Six layers of 1, 1, 4, 1, 1, 4 seconds; the second device is twice as slow. Boundaries are free.
constexpr Costs six_layers() {
  Costs costs;
  costs.until_s = {{0, 1, 2, 6, 7, 8, 12}, {0, 2, 4, 12, 14, 16, 24}};
  costs.parameter_bytes_until = {0, 1, 2, 3, 4, 5, 6};
  costs.stash_bytes_until = {0, 0, 0, 0, 0, 0, 0};
  costs.boundary_bytes = {0, 0, 0, 0, 0, 0, 0};
  costs.places = {{0, 0, 1000, 0}, {1, 0, 1000, 1}};
  costs.intra.push_back({});
  return costs;
}

constexpr bool given_order() {
  auto const found = MinMax{}.partition(six_layers());
  return found.cuts == std::vector{5} && found.bottleneck_s == 8;
}
static_assert(given_order());

constexpr bool any_order() {
  auto const found = MinMax{.any_order = true}.partition(six_layers());
  return found.bottleneck_s == 8 && found.lower_bound_s == 8;
}
static_assert(any_order());

}  // namespace
