// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Axis 1: what a schedule policy is.

#include <concepts>

#include <stagger/core/shape.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger {

/// Marks a schedule policy: `using policy_tag = stagger::ScheduleTag;`.
struct ScheduleTag {};

/// A schedule maps a shape to a table. One whose every table is known to be legal, by a proof or by
/// tests, may say so with `static constexpr bool proven = true;`: the engine verifies the tables of
/// all others before it runs them.
template <class P>
concept SchedulePolicy = std::copyable<P> && std::same_as<typename P::policy_tag, ScheduleTag> &&
    requires(P const policy, Shape shape) {
  { P::flushes } -> std::convertible_to<bool>;  // is every stage idle when an iteration ends?
  { policy.chunks() } -> std::same_as<int>;     // stages each rank runs, V
  {
    policy.table(shape)
    } -> std::same_as<schedule::Table>;  // throws Error for a shape that is not legal
};

namespace schedule {

/// `policy.table(shape)`, as a function of its own: one that can be compiled once.
template <SchedulePolicy P> [[nodiscard]] Table table_of(P const& policy, Shape shape) {
  return policy.table(shape);
}

}  // namespace schedule
}  // namespace stagger
