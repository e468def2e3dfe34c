// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   std::from_chars of a double, for standard libraries that lack it.

#include <stagger/core/requirements.hpp>

#include <cerrno>
#include <charconv>
#include <clocale>
#include <cmath>
#include <cstdlib>
#include <string>
#include <string_view>
#include <system_error>

namespace stagger::detail {

/// The length of the number at the beginning of `text`, in the format of from_chars; 0: there is
/// none. Unlike with strtod, there are no blanks or plus before it and no hexadecimal digits, and
/// the decimal separator is a point in every locale.
[[nodiscard]] inline std::size_t number_length(std::string_view text) noexcept {
  auto const digit = [&](std::size_t i) {
    return i < text.size() && text[i] >= '0' && text[i] <= '9';
  };
  auto const letter = [&](std::size_t i, char wanted) {
    return i < text.size() && (text[i] | 0x20) == wanted;
  };
  auto const word = [&](std::size_t i, std::string_view wanted) {
    for (std::size_t k = 0; k < wanted.size(); ++k)
      if (!letter(i + k, wanted[k])) return false;
    return true;
  };
  std::size_t i = text.starts_with('-') ? 1 : 0;
  if (word(i, "infinity")) return i + 8;
  if (word(i, "inf") || word(i, "nan")) return i + 3;
  std::size_t digits = 0;
  for (; digit(i); ++i) ++digits;
  if (i < text.size() && text[i] == '.' && (digits != 0 || digit(i + 1))) {
    ++i;
    for (; digit(i); ++i) ++digits;
  }
  if (digits == 0) return 0;
  if (letter(i, 'e')) {
    std::size_t const sign =
        i + 1 < text.size() && (text[i + 1] == '-' || text[i + 1] == '+') ? 1 : 0;
    std::size_t end = i + 1 + sign;
    if (digit(end)) {
      while (digit(end)) ++end;
      i = end;
    }
  }
  return i;
}

/// As std::from_chars with std::chars_format::general; the parentheses that may follow a NaN are
/// not read.
[[nodiscard]] inline std::from_chars_result read_double(char const* first, char const* last,
                                                        double& value) {
  static ::locale_t const plain = ::newlocale(LC_ALL_MASK, "C", nullptr);
  std::size_t const length = number_length({first, static_cast<std::size_t>(last - first)});
  if (length == 0) return {first, std::errc::invalid_argument};
  std::string const number(first, length);
  int const before = errno;
  errno = 0;
  double const read = ::strtod_l(number.c_str(), nullptr, plain);
  bool const ranges = errno == ERANGE && (read == 0 || std::isinf(read));
  errno = before;
  if (ranges) return {first + length, std::errc::result_out_of_range};
  value = read;
  return {first + length, std::errc{}};
}

}  // namespace stagger::detail
