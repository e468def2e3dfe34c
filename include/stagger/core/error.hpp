// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The base of all errors of the library, its codes, and messages with numbers and with text
///         from outside.

#include <stagger/core/requirements.hpp>

#include <concepts>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace stagger {

namespace detail {

// `raise` and `text` pass each word or number of a sentence as one variable argument, and all their
// kinds as one number, which takes their caller little code.
[[nodiscard]] constexpr char const* passed(char const* words) noexcept { return words; }
[[nodiscard]] inline std::string const* passed(std::string const& words) noexcept { return &words; }
[[nodiscard]] constexpr std::string_view const* passed(std::string_view const& words) noexcept {
  return &words;
}
[[nodiscard]] constexpr std::int64_t passed(std::integral auto number) noexcept {
  return static_cast<std::int64_t>(number);
}
[[nodiscard]] constexpr double passed(double number) noexcept { return number; }

/// The kinds of passed pieces, 3 bits for each, the first lowest.
/// @tparam P  their types
template <class... P> [[nodiscard]] consteval std::uint64_t kinds_of() {
  static_assert(sizeof...(P) <= 21, "stagger: a message has more pieces than fit into its kinds");
  std::uint64_t kinds = 0;
  unsigned at = 0;
  ((kinds |= std::uint64_t{std::is_same_v<P, char const*>          ? 1U
                           : std::is_same_v<P, std::int64_t>       ? 2U
                           : std::is_same_v<P, double>             ? 3U
                           : std::is_same_v<P, std::string const*> ? 4U
                                                                   : 5U}
             << at,
    at += 3),
   ...);
  return kinds;
}

[[gnu::cold]] inline std::string join_passed(std::uint64_t kinds, std::va_list pieces) {
  std::string sentence;
  char digits[32];
  for (; kinds != 0; kinds >>= 3) {
    switch (kinds & 7) {
      case 1:
        sentence += va_arg(pieces, char const*);
        break;
      case 2:
        __builtin_snprintf(digits, sizeof digits, "%lld",
                           static_cast<long long>(va_arg(pieces, std::int64_t)));
        sentence += digits;
        break;
      case 3:
        __builtin_snprintf(digits, sizeof digits, "%.9g", va_arg(pieces, double));
        sentence += digits;
        break;
      case 4:
        sentence += *va_arg(pieces, std::string const*);
        break;
      default:
        sentence += *va_arg(pieces, std::string_view const*);
    }
  }
  return sentence;
}
[[gnu::cold]] [[gnu::noinline]] inline std::string join(std::uint64_t kinds, ...) {
  std::va_list pieces;
  va_start(pieces, kinds);
  std::string sentence = join_passed(kinds, pieces);
  va_end(pieces);
  return sentence;
}

}  // namespace detail

/// A text of words and numbers: text("rank ", 3, " of ", 8).
template <class... T> [[nodiscard]] std::string text(T const&... pieces) {
  return detail::join(detail::kinds_of<decltype(detail::passed(pieces))...>(),
                      detail::passed(pieces)...);
}

namespace detail {
[[gnu::cold]] [[gnu::noinline]] inline std::string join_counted(std::int64_t count,
                                                                std::string_view singular) {
  std::size_t const last = singular.size() - 1;
  bool const hisses = singular[last] == 's' || singular.ends_with("ch") || singular.ends_with("sh");
  return text(count, " ", singular, count == 1 ? "" : hisses ? "es" : "s");
}
}  // namespace detail

/// A count with its noun, in singular or plural: "1 stage", "2 stages", "1 microbatch".
[[nodiscard]] std::string counted(std::integral auto count, std::string_view singular) {
  return detail::join_counted(static_cast<std::int64_t>(count), singular);
}

/// Bytes as a sentence has them: "68 bytes", from 1 MiB on "358.6 MiB".
/// @param up  rounds up, not to the nearest number that can be written
[[nodiscard]] [[gnu::cold]] inline std::string sized(double bytes, bool up = false) {
  constexpr double mebibyte = 1048576;
  auto const rounded = [&](double number) {
    auto const whole = static_cast<std::int64_t>(number + (up ? 0 : 0.5));
    return whole + (up && static_cast<double>(whole) < number ? 1 : 0);
  };
  if (!(bytes >= mebibyte)) return counted(rounded(bytes), "byte");
  if (bytes >= mebibyte * 1e14) return text(bytes / mebibyte, " MiB");
  std::int64_t const tenths = rounded(bytes * 10 / mebibyte);
  return text(tenths / 10, ".", tenths % 10, " MiB");
}

