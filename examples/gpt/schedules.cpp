// SPDX-License-Identifier: Apache-2.0
#include "schedules.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/engine/planned.hpp>
#include <stagger/schedule/catalog.hpp>

namespace gpt {

namespace schedule = stagger::schedule;

namespace {

/// What a plain step cannot run: two replicas of a stage, slices, no flush, no backward.
bool fits(std::string_view name) {
  constexpr std::array<std::string_view, 7> others{
      "dualpipe", "chimera", "seq-1f1b", "fifo", "pipedream", "pipedream-2bw", "forward-only"};
  return std::find(others.begin(), others.end(), name) == others.end();
}

bool turns(std::string_view name) {
  constexpr std::array<std::string_view, 6> all{"zb-v",   "v-half",     "v-min",
                                                "v-1f1b", "dualpipe-v", "hanayo"};
  return std::find(all.begin(), all.end(), name) != all.end();
}

}  // namespace

schedule::Table Schedule::table(stagger::Shape shape) const {
  if (shape.microbatches == microbatches)
    return warm_up.empty() ? schedule::make_table(name, shape)
                           : stagger::PlannedOrder{warm_up}.table(shape);
  schedule::CatalogOptions options;
  options.mapping = turns(name) ? schedule::Mapping::zigzag : schedule::Mapping::looped;
  return schedule::make_table("forward-only", shape, options);
}

Schedule Schedule::named(std::string_view name, std::int64_t chunks, std::int64_t microbatches) {
  for (auto const& entry : schedule::catalog)
    if (entry.name == name && fits(name))
      return {entry.name,
              chunks > 0 ? static_cast<int>(chunks) : entry.chunks,
              static_cast<int>(microbatches),
              {}};
  throw stagger::Error(
      stagger::Errc::bad_configuration,
      "there is no schedule '" + std::string(name) + "'; --schedule knows " + schedule_names());
}

std::string schedule_names() {
  std::string known;
  for (auto const& entry : schedule::catalog)
    if (fits(entry.name)) (known += known.empty() ? "" : ", ") += entry.name;
  return known;
}

Adds adds(schedule::Table const& table) {
  std::vector<int> last(static_cast<std::size_t>(table.stages), -1);
  bool rises = true, falls = true;
  for (auto const& action : table.actions) {
    if (!schedule::ends_flight(action.kind)) continue;
    int& before = last[static_cast<std::size_t>(action.stage)];
    if (before >= 0) (action.microbatch > before ? falls : rises) = false;
    before = action.microbatch;
  }
  return rises ? Adds::rising : falls ? Adds::falling : Adds::otherwise;
}

}  // namespace gpt
