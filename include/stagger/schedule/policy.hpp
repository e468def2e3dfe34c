// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Axis 1: what a schedule policy is.

#include <concepts>
#include <type_traits>

#include <stagger/core/error.hpp>
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
  typename std::bool_constant<P::flushes>;   // is every stage idle when an iteration ends?
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

namespace detail {

/// Refutes the table of a schedule that is not proven. The proof costs its compiler a second, so
/// only who runs such a schedule includes it.
/// @tparam T  schedule::Table; a template, so that `verify` is looked up where the pipeline is made
template <class T> void require_legal(T const& table) {
  constexpr bool can_verify = requires { verify(table); };
  static_assert(can_verify,
                "stagger: the tables of this schedule must be verified before they run: include "
                "<stagger/schedule/verify.hpp>; or, if they are proven already, say so with "
                "'static constexpr bool proven = true'");
  if constexpr (can_verify)
    if (auto const fault = verify(table)) raise(Errc::bad_schedule, message(fault));
}

}  // namespace detail
}  // namespace schedule
}  // namespace stagger