[[nodiscard]] std::string sized(std::integral auto bytes) {
  return sized(static_cast<double>(bytes));
}

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

/// Text that is safe to print on one line of a terminal, and is UTF-8: control characters and bytes
/// that are not UTF-8 are escaped as \x1b and the like, ends of lines become blanks.
[[nodiscard]] [[gnu::cold]] inline std::string printable(std::string_view text) {
  constexpr char const* hex = "0123456789abcdef";
  std::string out;
  while (!text.empty()) {
    auto const first = static_cast<unsigned char>(text.front());
    std::size_t const length = utf8_length(text);
    // 0xC2 0x80 to 0xC2 0x9F are well-formed UTF-8, but control characters.
    bool const in_c1 = length == 2 && first == 0xC2 && static_cast<unsigned char>(text[1]) < 0xA0;
    bool const controls = first < 0x20 || first == 0x7F || in_c1;
    if (first == '\n')
      out += ' ';
    else if (length > 0 && !controls)
      out += text.substr(0, length);
    else
      ((out += "\\x") += hex[first >> 4U]) += hex[first & 15U];
    text.remove_prefix(length > 0 && !controls ? length : 1);
  }
  return out;
}

/// The kinds of errors.
enum class Errc : std::uint8_t {
  bad_configuration,  ///< a policy, a count or a combination that cannot work
  bad_data,      ///< a file or a message that does not parse; the text names file, line and field
  bad_schedule,  ///< a table or a program that was refuted; the text names rank, index, action
  deadline,      ///< nothing moved for as long as a wait may last
  cancelled,     ///< the caller asked the step to stop
  peer_failed,   ///< another rank of the same run ended with an error
  io,            ///< the operating system refused a file or a socket
  device,        ///< a device, its driver or its libraries reported an error
  mismatch,      ///< two things that must agree do not: shapes, a checkpoint of another model
  not_finite,    ///< a gradient is NaN or infinite; the text names the layer
};

/// Thrown by everything in stagger. `what()` is one sentence that names the value and the remedy;
/// what it quotes is made printable, whatever bytes a file or a command line had.
class Error : public std::runtime_error {
 public:
  Error(Errc code, std::string const& sentence)
      : std::runtime_error(printable(sentence)), code_(code) {}

  /// The kind of error.
  [[nodiscard]] Errc code() const noexcept { return code_; }

 private:
  Errc code_;
};

namespace detail {
[[noreturn]] [[gnu::cold]] [[gnu::noinline]] inline void raise(Errc code, std::uint64_t kinds,
                                                               ...) {
  std::va_list pieces;
  va_start(pieces, kinds);
  std::string const sentence = join_passed(kinds, pieces);
  va_end(pieces);
  throw Error(code, sentence);
}
}  // namespace detail

/// Throws an Error with a sentence made of words and numbers: raise(code, "rank ", 3, " of ", 8).
/// Always inline: g++ would compile a function for each combination of types.
template <class... T>
[[noreturn, gnu::always_inline]] inline void raise(Errc code, T const&... pieces) {
  detail::raise(code, detail::kinds_of<decltype(detail::passed(pieces))...>(),
                detail::passed(pieces)...);
}

/// The exception that raise(code, pieces...) would throw, to be handed on.
template <class... T>
[[nodiscard]] [[gnu::cold]] std::exception_ptr raised(Errc code, T const&... pieces) noexcept {
  try {
    raise(code, pieces...);
  } catch (...) {  // the Error; otherwise there was no memory for it
    return std::current_exception();
  }
}

namespace detail {
/// The time, if something can be waited for that long.
/// @param name  of the option that gives it
/// @param most  seconds; 0: any time, also infinity
/// @throws Error  bad_configuration for a time that is not above 0, or at least `most`
[[gnu::noinline]] inline double require_deadline(char const* name, double seconds,
                                                 double most = 0) {
  if (!(seconds > 0))  // or NaN
    raise(Errc::bad_configuration, name, " is ", seconds,
          " s, in which nothing can be waited for; use a positive time");
  if (most > 0 && !(seconds < most))
    raise(Errc::bad_configuration, name, " is ", seconds, " s; use less than ", most, " s");
  return seconds;
}
}  // namespace detail

}  // namespace stagger
