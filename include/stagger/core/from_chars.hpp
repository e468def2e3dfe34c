// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Conversion of text to numbers, strict and independent of the locale.

#include <stagger/core/requirements.hpp>

#include <charconv>
#include <version>

#ifndef __cpp_lib_to_chars
#include <stagger/core/detail/from_chars.hpp>
#endif

namespace stagger {

/// std::from_chars. libc++ 19 has none for floating point.
[[nodiscard]] inline std::from_chars_result from_chars(char const* first, char const* last,
                                                       double& value) {
#ifdef __cpp_lib_to_chars
  return std::from_chars(first, last, value);
#else
  return detail::read_double(first, last, value);
#endif
}

}  // namespace stagger
