// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The mark that some editors write at the front of a text file.

#include <stagger/core/requirements.hpp>

#include <string_view>

namespace stagger::detail {

/// The text of a file without the byte order mark of UTF-8 at its front.
[[nodiscard]] constexpr std::string_view without_byte_order_mark(std::string_view text) noexcept {
  constexpr std::string_view mark = "\xEF\xBB\xBF";
  return text.substr(text.starts_with(mark) ? mark.size() : 0);
}

}  // namespace stagger::detail
