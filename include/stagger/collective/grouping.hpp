// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The list of all grouping policies, and the choice of one by its name.

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
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

/// A grouping policy and its name. If it has a size in bytes, the size follows the name:
/// "bucket:BYTES".
template <class P> struct CatalogLine {
  std::string_view name;
  P policy{};
};

inline constexpr std::tuple catalog_lines{
    CatalogLine<Optimal>{"optimal"}, CatalogLine<Greedy>{"greedy"},
    CatalogLine<Layerwise>{"layerwise"}, CatalogLine<Single>{"single"},
    CatalogLine<Bucket>{"bucket"}};

/// Calls `visit(line)` for each line, in order.
template <class Visit> constexpr void for_each_line(Visit&& visit) {
  std::apply([&](auto const&... line) { (visit(line), ...); }, catalog_lines);
}

/// All names; a size in bytes is written as `bytes`, or is the policy's own where that is empty.
[[nodiscard]] inline std::vector<std::string> names(std::string const& bytes = "BYTES") {
  std::vector<std::string> all;
  for_each_line([&](auto const& line) {
    all.emplace_back(line.name);
    if constexpr (requires { line.policy.bytes; })
      all.back() += ":" + (bytes.empty() ? std::to_string(line.policy.bytes) : bytes);
  });
  return all;
}

/// A grouping chosen at run time; itself a grouping policy.
struct Named {
  using policy_tag = GroupingTag;

  /// Any policy of the catalog.
  decltype(std::apply([](auto const&... line) { return std::variant<decltype(line.policy)...>(); },
                      catalog_lines)) chosen{};

  [[nodiscard]] std::vector<LayerGroup> groups(Backward const& backward, CostLine cost) const {
    return std::visit([&](auto const& policy) { return policy.groups(backward, cost); }, chosen);
  }
};

/// The grouping of a name in the catalog.
/// @throws Error  Errc::bad_configuration for any other text, or a size that is not above 0
[[nodiscard]] inline Named named(std::string_view text) {
  Named result;
  bool found = false;
  for_each_line([&](auto const& line) {
    auto policy = line.policy;
    if constexpr (requires { policy.bytes; }) {
      if (!text.starts_with(line.name) || text.substr(line.name.size(), 1) != ":") return;
      char const* const end = text.data() + text.size();
      auto const [stop, error] =
          std::from_chars(text.data() + line.name.size() + 1, end, policy.bytes);
      if (error != std::errc{} || stop != end || policy.bytes == 0) return;
    } else if (text != line.name) {
      return;
    }
    result.chosen = policy;
    found = true;
  });
  if (found) return result;
  std::string known;
  auto const all = names();
  for (auto const& name : all)
    known += (known.empty() ? "" : name == all.back() ? " or " : ", ") + name;
  raise(Errc::bad_configuration, "there is no grouping '", text, "'; use ", known,
        " with BYTES above 0");
}

}  // namespace stagger::collective::grouping
