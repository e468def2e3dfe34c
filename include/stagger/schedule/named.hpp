// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A schedule chosen by name at run time.

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include <stagger/core/error.hpp>
#include <stagger/schedule/auto.hpp>
#include <stagger/schedule/catalog.hpp>
#include <stagger/schedule/proof/peak_in_flight.hpp>
#include <stagger/schedule/table_of.hpp>

namespace stagger::schedule {

/// The properties of a schedule of the catalog.
struct CatalogEntry {
  std::string_view name;
  std::string_view what;
  std::string_view constraint;  ///< on ranks P, microbatches M and chunks V
  int chunks;                   ///< default of V
  int slices;                   ///< default number of slices of a microbatch
  int owners;                   ///< ranks that run the same stage
  Mapping mapping;              ///< default
  bool flushes;                 ///< every rank is idle when an iteration ends
  bool trains;                  ///< it has backward actions
  // Options that it has.
  bool takes_warmup, takes_group, takes_slices, takes_mapping, takes_memory;
  bool takes_in_flight;  ///< adapts its order to such a limit; others keep to it or refuse it
};

namespace detail {

template <SchedulePolicy P>
[[nodiscard]] constexpr CatalogEntry entry_of(CatalogLine<P> const& line) {
  P const policy{};
  constexpr bool has_warmup = requires { policy.warmup; };
  constexpr bool has_group = requires { policy.group; };
  constexpr bool sliced = requires { policy.slices; };
  constexpr bool has_mapping = requires { policy.mapping; };
  constexpr bool has_limits = requires { policy.limits; };
  constexpr bool has_in_flight = requires { policy.in_flight; };
  int slices = 1;
  if constexpr (sliced) slices = policy.slices;
  return {.name = line.name,
          .what = line.what,
          .constraint = line.constraint,
          .chunks = policy.chunks(),
          .slices = slices,
          .owners = line.mapping == Mapping::bidirectional ? 2 : 1,
          .mapping = line.mapping,
          .flushes = P::flushes,
          .trains = line.trains,
          .takes_warmup = has_warmup,
          .takes_group = has_group,
          .takes_slices = sliced,
          .takes_mapping = has_mapping,
          .takes_memory = has_limits,
          .takes_in_flight = has_in_flight};
}

}  // namespace detail

/// All schedules, the plain ones first.
inline constexpr auto catalog = [] {
  std::array<CatalogEntry, catalog_lines.size> entries{};
  std::size_t i = 0;
  catalog_lines.for_each([&](auto const& line) { entries[i++] = detail::entry_of(line); });
  return entries;
}();

struct Named;

namespace detail {

/// The table of a named schedule. A template, so that it can be compiled once.
/// @tparam T  Table
template <class T> T table_of_named(Named const& named, Shape shape);

}  // namespace detail

/// A schedule chosen by name, with its options. An option that is not set has the default of the
/// schedule's own policy; one that the schedule does not have is refused.
///
/// @code
///     pipeline.with(schedule::Named{"zb-v"}, host::Threads{4}, loss);
///     schedule::Table const table =
///         schedule::Named{.name = "interleaved", .group = 4}.table({.ranks = 4, .microbatches = 8,
///                                                                   .chunks = 2});
/// @endcode
struct Named {
  using policy_tag = ScheduleTag;
  static constexpr bool flushes = true;  ///< in general; `facts` says it for the name
  static constexpr bool proven = true;   ///< as all schedules of the catalog are

  std::string name;                   ///< in the catalog
  int chunks_per_rank = 0;            ///< V; 0: the schedule's own, in `table` the shape's
  Warmup warmup = Warmup::minimal;    ///< 1f1b
  int group = 0;                      ///< interleaved, zb-h1
  int slices = 0;                     ///< seq-1f1b, auto; 0: 2 for seq-1f1b, 1 for auto
  Mapping mapping = Mapping::looped;  ///< forward-only, auto
  Costs costs{};                      ///< for fifo and auto
  Limits limits{};                    ///< in_flight for all, memory for auto

  /// @throws Error  bad_configuration for a name that is not in the catalog, naming the nearest
  [[nodiscard]] [[gnu::cold]] CatalogEntry const& entry() const {
    for (CatalogEntry const& entry : catalog)
      if (entry.name == name) return entry;
    catalog_lines.refuse(name);
  }

