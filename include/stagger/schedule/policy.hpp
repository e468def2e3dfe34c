// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Axis 1: what a schedule policy is.

#include <concepts>
#include <string_view>
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
  { policy.chunks() } -> std::same_as<int>;  // stages each rank runs, V
  {
    policy.table(shape)
    } -> std::same_as<schedule::Table>;  // throws Error for a shape that is not legal
};

namespace schedule {

/// What the engine asks of a schedule that is chosen while the program runs, by `facts()`.
struct Facts {
  std::string_view name;
  bool flushes = true;
  int slices = 1;  ///< of each microbatch
};

/// Does a schedule say that its tables need no proof before they run?
template <class P> inline constexpr bool is_proven = requires { requires P::proven; };

/// The name of a schedule of the catalog; the header of the schedule gives it. Empty for others.
template <class P> inline constexpr std::string_view catalog_name{};

namespace detail {

/// The table of a policy of the catalog, its type erased; in schedule/named.hpp. A template, so
/// that it can be compiled once.
/// @tparam T  Table
template <class T> T catalog_table(std::string_view name, void const* policy, Shape shape);

#ifdef STAGGER_SEPARATE_COMPILATION
extern template Table catalog_table(std::string_view, void const*, Shape);
#endif

}  // namespace detail

/// `policy.table(shape)`. With separate compilation the tables of the catalog's schedules are made
/// by what stagger/separate.hpp compiles.
template <SchedulePolicy P> [[nodiscard]] Table table_of(P const& policy, Shape shape) {
#ifdef STAGGER_SEPARATE_COMPILATION
  if constexpr (!catalog_name<P>.empty())
    return detail::catalog_table<Table>(catalog_name<P>, &policy, shape);
#endif
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
