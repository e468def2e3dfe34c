// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The characters of text that may not be UTF-8 throughout, and their escaping for JSON
///         strings and XML.

#include <stagger/core/requirements.hpp>

#include <cstddef>
#include <string>
#include <string_view>

namespace stagger::report {

/// Length of the well-formed UTF-8 sequence at the front of `text`, 0 if there is none.
[[nodiscard]] inline std::size_t utf8_length(std::string_view text) noexcept {
  auto const byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  auto const follows = [&](std::size_t i, unsigned low, unsigned high) {
    return i < text.size() && byte(i) >= low && byte(i) <= high;
  };
  if (text.empty()) return 0;
  unsigned const b = byte(0);
  if (b < 0x80) return 1;
  if (b >= 0xC2 && b <= 0xDF) return follows(1, 0x80, 0xBF) ? 2 : 0;
  if (b >= 0xE0 && b <= 0xEF) {  // no overlong forms, no surrogates
    bool const second = follows(1, b == 0xE0 ? 0xA0 : 0x80, b == 0xED ? 0x9F : 0xBF);
    return second && follows(2, 0x80, 0xBF) ? 3 : 0;
  }
  if (b >= 0xF0 && b <= 0xF4) {
    bool const second = follows(1, b == 0xF0 ? 0x90 : 0x80, b == 0xF4 ? 0x8F : 0xBF);
    return second && follows(2, 0x80, 0xBF) && follows(3, 0x80, 0xBF) ? 4 : 0;
  }
  return 0;
}

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
