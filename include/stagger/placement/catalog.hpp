// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The lists of all allocations and all placements of parameters, and the choice of one by
///         its name.

#include <string_view>
#include <vector>

#include <stagger/core/catalog.hpp>
#include <stagger/placement/allocation.hpp>
#include <stagger/placement/hybrid_distribution.hpp>
#include <stagger/placement/parameter_placement.hpp>

namespace stagger::placement {

/// A policy, its name, and the words by which programs explain it.
template <class P> struct CatalogLine {
  std::string_view name;
  std::string_view what;
  P policy{};
};

/// The devices of each worker.
inline constexpr Catalog allocation_lines{
    "allocation", CatalogLine<NodePartition>{"np", "those of one node"},
    CatalogLine<EqualDistribution>{"ed", "one of each node"},
    CatalogLine<HybridDistribution>{"hd", "two of two nodes"}};

/// Where a layer's parameters lie.
inline constexpr Catalog parameter_placement_lines{
    "placement of parameters", CatalogLine<RoundRobin>{"round-robin", "on the nodes in turn"},
    CatalogLine<Local>{"local", "where the layer runs"}};

/// A policy of a list, chosen at run time.
template <auto const& lines> class Named {
 public:
  /// All names, in the order of the list.
  static constexpr auto names = lines.names();

  /// The first of the list.
  constexpr Named() noexcept : name_(names.front()) {}
  template <class P>
    requires requires { lines.template line<CatalogLine<P>>(); }
  constexpr Named(P const& /*policy*/) noexcept
      : name_(lines.template line<CatalogLine<P>>().name) {}
  /// @throws Error  bad_configuration for a name that is not in the list, naming the nearest
  explicit Named(std::string_view name) {
    lines.visit(name, [&](auto const& line) { name_ = line.name; });
  }

  /// The whole list, in its order.
  [[nodiscard]] static std::vector<Named> all() {
    std::vector<Named> all;
    lines.for_each([&](auto const& line) { all.emplace_back(line.policy); });
    return all;
  }

  [[nodiscard]] constexpr std::string_view name() const noexcept { return name_; }

  /// Calls `with(policy)` with the policy, a value of its own type.
  template <class With> constexpr void visit(With&& with) const {
    lines.visit(name_, [&](auto const& line) { with(line.policy); });
  }

  friend constexpr bool operator==(Named const&, Named const&) = default;

 private:
  std::string_view name_;  // in the list
};

using Allocation = Named<allocation_lines>;
using ParameterPlacement = Named<parameter_placement_lines>;

}  // namespace stagger::placement
