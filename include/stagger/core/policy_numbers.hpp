// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The name of a policy, and its numbers: as values that can be kept and set again, and as a
///         digest and as text, by which processes compare them.

#include <bit>
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
#include <stagger/core/list.hpp>

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

/// A number of a policy, whatever its type.
struct PolicyNumber {
  enum class Kind : std::uint32_t { real, integer, natural };
  Kind kind{};
  std::uint64_t bits = 0;  // of a double, of an std::int64_t, or of the number itself
  friend bool operator==(PolicyNumber const&, PolicyNumber const&) = default;
};

template <class T> [[nodiscard]] constexpr PolicyNumber policy_number(T number) noexcept {
  if constexpr (std::is_floating_point_v<T>)
    return {PolicyNumber::Kind::real, std::bit_cast<std::uint64_t>(static_cast<double>(number))};
  else if constexpr (std::is_enum_v<T>)
    return policy_number(static_cast<std::underlying_type_t<T>>(number));
  else
    return {std::is_signed_v<T> ? PolicyNumber::Kind::integer : PolicyNumber::Kind::natural,
            static_cast<std::uint64_t>(number)};
}

/// All numbers, in order; none where they are not known.
template <class P> [[nodiscard]] [[gnu::cold]] List<PolicyNumber> policy_numbers(P const& policy) {
  List<PolicyNumber> all;
  each_number(policy, [&]<class T>(T const* numbers, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) all.push_back(policy_number(numbers[i]));
  });
  return all;
}

/// Changes the numbers that differ to those of `wanted`, which has as many.
/// @return whether they are the same now; otherwise `fields()` returns copies
template <class P> [[gnu::cold]] bool set_numbers(P& policy, List<PolicyNumber> const& wanted) {
  std::size_t next = 0;
  each_number(policy, [&]<class T>(T const* numbers, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i, ++next) {
      if (policy_number(numbers[i]) == wanted[next]) continue;
      auto& number = const_cast<T&>(numbers[i]);  // of `policy`, which is not const
      if constexpr (std::is_floating_point_v<T>)
        number = static_cast<T>(std::bit_cast<double>(wanted[next].bits));
      else
        number = static_cast<T>(wanted[next].bits);
    }
  });
  auto const now = policy_numbers(policy);
  bool same = now.size() == wanted.size();
  for (std::size_t i = 0; same && i < now.size(); ++i) same = now[i] == wanted[i];
  return same;
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

/// Likewise, whatever its type.
[[gnu::cold]] inline void append_number(std::string& words, PolicyNumber const& number) {
  if (number.kind == PolicyNumber::Kind::real)
    return append_number(words, std::bit_cast<double>(number.bits));
  if (words.back() != '(') words += ", ";
  words += number.kind == PolicyNumber::Kind::natural
               ? std::to_string(number.bits)
               : std::to_string(static_cast<std::int64_t>(number.bits));
}

/// The name of a type, as the compiler writes it.
template <class T> consteval auto type_name() {
  std::string_view const all = __PRETTY_FUNCTION__;
  std::size_t const first = all.find("T = ") + 4;
  return all.substr(first, all.size() - 1 - first);
}

/// The name that a policy gives itself: `static constexpr std::string_view name`; else that of its
/// type.
template <class P> [[nodiscard]] [[gnu::cold]] std::string policy_name() {
  if constexpr (requires { typename std::bool_constant<std::string_view(P::name).empty()>; })
    return std::string(std::string_view(P::name));
  else
    return std::string(type_name<P>());
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
