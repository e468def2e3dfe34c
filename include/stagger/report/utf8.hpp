// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The escaping of text that may not be UTF-8 throughout for JSON strings and XML.

#include <cstddef>
#include <string>
#include <string_view>

#include <stagger/core/error.hpp>

namespace stagger::report {

/// Calls `f` with each well-formed character; bytes that are not UTF-8 come as U+FFFD.
template <class F> void for_each_character(std::string_view text, F&& f) {
  while (!text.empty()) {
    std::size_t const n = utf8_length(text);
    f(n == 0 ? std::string_view{"\xEF\xBF\xBD"} : text.substr(0, n));
    text.remove_prefix(n == 0 ? 1 : n);
  }
}

/// Number of characters, which is the number of columns for the scripts that tables are written in.
[[nodiscard]] inline std::size_t characters(std::string_view text) {
  std::size_t count = 0;
  for_each_character(text, [&](std::string_view) { ++count; });
  return count;
}

namespace detail {

/// Appends the inside of a JSON string.
inline void append_json(std::string& out, std::string_view text) {
  constexpr char const* hex = "0123456789abcdef";
  for_each_character(text, [&](std::string_view c) {
    auto const code = static_cast<unsigned char>(c.front());
    if (c == "\"" || c == "\\") {
      (out += '\\') += c;
    } else if (code < 0x20 || code == 0x7F) {
      ((out += "\\u00") += hex[code >> 4U]) += hex[code & 15U];
    } else {
      out += c;
    }
  });
}

/// Text for XML content or a quoted attribute; characters that XML 1.0 has no name for become
/// U+FFFD.
[[nodiscard]] inline std::string xml(std::string_view text) {
  std::string out;
  for_each_character(text, [&](std::string_view c) {
    auto const code = static_cast<unsigned char>(c.front());
    if (c == "&") {
      out += "&amp;";
    } else if (c == "<") {
      out += "&lt;";
    } else if (c == ">") {
      out += "&gt;";
    } else if (c == "\"") {
      out += "&quot;";
    } else if (code == '\t' || code == '\n' || code == '\r') {
      out += ' ';
    } else if (code < 0x20 || c == "\xEF\xBF\xBE" || c == "\xEF\xBF\xBF") {
      out += "\xEF\xBF\xBD";
    } else {
      out += c;
    }
  });
  return out;
}

}  // namespace detail

}  // namespace stagger::report
