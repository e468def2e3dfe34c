// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A schedule chosen by name while the program runs: a policy of one's own.

#include <array>
#include <string>
#include <string_view>

#include <stagger/core/error.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/schedule/verify.hpp>

namespace gpt {

struct Schedule {
  using policy_tag = stagger::ScheduleTag;
  static constexpr bool flushes = true;

  using MakeTable = stagger::schedule::Table (*)(stagger::Shape);
  std::string_view name;
  MakeTable make;

  [[nodiscard]] int chunks() const { return 1; }
  [[nodiscard]] stagger::schedule::Table table(stagger::Shape shape) const { return make(shape); }

  /// @throws Error  with Errc::bad_configuration naming the known schedules
  [[nodiscard]] static Schedule named(std::string_view name);
};

template <class Policy> [[nodiscard]] stagger::schedule::Table table_of(stagger::Shape shape) {
  return Policy{}.table(shape);
}

inline constexpr std::array schedules{Schedule{"gpipe", table_of<stagger::schedule::GPipe>},
                                      Schedule{"1f1b", table_of<stagger::schedule::OneFOneB>}};

inline Schedule Schedule::named(std::string_view name) {
  std::string known;
  for (Schedule const& schedule : schedules) {
    if (schedule.name == name) return schedule;
    known += (known.empty() ? "" : ", ") + std::string(schedule.name);
  }
  throw stagger::Error(
      stagger::Errc::bad_configuration,
      "there is no schedule '" + std::string(name) + "'; --schedule knows " + known);
}

}  // namespace gpt
