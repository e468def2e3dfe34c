// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A digest of what values contain, by which processes compare the batches that they are
///         given.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include <stagger/core/checksum.hpp>
#include <stagger/core/is_optional.hpp>
#include <stagger/core/policy_numbers.hpp>
#include <stagger/core/portable.hpp>
#include <stagger/core/tensor.hpp>

namespace stagger::detail {

/// Words of 8 bytes go to several checksums in turn, so that the processor computes these at the
/// same time.
class ContentDigest {
 public:
  void add(void const* bytes, std::size_t count) noexcept {
    auto const* at = static_cast<std::byte const*>(bytes);
    std::size_t left = count;
    ContentDigest all = *this;  // in registers
    for (; left >= block_bytes; at += block_bytes, left -= block_bytes) all.add_block(at);
    *this = all;
    if (left != 0) {
      std::byte last[block_bytes] = {};
      std::memcpy(last, at, left);
      add_block(last);
    }
    sums_[0].add(count);
  }
  /// Is never 0.
  [[nodiscard]] std::uint64_t value() const noexcept {
    Checksum all;
    for (Checksum const& sum : sums_) all.add(sum.value());
    return all.value() != 0 ? all.value() : 1;
  }

 private:
  void add_block(std::byte const* block) noexcept {
    std::uint64_t words[4];
    std::memcpy(words, block, sizeof words);
    sums_[0].add(words[0]);
    sums_[1].add(words[1]);
    sums_[2].add(words[2]);
    sums_[3].add(words[3]);
  }

  static constexpr std::size_t block_bytes = 32;
  Checksum sums_[4];
};

/// Numbers, and aggregates of numbers of one type: the bytes say all, and none is unused. A class
/// that has other members may have pointers or gaps, so it needs `fields()`.
template <class T>
concept Numbers = std::is_enum_v<T> || (std::is_arithmetic_v<T> && sizeof(T) <= 8) ||
                  (std::is_class_v<T> && std::is_trivially_copyable_v<T> && sizeof(T) <= 256 &&
                   (AggregateOf<T, float> || AggregateOf<T, double> || AggregateOf<T, int>));

/// Containers whose elements lie one after the other, in memory of their own on the host. (A
/// cuda::Tensor has no iterators; a view may be of memory of a GPU.)
template <class T>
concept Contiguous = !std::ranges::enable_borrowed_range<T> && requires(T const& values) {
  { values.begin() } -> std::contiguous_iterator;
  values.data();
  values.size();
};

/// Adds the shape of a value, as far as its type tells.
template <class T> void add_shape(ContentDigest& digest, T const& value) {
  if constexpr (std::is_base_of_v<TensorShape, T>) {
    digest.add(value.extents().data(), sizeof value.extents());
  } else if constexpr (requires { std::size_t{value.size()}; }) {
    std::size_t const size = value.size();
    digest.add(&size, sizeof size);
  } else if constexpr (requires { std::size_t{value.rows()}; }) {
    std::size_t const rows = value.rows();
    digest.add(&rows, sizeof rows);
  }
}

template <class T> consteval bool adds_content();
template <class... T> consteval bool add_contents(std::tuple<T...> const*) {
  return (adds_content<std::remove_cvref_t<T>>() && ...);
}
template <class T> consteval bool adds_content() {
  if constexpr (HasFields<T>)
    return add_contents(static_cast<decltype(std::declval<T const&>().fields())*>(nullptr));
  else if constexpr (is_optional<T>)
    return adds_content<typename T::value_type>();
  else if constexpr (Contiguous<T>)
    return adds_content<std::iter_value_t<decltype(std::declval<T const&>().begin())>>();
  else
    return Numbers<T>;
}
/// Whether `add_content` adds all that a value of the type contains.
template <class T> inline constexpr bool has_content = adds_content<T>();

/// Adds the contents of numbers, tensors, vectors and other contiguous containers, std::optional, and
/// of all fields of types with `fields()`; of views, of all other types, and of memory of a GPU, the
/// shape.
template <class T> void add_content(ContentDigest& digest, T const& value) {
  if constexpr (HasFields<T>) {
    std::apply([&](auto const&... field) { (add_content(digest, field), ...); }, value.fields());
  } else if constexpr (is_optional<T>) {
    add_content(digest, value.has_value());
    if (value) add_content(digest, *value);
  } else if constexpr (Contiguous<T>) {
    using Element = std::iter_value_t<decltype(value.begin())>;
    add_shape(digest, value);
    if constexpr (Numbers<Element>)
      digest.add(value.data(), value.size() * sizeof(Element));
    else
      for (auto const& element : value) add_content(digest, element);
  } else if constexpr (Numbers<T>) {
    digest.add(std::addressof(value), sizeof(T));
  } else {
    add_shape(digest, value);
  }
}

/// `add_content` for a value whose type is erased.
using AddContent = void (*)(ContentDigest&, void const* value);
template <class T> void add_content_of(ContentDigest& digest, void const* value) {
  add_content(digest, *static_cast<T const*>(value));
}

/// The functions for a pipeline's batches.
struct BatchContents {
  AddContent input = nullptr;  // null: its contents are not compared
  AddContent target = nullptr;
};
template <class Input, class Target>
inline constexpr BatchContents batch_contents{&add_content_of<Input>, &add_content_of<Target>};

/// The digest of `count` values.
/// @param stride  bytes from one to the next
[[nodiscard]] inline std::uint64_t content_digest(AddContent add, std::byte const* first,
                                                  std::size_t stride, std::size_t count) {
  ContentDigest all;
  for (std::size_t i = 0; i < count; ++i) add(all, first + i * stride);
  return all.value();
}

}  // namespace stagger::detail