  /// Stages on each rank, V.
  /// @throws Error  as `entry`
  [[nodiscard]] int chunks() const {
    return chunks_per_rank > 0 ? chunks_per_rank : entry().chunks;
  }

  /// @throws Error  as `entry`
  [[nodiscard]] Facts facts() const {
    CatalogEntry const& e = entry();
    return {e.name, e.flushes, e.takes_slices && slices > 0 ? slices : e.slices};
  }

  /// @throws Error  bad_configuration for a name that is not in the catalog, an option that the
  ///                schedule does not have, a shape that it refuses, or an in-flight limit that it
  ///                cannot adapt to and exceeds
  [[nodiscard]] Table table(Shape shape) const {
    return detail::table_of_named<Table>(*this, shape);
  }

  /// Versions of its weights that a rank keeps.
  /// @throws Error  as `entry`
  [[nodiscard]] int weight_versions(Shape shape, int rank) const {
    int versions = 1;
    visit(shape.chunks, [&](auto const& policy) {
      if constexpr (requires { policy.weight_versions(shape, rank); })
        versions = policy.weight_versions(shape, rank);
    });
    return versions;
  }

  /// Calls `with(policy)` with the named policy, a value of its own type.
  /// @param chunks  V, where the schedule has a choice
  /// @throws Error  as `table`, but for the shape and the in-flight limit
  template <class With> void visit(int chunks, With&& with) const {
    CatalogEntry const& e = entry();
    auto const require = [&](bool asked, bool has, char const* option) {
      if (asked && !has)
        raise(Errc::bad_configuration, "schedule ", name, " has no option '", option,
              "'; leave it out, or choose a schedule that has it");
    };
    require(warmup != Warmup::minimal, e.takes_warmup, "warmup");
    require(group != 0, e.takes_group, "group");
    require(slices != 0, e.takes_slices, "slices");
    require(mapping != Mapping::looped, e.takes_mapping, "mapping");
    require(limits.memory != 0, e.takes_memory, "limits.memory");
    catalog_lines.visit(e.name, [&]<class P>(CatalogLine<P> const&) {
      P policy = detail::with_chunks<P>(chunks);
      if constexpr (requires { policy.warmup; }) policy.warmup = warmup;
      if constexpr (requires { policy.group; }) policy.group = group;
      if constexpr (requires { policy.slices; })
        if (slices != 0) policy.slices = slices;
      if constexpr (requires { policy.mapping; }) policy.mapping = mapping;
      if constexpr (requires { policy.costs; }) policy.costs = costs;
      if constexpr (requires { policy.in_flight; }) policy.in_flight = limits.in_flight;
      if constexpr (requires { policy.limits; }) policy.limits = limits;
      with(static_cast<P const&>(policy));
    });
  }
};

static_assert(SchedulePolicy<Named>);

namespace detail {

template <class T> [[gnu::cold]] T table_of_named(Named const& named, Shape shape) {
  T table;
  int const chunks = named.chunks_per_rank > 0 ? named.chunks_per_rank : shape.chunks;
  named.visit(chunks, [&](auto const& policy) { table = policy.table(shape); });
  CatalogEntry const& entry = named.entry();
  int const limit = named.limits.in_flight;
  require(limit >= 0, named.name.c_str(), Count::in_flight, limit, 1,
          "a limit is at least 1, or 0 for none");
  if (limit > 0 && entry.trains && !entry.takes_in_flight && !entry.takes_memory) {
    auto const peak = peak_in_flight(table);
    int const most = *std::max_element(peak.begin(), peak.end());
    require(most <= limit, named.name.c_str(), Count::in_flight, limit, most,
            "its peak is fixed by its order");
  }
  return table;
}

template <class T>
[[gnu::cold]] T catalog_table(std::string_view name, void const* erased, Shape shape) {
  T table;
  catalog_lines.for_each([&]<class P>(CatalogLine<P> const& line) {
    if (name == line.name) table = static_cast<P const*>(erased)->table(shape);
  });
  if (table.stages == 0)
    raise(Errc::bad_configuration, "schedule ", std::string(name),
          " has a name, but no line in schedule/catalog.hpp; add it");
  return table;
}

#ifdef STAGGER_SEPARATE_COMPILATION
extern template Table table_of_named(Named const&, Shape);
#endif

}  // namespace detail
}  // namespace stagger::schedule
