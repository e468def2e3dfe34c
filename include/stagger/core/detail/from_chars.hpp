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

/// As std::from_chars with std::chars_format::general; the parentheses that may follow a NaN are
/// not read.
[[nodiscard]] inline std::from_chars_result read_double(char const* first, char const* last,
                                                        double& value) {
  // strtod would also read blanks and a plus before the number, and hexadecimal digits.
  static ::locale_t const plain = ::newlocale(LC_ALL_MASK, "C", nullptr);
  std::string_view const text(first, static_cast<std::size_t>(last - first));
  std::string const number(text.substr(0, text.find_first_not_of("+-.0123456789aefintyAEFINTY")));
  if (number.starts_with('+')) return {first, std::errc::invalid_argument};
  int const before = errno;
  errno = 0;
  char* end = nullptr;
  double const read = ::strtod_l(number.c_str(), &end, plain);
  bool const ranges = errno == ERANGE && (read == 0 || std::isinf(read));
  errno = before;
  if (end == number.c_str()) return {first, std::errc::invalid_argument};
  char const* const stop = first + (end - number.c_str());
  if (ranges) return {stop, std::errc::result_out_of_range};
  value = read;
  return {stop, std::errc{}};
}

}  // namespace stagger::detail
