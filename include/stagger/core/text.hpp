// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Sentences with numbers in them, cheap to compile: what errors are written with.

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdio>
#include <initializer_list>
#include <string>

namespace stagger {

namespace detail {

/// A word or a number of a sentence. Trivially destructible, so that a sentence costs its caller
/// little code.
class Piece {
 public:
  Piece(char const* words) noexcept : words_(words) {}  // NOLINT(google-explicit-constructor)
  Piece(std::string const& words) noexcept
      : words_(words.c_str()) {}  // NOLINT(google-explicit-constructor)
  Piece(std::integral auto number) noexcept { print(static_cast<long long>(number)); }
  Piece(double number) noexcept { std::snprintf(digits_.data(), digits_.size(), "%.9g", number); }

  [[nodiscard]] char const* words() const noexcept {
    return words_ != nullptr ? words_ : digits_.data();
  }

 private:
  void print(long long number) noexcept {
    std::snprintf(digits_.data(), digits_.size(), "%lld", number);
  }

  char const* words_ = nullptr;
  std::array<char, 32> digits_{};
};

[[gnu::cold]] inline std::string join(std::initializer_list<Piece> pieces) {
  std::string sentence;
  for (Piece const& piece : pieces) sentence += piece.words();
  return sentence;
}

}  // namespace detail

/// Words and numbers, one after the other: text("rank ", 3, " of ", 8).
template <class... T> [[nodiscard]] std::string text(T const&... pieces) {
  return detail::join({detail::Piece(pieces)...});
}

}  // namespace stagger
