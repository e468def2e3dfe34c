// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A digest of a value of any type whose bytes are known.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include <stagger/core/digest.hpp>
#include <stagger/core/policy_numbers.hpp>
#include <stagger/engine/slots.hpp>
#include <stagger/model/stage.hpp>

namespace stagger::detail {

/// Whether all bytes of an object are its value: numbers and what consists of them, without padding.
template <class T>
inline constexpr bool is_its_bytes =
    std::is_trivially_copyable_v<T> && !std::is_pointer_v<T> &&
    (!std::is_class_v<T> || AggregateOf<T, float> || AggregateOf<T, double> ||
     std::has_unique_object_representations_v<T>);

template <class T> consteval bool knows_bytes();
template <class... T> consteval bool know_bytes(std::tuple<T&...> const*) {
  return (knows_bytes<std::remove_const_t<T>>() && ...);
}
template <class T> consteval bool knows_bytes() {
  if constexpr (requires { requires std::bool_constant<T::rows_on_stream>::value; })
    return false;  // in the memory of a device
  else if constexpr (requires(T const& value) { value.fields(); })
    return know_bytes(static_cast<decltype(std::declval<T const&>().fields())*>(nullptr));
  else if constexpr (is_optional<T>)
    return knows_bytes<typename T::value_type>();
  else if constexpr (HasSizeAndData<T>)
    return knows_bytes<std::remove_cvref_t<decltype(*std::declval<T const&>().data())>>();
  else
    return is_its_bytes<T>;
}
/// Whether `value_digest` knows the bytes of a type: numbers, tensors and vectors, std::optional,
/// and types with `fields()` of such.
template <class T> inline constexpr bool has_digest = knows_bytes<T>();

/// A digest of a value that tells apart what differs in a single bit or in its extents.
/// @param before  of the values before it
template <class T>
[[nodiscard]] std::uint64_t value_digest(T const& value, std::uint64_t before) noexcept {
  if constexpr (requires { value.fields(); }) {
    std::apply([&](auto const&... field) { ((before = value_digest(field, before)), ...); },
               value.fields());
    return before;
  } else if constexpr (is_optional<T>) {
    before = value_digest(value.has_value(), before);
    return value ? value_digest(*value, before) : before;
  } else if constexpr (HasSizeAndData<T>) {
    auto const* const first = value.data();
    std::size_t const count = value.size();
    before = value_digest(count, before);
    if constexpr (requires { value.extents(); }) before = value_digest(value.extents(), before);
    if constexpr (is_its_bytes<std::remove_cvref_t<decltype(*first)>>)
      return digest(reinterpret_cast<char const*>(first), count * sizeof(*first), before);
    else
      for (std::size_t i = 0; i < count; ++i) before = value_digest(first[i], before);
    return before;
  } else {
    return digest(reinterpret_cast<char const*>(&value), sizeof(T), before);
  }
}

}  // namespace stagger::detail
