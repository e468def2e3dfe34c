// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Escaping of untrusted text for the terminal.

#include <string>
#include <string_view>

#include <stagger/report/detail/escape.hpp>

namespace words {

/// Text that is safe to print on one line of a terminal: bytes that are not printable, such as
/// those of a binary file, are escaped as \x1b and the like.
[[nodiscard]] inline std::string shown(std::string_view sentence) {
  constexpr char const* hex = "0123456789abcdef";
  std::string out;
  while (!sentence.empty()) {
    auto const first = static_cast<unsigned char>(sentence.front());
    std::size_t const length = stagger::report::detail::utf8_length(sentence);
    // 0xc2 0x80 to 0xc2 0x9f are well-formed UTF-8, but control characters.
    bool const controls = first < 0x20 || first == 0x7f ||
                          (first == 0xc2 && static_cast<unsigned char>(sentence[1]) < 0xa0);
    if (first == '\n') {
      out += ' ';
    } else if (length > 0 && !controls) {
      out += sentence.substr(0, length);
      sentence.remove_prefix(length);
      continue;
    } else {
      ((out += "\\x") += hex[first >> 4U]) += hex[first & 15U];
    }
    sentence.remove_prefix(1);
  }
  return out;
}

}  // namespace words
