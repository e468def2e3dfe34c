// SPDX-License-Identifier: Apache-2.0
// mistake: device: `fields()` names a pointer
// expect-error: stagger: fields\(\) names a member that points to something, which a message cannot take along
// expect-error: FieldCannotBeSent<stagger::Portable, Parts, 0, std::shared_ptr<float
// see: scaling.md#a-pipeline-over-processes
#include <memory>
#include <tuple>

#include <stagger/core/portable.hpp>

struct Parts {
  std::shared_ptr<float> values;
  auto fields() { return std::tie(values); }
  auto fields() const { return std::tie(values); }
};

bool asked_by_devices() { return stagger::detail::require_fields<stagger::Portable, Parts>(); }
