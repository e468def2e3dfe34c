// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Lines and fields of CSV, as views into the text.

#include <cstddef>
#include <string_view>

#include <stagger/core/requirements.hpp>

namespace stagger::schedule::detail {

/// Removes the text before the first separator, and the separator, from `rest`, and returns that
/// text.
inline std::string_view take_until(std::string_view& rest, char separator) noexcept {
  std::size_t const end = rest.find(separator);
  std::string_view const field = rest.substr(0, end);
  rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  return field;
}

/// The next line, without LF or CRLF.
inline std::string_view take_line(std::string_view& rest) noexcept {
  std::string_view line = take_until(rest, '\n');
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

/// The text without blanks at both ends; of blanks alone, an empty view at their end.
inline std::string_view trimmed(std::string_view field) noexcept {
  auto const blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!field.empty() && blank(field.front())) field.remove_prefix(1);
  while (!field.empty() && blank(field.back())) field.remove_suffix(1);
  return field;
}

}  // namespace stagger::schedule::detail
