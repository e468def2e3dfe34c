// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Lists of policies that programs choose by name.

#include <array>
#include <concepts>
#include <cstddef>
#include <string_view>
#include <tuple>

#include <stagger/core/error.hpp>
#include <stagger/core/nearest.hpp>

namespace stagger {

/// The policies of one kind, in an order of their own. Each line has a type of its own, with a
/// member `name`.
template <class... Line> class Catalog {
 public:
  /// @param kind  of the policies, in error messages
  constexpr explicit Catalog(std::string_view kind, Line... line) : kind_(kind), lines_(line...) {}

  static constexpr std::size_t size = sizeof...(Line);

  [[nodiscard]] constexpr std::array<std::string_view, size> names() const {
    return std::apply([](auto const&... line) { return std::array{line.name...}; }, lines_);
  }
  /// Calls `visit(line)` for each line, in order.
  template <class Visit> constexpr void for_each(Visit&& visit) const {
    std::apply([&](auto const&... line) { (visit(line), ...); }, lines_);
  }
  /// Calls `visit(line)` for the line of this name.
  /// @throws Error  bad_configuration if there is none, naming the nearest
  template <class Visit> constexpr void visit(std::string_view name, Visit&& visit) const {
    bool const found = std::apply(
        [&](auto const&... line) {
          return ((line.name == name && (static_cast<void>(visit(line)), true)) || ...);
        },
        lines_);
    if (!found) refuse(name);
  }
  /// The line of a type.
  template <class L>
    requires(std::same_as<L, Line> || ...)
  [[nodiscard]] constexpr L const& line() const noexcept {
    return std::get<L>(lines_);
  }
  [[noreturn]] [[gnu::cold]] void refuse(std::string_view name) const {
    auto const known = names();
    raise(Errc::bad_configuration, "there is no ", kind_, " '", name, "'; the nearest is '",
          nearest(name, known), "'");
  }

 private:
  std::string_view kind_;
  std::tuple<Line...> lines_;
};

}  // namespace stagger
