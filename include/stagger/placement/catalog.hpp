// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The lists of all allocations and all placements of parameters, and the choice of one by
///         its name.

#include <array>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include <stagger/core/error.hpp>
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
inline constexpr std::tuple allocation_lines{
    CatalogLine<NodePartition>{"np", "those of one node"},
    CatalogLine<EqualDistribution>{"ed", "one of each node"},
    CatalogLine<HybridDistribution>{"hd", "two of two nodes"}};

/// Where a layer's parameters lie.
inline constexpr std::tuple parameter_placement_lines{
    CatalogLine<RoundRobin>{"round-robin", "on the nodes in turn"},
    CatalogLine<Local>{"local", "where the layer runs"}};

/// A policy of a list, chosen at run time.
template <auto const& lines> class Named {
 public:
  /// All names, in the order of the list.
  static constexpr std::array names =
      std::apply([](auto const&... line) { return std::array{line.name...}; }, lines);

  /// The first of the list.
  constexpr Named() noexcept : name_(names.front()) {}
  template <class P>
    requires(std::apply(
        [](auto const&... line) { return (std::is_same_v<decltype(line.policy), P> || ...); },
        lines))
  constexpr Named(P const& /*policy*/) noexcept : name_(std::get<CatalogLine<P>>(lines).name) {}
  /// @throws Error  bad_configuration for a name that is not in the list
  explicit Named(std::string_view name) {
    std::string known;
    for (std::string_view const each : names) {
      if (each == name) name_ = each;
      known += text(known.empty() ? "" : ", ", each);
    }
    if (name_.empty())
      raise(Errc::bad_configuration, "'", name, "' is no such policy; there are: ", known);
  }

  /// The whole list, in its order.
  [[nodiscard]] static std::vector<Named> all() {
    return std::apply([](auto const&... line) { return std::vector<Named>{line.policy...}; },
                      lines);
  }

  [[nodiscard]] constexpr std::string_view name() const noexcept { return name_; }

  /// Calls `with(policy)` with the policy, a value of its own type.
  template <class With> constexpr void visit(With&& with) const {
    auto const call = [&](auto const& line) {
      if (line.name == name_) with(line.policy);
    };
    std::apply([&](auto const&... line) { (call(line), ...); }, lines);
  }

  friend constexpr bool operator==(Named const&, Named const&) = default;

 private:
  std::string_view name_;  // in the list
};

using Allocation = Named<allocation_lines>;
using ParameterPlacement = Named<parameter_placement_lines>;

}  // namespace stagger::placement
