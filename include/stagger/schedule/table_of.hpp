// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The table of a policy as the engine asks for it: compiled once for the schedules of the
///         catalog, verified for those that are not proven.

#include <string_view>

#include <stagger/core/error.hpp>
#include <stagger/core/shape.hpp>
#include <stagger/schedule/policy.hpp>

namespace stagger::schedule {

namespace detail {

/// The table of a policy of the catalog, its type erased; in schedule/named.hpp. A template, so
/// that it can be compiled once.
/// @tparam T  Table
template <class T> T catalog_table(std::string_view name, void const* policy, Shape shape);

/// Raises the fault of a table whose schedule is not proven. The proof takes a compiler a second,
/// so it is included only by programs that run such a schedule.
/// @tparam T  schedule::Table; a template, so that `verify` is looked up where the pipeline is made
template <class T> void require_legal(T const& table) {
  constexpr bool can_verify = requires { verify(table); };
  static_assert(can_verify,
                "stagger: the tables of this schedule must be verified before they run: include "
                "<stagger/schedule/proof/verify.hpp>; or, if they are proven already, say so with "
                "'static constexpr bool proven = true'");
  if constexpr (can_verify)
    if (auto const fault = verify(table)) raise(Errc::bad_schedule, message(fault));
}

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

}  // namespace stagger::schedule
