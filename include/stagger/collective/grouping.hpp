// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The list of all grouping policies, and the choice of one by its name.

#include <charconv>
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
#include <stagger/core/catalog.hpp>
#include <stagger/core/error.hpp>

namespace stagger::collective::grouping {

/// A grouping policy and its name. If it has a size in bytes, the size follows the name:
/// "bucket:BYTES".
template <class P> struct CatalogLine {
  std::string_view name;
  P policy{};
};

inline constexpr Catalog catalog_lines{"grouping",
                                       CatalogLine<Optimal>{"optimal"},
                                       CatalogLine<Greedy>{"greedy"},
                                       CatalogLine<Layerwise>{"layerwise"},
                                       CatalogLine<Single>{"single"},
                                       CatalogLine<Bucket>{"bucket"}};

/// All names; a size in bytes is written as `bytes`, or is the policy's own where that is empty.
[[nodiscard]] inline std::vector<std::string> names(std::string const& bytes = "BYTES") {
  std::vector<std::string> all;
  catalog_lines.for_each([&](auto const& line) {
    all.emplace_back(line.name);
    if constexpr (requires { line.policy.bytes; })
      all.back() += ":" + (bytes.empty() ? std::to_string(line.policy.bytes) : bytes);
  });
  return all;
}

namespace detail {

template <class... P> std::variant<P...> any_of(Catalog<CatalogLine<P>...> const& catalog);

}  // namespace detail

/// A grouping chosen at run time; itself a grouping policy.
struct Named {
  using policy_tag = GroupingTag;

  decltype(detail::any_of(catalog_lines)) chosen{};  ///< any policy of the catalog

  [[nodiscard]] std::vector<LayerGroup> groups(Backward const& backward, CostLine cost) const {
    return std::visit([&](auto const& policy) { return policy.groups(backward, cost); }, chosen);
  }
};

/// The grouping of a name in the catalog.
/// @throws Error  Errc::bad_configuration for any other text, or a size that is not above 0
[[nodiscard]] inline Named named(std::string_view text) {
  std::string_view const name = text.substr(0, text.find(':'));
  Named result;
  catalog_lines.visit(name, [&](auto const& line) {
    auto policy = line.policy;
    if constexpr (requires { policy.bytes; }) {
      char const* const end = text.data() + text.size();
      char const* const size = name == text ? end : text.data() + name.size() + 1;
      auto const [stop, error] = std::from_chars(size, end, policy.bytes);
      if (error != std::errc{} || stop != end || policy.bytes == 0)
        raise(Errc::bad_configuration, "the grouping '", text, "' has no size above 0; write ",
              name, ":BYTES");
    } else if (name != text) {
      raise(Errc::bad_configuration, "the grouping '", text, "' takes no size; write ", name);
    }
    result.chosen = policy;
  });
  return result;
}

}  // namespace stagger::collective::grouping
