// SPDX-License-Identifier: Apache-2.0
// mistake: device: `fields()` names what cannot be sent, such as a `std::map`
// expect-error: stagger: fields\(\) names a member that cannot be sent: its index and type are the last two
// expect-error: FieldCannotBeSent<stagger::Portable, Parts, 1, std::map<int, float
// see: scaling.md#a-pipeline-over-processes
#include <map>
#include <tuple>
#include <vector>

#include <stagger/core/portable.hpp>

struct Parts {
  std::vector<float> values;
  std::map<int, float> more;
  auto fields() { return std::tie(values, more); }
  auto fields() const { return std::tie(values, more); }
};

bool asked_by_devices() { return stagger::detail::require_fields<stagger::Portable, Parts>(); }
