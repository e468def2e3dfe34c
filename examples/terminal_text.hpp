// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Escaping of untrusted text for the terminal.

#include <string>
#include <string_view>

#include <stagger/core/error.hpp>

namespace cli {

/// Text that is safe to print on one line of a terminal: bytes that are not printable, such as
/// those of a binary file, are escaped as \x1b and the like.
[[nodiscard]] inline std::string escaped(std::string_view message) {
  constexpr char const* hex = "0123456789abcdef";
  std::string out;
  while (!message.empty()) {
    auto const first = static_cast<unsigned char>(message.front());
    std::size_t const length = stagger::utf8_length(message);
    // 0xc2 0x80 to 0xc2 0x9f are well-formed UTF-8, but control characters.
    bool const controls = first < 0x20 || first == 0x7f ||
                          (first == 0xc2 && static_cast<unsigned char>(message[1]) < 0xa0);
    if (first == '\n') {
      out += ' ';
    } else if (length > 0 && !controls) {
      out += message.substr(0, length);
      message.remove_prefix(length);
      continue;
    } else {
      ((out += "\\x") += hex[first >> 4U]) += hex[first & 15U];
    }
    message.remove_prefix(1);
  }
  return out;
}

}  // namespace cli
