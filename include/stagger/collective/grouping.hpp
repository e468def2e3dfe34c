// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   All grouping policies, and one of them picked by name.

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <stagger/collective/grouping/bucket.hpp>
#include <stagger/collective/grouping/greedy.hpp>
#include <stagger/collective/grouping/layerwise.hpp>
#include <stagger/collective/grouping/optimal.hpp>
#include <stagger/collective/grouping/policy.hpp>
#include <stagger/collective/grouping/single.hpp>
#include <stagger/core/error.hpp>

namespace stagger::collective::grouping {

/// A grouping chosen at run time; itself a grouping policy.
struct Named {
  using policy_tag = GroupingTag;

  std::variant<Optimal, Greedy, Layerwise, Single, Bucket> chosen{};

  [[nodiscard]] std::vector<LayerGroup> groups(Backward const& backward, CostLine cost) const {
    return std::visit([&](auto const& policy) { return policy.groups(backward, cost); }, chosen);
  }
};

/// `optimal`, `greedy`, `layerwise`, `single`, or `bucket:BYTES`.
/// @throws Error  Errc::bad_configuration for any other text
[[nodiscard]] inline Named named(std::string_view text) {
  if (text == "optimal") return {Optimal{}};
  if (text == "greedy") return {Greedy{}};
  if (text == "layerwise") return {Layerwise{}};
  if (text == "single") return {Single{}};
  if (text.substr(0, 7) == "bucket:") {
    Bucket bucket;
    char const* const end = text.data() + text.size();
    auto const [stop, error] = std::from_chars(text.data() + 7, end, bucket.bytes);
    if (error == std::errc{} && stop == end && bucket.bytes > 0) return {bucket};
  }
  raise(Errc::bad_configuration, "there is no grouping '", text,
        "'; use optimal, greedy, layerwise, single or bucket:BYTES with BYTES above 0");
}

}  // namespace stagger::collective::grouping
