// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Escaping of text of unknown origin, for JSON strings and XML.

#include <string>
#include <string_view>

#include <stagger/report/utf8.hpp>

namespace stagger::report::detail {

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

/// Appends text for XML content or a quoted attribute; characters that XML 1.0 has no name for
/// become U+FFFD.
inline void append_xml(std::string& out, std::string_view text) {
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
}

/// Text for XML content, as `append_xml` makes it.
[[nodiscard]] inline std::string xml(std::string_view words) {
  std::string out;
  append_xml(out, words);
  return out;
}

}  // namespace stagger::report::detail
