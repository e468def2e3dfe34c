// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Numbers as readable text: "12.3 ms", "1.50 MiB", "17.4 %", the same in every locale.

#include <stagger/core/requirements.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>

namespace stagger::report {

/// A number with `decimals` digits after a point: `format_fixed(12.5, 2)` is "12.50". NaN and
/// infinities are "nan", "inf", "-inf".
[[nodiscard]] inline std::string format_fixed(double value, int decimals) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::array<char, 512> text{};  // the largest double has 309 digits before the point
  int const places = decimals < 0 ? 0 : (decimals > 100 ? 100 : decimals);
  auto const end =
      std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed, places)
          .ptr;
  std::string const result(text.data(), end);
  bool const zero = result.find_first_not_of("-0.") == std::string::npos;
  return zero && result.front() == '-' ? result.substr(1) : result;  // no "-0.00"
}

/// The shortest text that reads back as the same number.
[[nodiscard]] inline std::string format_shortest(double value) {
  if (!std::isfinite(value)) return format_fixed(value, 0);
  std::array<char, 64> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

/// A share as a percentage: `format_percent(0.1742)` is "17.4 %".
[[nodiscard]] inline std::string format_percent(double share, int decimals = 1) {
  return format_fixed(share * 100, decimals) + " %";
}

namespace detail {

/// `value` in steps of a thousand: prefixes[i] stands for 10^(lowest + 3 i). Never rounds to "1000
/// ms".
[[nodiscard]] inline std::string with_prefix(double value, int digits, int lowest,
                                             std::initializer_list<char const*> prefixes,
                                             char const* zero) {
  if (!std::isfinite(value)) return format_fixed(value, 0);
  if (value == 0) return zero;
  int const significant = digits < 1 ? 1 : (digits > 17 ? 17 : digits);
  std::string const sign = value < 0 ? "-" : "";
  std::array<char, 64> text{};  // "1.23e-04": rounded once
  auto const end = std::to_chars(text.data(), text.data() + text.size(), std::fabs(value),
                                 std::chars_format::scientific, significant - 1)
                       .ptr;
  std::string_view const all(text.data(), end);
  std::size_t const e = all.find('e');
  std::string number(all.substr(0, e));
  if (significant > 1) number.erase(1, 1);  // the point
  int exponent = 0;
  std::from_chars(all.data() + e + (all[e + 1] == '+' ? 2 : 1), end, exponent);
  int const above = exponent - lowest;
  int const last = static_cast<int>(prefixes.size()) - 1;
  int const i = above < 0 ? 0 : std::min(above / 3, last);
  char const* const prefix = prefixes.begin()[i];
  int const point = above - 3 * i + 1;  // digits before the point
  if (point > 3 || point < 1) {  // beyond the prefixes: plain fixed notation in the outermost one
    double const unit = std::pow(10.0, lowest + 3 * i);
    return sign + format_fixed(std::fabs(value) / unit, point < 1 ? significant : 0) + " " + prefix;
  }
  auto const places = static_cast<std::size_t>(point);
  while (number.size() < places) number += '0';
  if (number.size() > places) number.insert(places, 1, '.');
  return sign + number + " " + prefix;
}

}  // namespace detail

/// Seconds with the unit that suits them, ns, us, ms or s: `format_seconds(0.01234)` is "12.3 ms".
[[nodiscard]] inline std::string format_seconds(double seconds, int digits = 3) {
  return detail::with_prefix(seconds, digits, -9, {"ns", "us", "ms", "s"}, "0 s");
}

/// A count with a decimal prefix and room for a unit after it: `format_count(51234)` is "51.2 k",
/// `format_count(7)` is "7".
[[nodiscard]] inline std::string format_count(double count) {
  if (std::fabs(count) < 1000 && std::floor(count) == count) return format_fixed(count, 0);
  std::string text = detail::with_prefix(count, 3, 0, {"", "k", "M", "G", "T"}, "0");
  if (text.back() == ' ') text.pop_back();
  return text;
}

/// Bytes in steps of 1024: `format_bytes(1572864)` is "1.50 MiB", `format_bytes(512)` is "512 B".
[[nodiscard]] inline std::string format_bytes(double bytes) {
  constexpr std::array<char const*, 7> units{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (!std::isfinite(bytes)) return format_fixed(bytes, 0);
  double scaled = bytes;
  std::size_t i = 0;
  while (i + 1 < units.size() && std::fabs(scaled) >= 1023.5) scaled /= 1024, ++i;
  double const size = std::fabs(scaled);
  bool const whole = size >= 99.95 || (i == 0 && std::floor(bytes) == bytes);
  return format_fixed(scaled, whole ? 0 : size >= 9.995 ? 1 : 2) + " " + units[i];
}

/// A span of time as a clock shows it, for "time left": "0:42", "12:05", "3:07:00". Unknown
/// (negative, NaN) is "-:--".
[[nodiscard]] inline std::string format_clock(double seconds) {
  if (!(seconds >= 0) || seconds > 1e9) return "-:--";
  auto const total = static_cast<long long>(seconds + 0.5);
  auto const two = [](long long n) {
    return std::string(n < 10 ? 1 : 0, '0').append(std::to_string(n));
  };
  long long const hours = total / 3600;
  long long const minutes = total / 60 % 60;
  return (hours > 0 ? std::to_string(hours) + ":" + two(minutes) : std::to_string(minutes)) + ":" +
         two(total % 60);
}

}  // namespace stagger::report
