// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The numbers of a policy as a digest and as text, by which processes compare them.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include <stagger/core/digest.hpp>

namespace stagger::detail {

/// Initialises a T and nothing else.
template <class T> struct Only {
  template <std::same_as<T> U> operator U() const noexcept;
};
template <class P, class T, std::size_t... i>
consteval bool consists_of(std::index_sequence<i...>) {
  return sizeof...(i) * sizeof(T) == sizeof(P) &&
         requires { P{(static_cast<void>(i), Only<T>{})...}; };
}
/// Aggregates of numbers of one type alone, in which no byte is unused.
template <class P, class T>
concept AggregateOf =
    std::is_aggregate_v<P> && consists_of<P, T>(std::make_index_sequence<sizeof(P) / sizeof(T)>{});

/// Visits the members that `fields()` names; else all members, if they are nothing but double or
/// nothing but float: visit(T const* numbers, std::size_t count).
/// @return whether they are known
template <class P, class Visit> bool each_number(P const& policy, Visit visit) {
  if constexpr (requires { policy.fields(); })
    std::apply(
        [&]<class... F>(F const&... field) {
          static_assert(((std::is_arithmetic_v<F> || std::is_enum_v<F>) && ...),
                        "stagger: fields() of a policy is a std::tie of numbers");
          (visit(&field, 1), ...);
        },
        policy.fields());
  else if constexpr (AggregateOf<P, double> && !std::is_empty_v<P>)
    visit(reinterpret_cast<double const*>(&policy), sizeof(P) / sizeof(double));
  else if constexpr (AggregateOf<P, float> && !std::is_empty_v<P>)
    visit(reinterpret_cast<float const*>(&policy), sizeof(P) / sizeof(float));
  else
    return std::is_empty_v<P>;
  return true;
}

/// @return 0 where the numbers are not known
template <class P> [[nodiscard]] std::uint64_t policy_digest(P const& policy) noexcept {
  std::uint64_t all = empty_digest;
  bool const known = each_number(policy, [&]<class T>(T const* numbers, std::size_t count) {
    all = digest(reinterpret_cast<char const*>(numbers), count * sizeof(T), all);
  });
  return known ? all : 0;
}

/// Appends a number with enough digits that different numbers give different texts.
[[gnu::cold]] [[gnu::noinline]] inline void append_number(std::string& words, double number) {
  char digits[32];
  __builtin_snprintf(digits, sizeof digits, "%.9g", number);
  if (std::strtod(digits, nullptr) != number)
    __builtin_snprintf(digits, sizeof digits, "%.17g", number);
  if (words.back() != '(') words += ", ";
  words += digits;
}

/// The name of a type, as the compiler writes it.
template <class T> consteval auto type_name() {
  std::string_view const all = __PRETTY_FUNCTION__;
  std::size_t const first = all.find("T = ") + 4;
  return all.substr(first, all.size() - 1 - first);
}

/// The type and the numbers from which `policy_digest` is computed, as text.
template <class P> [[nodiscard]] [[gnu::cold]] std::string policy_words(P const& policy) {
  std::string words(type_name<P>());
  words += '(';
  each_number(policy, [&]<class T>(T const* numbers, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) append_number(words, static_cast<double>(numbers[i]));
  });
  words += ')';
  return words;
}

}  // namespace stagger::detail
