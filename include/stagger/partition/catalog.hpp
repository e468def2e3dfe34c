// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The list of all partitioners that programs choose by name.

#include <string>
#include <string_view>

#include <stagger/core/catalog.hpp>
#include <stagger/core/error.hpp>
#include <stagger/partition/block.hpp>
#include <stagger/partition/costs.hpp>
#include <stagger/partition/even.hpp>
#include <stagger/partition/min_max.hpp>
#include <stagger/partition/pipe_dream.hpp>

namespace stagger::partition {

/// A partitioner's name, and the function that runs it.
template <class P> struct CatalogLine {
  std::string_view name;
  std::string_view what;
};

inline constexpr Catalog catalog_lines{
    "partitioner",
    CatalogLine<MinMax>{"min-max", "the slowest stage as fast as it can be, within memory"},
    CatalogLine<PipeDream>{"pipedream", "stages of several replicas, for equal devices"},
    CatalogLine<Block>{"block", "sums of layer times as even as possible"},
    CatalogLine<Even>{"even", "as many layers on each stage as on any other"}};

/// Names of all partitioners, in the order of the catalog.
inline constexpr auto names = catalog_lines.names();

/// The name of a partitioner in the catalog.
template <class P>
inline constexpr std::string_view name_of = catalog_lines.line<CatalogLine<P>>().name;

/// A partitioner by cost, chosen by its name, with its options.
struct Named {
  std::string name;        ///< in the catalog
  bool any_order = false;  ///< min-max: devices in any order instead of the given one
  int in_flight = 1;       ///< minibatches in flight, >= 1, for the memory

  /// The partitioner's result. If it has no lower bound of its own, that of the given order without
  /// memory limits is filled in.
  /// @throws Error  bad_configuration for a name that is not in the catalog (the text suggests the
  ///                nearest), or for `any_order` with a partitioner that keeps the order; what the
  ///                partitioner throws
  [[nodiscard]] Partition partition(Costs const& costs) const {
    Partition found;
    catalog_lines.visit(name, [&]<class P>(CatalogLine<P> const&) { found = apply<P>(costs); });
    if (found.lower_bound_s == 0) {
      Costs roomy = costs;
      for (Place& place : roomy.places) place.memory_bytes = 1e300;
      found.lower_bound_s = MinMax{}.partition(roomy).bottleneck_s;
    }
    return found;
  }

 private:
  template <class P> [[nodiscard]] Partition apply(Costs const& costs) const {
    if constexpr (!requires(P policy) { policy.any_order; })
      if (any_order)
        raise(Errc::bad_configuration, "partitioner ", name,
              " takes devices in the given order; leave any_order out, or choose min-max");
    if constexpr (CostPolicy<P>) {
      P policy;
      policy.in_flight = in_flight;
      if constexpr (requires { policy.any_order; }) policy.any_order = any_order;
      return policy.partition(costs);
    } else {
      detail::require_in_flight(in_flight);
      return judge(costs, P{costs.devices()}.cuts(costs.layers()), detail::given_order(costs),
                   in_flight);
    }
  }
};

static_assert(CostPolicy<Named>);

}  // namespace stagger::partition
