// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A digest of an optimizer's numbers, which processes that take a step together compare.

#include <stagger/core/requirements.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include <stagger/core/digest.hpp>
#include <stagger/core/error.hpp>

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

/// Of what its `fields()` names; else of all its members, where they are nothing but double or
/// nothing but float.
/// @return 0 where they are not known
template <class P> [[nodiscard]] std::uint64_t optimizer_digest(P const& policy) noexcept {
  auto const of = []<class T>(T const& value, std::uint64_t before) {
    return digest(reinterpret_cast<char const*>(&value), sizeof(T), before);
  };
  if constexpr (requires { policy.fields(); }) {
    return std::apply(
        [&]<class... F>(F const&... field) {
          static_assert(((std::is_arithmetic_v<F> || std::is_enum_v<F>) && ...),
                        "stagger: fields() of an optimizer is a std::tie of numbers");
          std::uint64_t all = empty_digest;
          ((all = of(field, all)), ...);
          return all;
        },
        policy.fields());
  } else if constexpr (std::is_empty_v<P>) {
    return empty_digest;
  } else if constexpr (AggregateOf<P, double> || AggregateOf<P, float>) {
    return of(policy, empty_digest);
  } else {
    return 0;
  }
}

/// For processes that take a step together.
/// @throws Error bad_configuration  for the digest of an optimizer whose numbers are not known
inline void require_numbers(std::uint64_t optimizer) {
  if (optimizer != 0) return;
  raise(Errc::bad_configuration,
        "processes cannot compare the numbers of this optimizer, whose members are of several "
        "types; give it 'auto fields() const { return std::tie(rate, warm_up); }' with all of "
        "them");
}

}  // namespace stagger::detail
