// SPDX-License-Identifier: Apache-2.0
#include "schedules.hpp"

#include <stagger/core/error.hpp>
#include <stagger/train/planned.hpp>

namespace gpt {

namespace schedule = stagger::schedule;

namespace {

bool fits(schedule::CatalogEntry const& entry) {
  return entry.flushes && entry.trains && entry.owners == 1 && entry.slices == 1;
}

}  // namespace

schedule::Table Schedule::table(stagger::Shape shape) const {
  if (shape.microbatches != microbatches)
    return schedule::ForwardOnly{chunks(), order.entry().mapping}.table(shape);
  return warm_up.empty() ? order.table(shape) : stagger::PlannedOrder{warm_up}.table(shape);
}

Schedule Schedule::named(std::string_view name, std::int64_t chunks, std::int64_t microbatches) {
  for (auto const& entry : schedule::catalog)
    if (entry.name == name && fits(entry))
      return {{.name = std::string(name), .chunks_per_rank = static_cast<int>(chunks)},
              static_cast<int>(microbatches)};
  throw stagger::Error(
      stagger::Errc::bad_configuration,
      "there is no schedule '" + std::string(name) + "'; --schedule knows " + schedule_names());
}

std::string schedule_names() {
  std::string known;
  for (auto const& entry : schedule::catalog)
    if (fits(entry)) (known += known.empty() ? "" : ", ") += entry.name;
  return known;
}

GradientOrder gradient_order(schedule::Table const& table) {
  std::vector<int> last(static_cast<std::size_t>(table.stages), -1);
  bool rises = true, falls = true;
  for (auto const& action : table.actions) {
    if (!schedule::ends_flight(action.kind)) continue;
    int& before = last[static_cast<std::size_t>(action.stage)];
    if (before >= 0) (action.microbatch > before ? falls : rises) = false;
    before = action.microbatch;
  }
  return rises   ? GradientOrder::ascending
         : falls ? GradientOrder::descending
                 : GradientOrder::mixed;
}

}  // namespace gpt
