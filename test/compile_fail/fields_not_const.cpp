// SPDX-License-Identifier: Apache-2.0
// mistake: device: `fields()` without `fields() const`
// expect-error: stagger: a type that is sent has both 'auto fields\(\)' and 'auto fields\(\) const'
// see: scaling.md#a-pipeline-over-processes
#include <stagger/stagger.hpp>

#include <tuple>
#include <vector>

#include <stagger/core/portable.hpp>

struct Parts {
  std::vector<float> values;
  auto fields() { return std::tie(values); }
};

constexpr bool asked_by_devices = stagger::detail::require_fields<stagger::Portable, Parts>();
