// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The serialization of values that are sent to another process.

#include <cstddef>
#include <cstring>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/core/tensor.hpp>

namespace stagger {

/// Bytes to send. Its memory grows and is reused.
class ByteWriter {
 public:
  void add(void const* bytes, std::size_t count) {
    auto const* const first = static_cast<std::byte const*>(bytes);
    bytes_.insert(bytes_.end(), first, first + count);
  }
  template <class T> void add(T const& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    add(&value, sizeof(T));
  }
  void clear() noexcept { bytes_.clear(); }
  /// Makes room for this total number of bytes.
  void reserve(std::size_t count) { bytes_.reserve(count); }
  [[nodiscard]] std::byte const* data() const noexcept { return bytes_.data(); }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_.size(); }
  [[nodiscard]] std::size_t capacity() const noexcept { return bytes_.capacity(); }

 private:
  std::vector<std::byte> bytes_;
};

/// Bytes that were received.
class ByteReader {
 public:
  ByteReader(std::byte const* bytes, std::size_t count) noexcept : next_(bytes), left_(count) {}

  /// @throws Error  mismatch if there are fewer: the two ends do not write and read alike
  void take(void* to, std::size_t count) {
    if (count > left_)
      raise(Errc::mismatch, "a message of another process ends ", count - left_,
            " bytes early; start all processes with the same program");
    if (count == 0) return;
    std::memcpy(to, next_, count);
    next_ += count;
    left_ -= count;
  }
  template <class T> [[nodiscard]] T take() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    take(&value, sizeof(T));
    return value;
  }
  [[nodiscard]] std::size_t left() const noexcept { return left_; }

 private:
  std::byte const* next_;
  std::size_t left_;
};

/// The serialization of a type. It is defined for
///  - trivially copyable types without pointers: as they lie in memory
///  - `Tensor` of such; `std::vector` and `std::optional` of any that are known
///  - types with a member `fields()`, const and not, which returns a `std::tie` of others that are
///    known: `auto fields() { return std::tie(values, mask); }`
///
/// Specialise it for a type of another library: `exists`, `write` and `read`. Processes run on
/// machines of one kind, so bytes need no translation.
template <class T> struct Portable {
  static constexpr bool exists = false;
};

namespace detail {

template <class T>
concept HasFields = requires(T& value, T const& same) {
  value.fields();
  same.fields();
};

template <class T>
concept Flat = std::is_trivially_copyable_v<T> && !std::is_pointer_v<T> &&
               !std::is_member_pointer_v<T> && !HasFields<T>;

/// Whether `Traits` is defined for all fields of a tie.
template <template <class> class Traits, class Tie> struct Fields;
template <template <class> class Traits, class... T> struct Fields<Traits, std::tuple<T&...>> {
  static constexpr bool exist =
      ((Traits<std::remove_const_t<T>>::exists && !std::is_const_v<T>) && ...);
};

/// The compiler error for a member that `fields()` names and that cannot be sent. Nothing here is
/// instantiated for a correct type.
/// @tparam Index  of the member in the tie, from 0
template <template <class> class Traits, class Type, std::size_t Index, class Member>
struct FieldCannotBeSent {
  static constexpr bool points = std::is_pointer_v<Member> || requires(Member& member) {
    *member;
    member.get();
  };
  static constexpr bool received = !std::is_const_v<Member>;
  static_assert(!points,
                "stagger: fields() names a member that points to something, which a message cannot "
                "take along: the member's index and type are the last two arguments of "
                "FieldCannotBeSent; name what it points to, or leave it out");
  static_assert(points || received,
                "stagger: fields() names a const member, which cannot be received: its index and "
                "type are the last two arguments of FieldCannotBeSent; a type that is sent has "
                "both 'auto fields()' and 'auto fields() const'");
  static_assert(points || !received,
                "stagger: fields() names a member that cannot be sent: its index and type are the "
                "last two arguments of FieldCannotBeSent; give that type a fields() of tensors, "
                "vectors and numbers, specialise stagger::Portable or cuda::Wire for it, or leave "
                "the member out");
};
/// The same for `fields()` as a whole.
template <class Type> struct FieldsCannotBeSent {
  static constexpr bool both = requires(Type const& value) { value.fields(); };
  static_assert(both,
                "stagger: a type that is sent has both 'auto fields()' and 'auto fields() const', "
                "each with std::tie of the same members; this one has only the first");
  static_assert(!both,
                "stagger: fields() must return a std::tie of members: 'auto fields() { return "
                "std::tie(values, mask); }'");
};

template <template <class> class Traits, class Type, class... Member, std::size_t... Index>
constexpr void require_members(std::tuple<Member&...>*, std::index_sequence<Index...>) {
  constexpr auto require = []<class M, std::size_t I>() {
    if constexpr (!Traits<std::remove_const_t<M>>::exists || std::is_const_v<M>)
      static_cast<void>(FieldCannotBeSent<Traits, Type, I, M>{});
  };
  (require.template operator()<Member, Index>(), ...);
}
/// Says what is wrong with `fields()` of a type for which `Traits` is not defined.
template <template <class> class Traits, class T> constexpr bool require_fields() {
  if constexpr (Traits<T>::exists || !requires(T& value) { value.fields(); }) {
    return true;
  } else {
    using Tie = decltype(std::declval<T&>().fields());
    if constexpr (HasFields<T> && requires { Fields<Traits, Tie>::exist; })
      require_members<Traits, T>(static_cast<Tie*>(nullptr),
                                 std::make_index_sequence<std::tuple_size_v<Tie>>());
    else
      static_cast<void>(FieldsCannotBeSent<T>{});
    return false;
  }
}

/// Calls `call(Traits<type of the field>(), field)` for each field of a value.
template <template <class> class Traits, class T, class Call> void each_field(T& value, Call call) {
  std::apply(
      [&](auto&... field) { (call(Traits<std::remove_cvref_t<decltype(field)>>(), field), ...); },
      value.fields());
}

}  // namespace detail

template <detail::Flat T> struct Portable<T> {
  static constexpr bool exists = true;
  static void write(ByteWriter& out, T const& value) { out.add(&value, sizeof(T)); }
  static void read(ByteReader& in, T& value) { in.take(&value, sizeof(T)); }
};

template <class U> struct Portable<Tensor<U>> {
  static constexpr bool exists = true;
  static void write(ByteWriter& out, Tensor<U> const& value) {
    out.add<detail::TensorShape>(value);
    out.add(value.data(), value.size() * sizeof(U));
  }
  static void read(ByteReader& in, Tensor<U>& value) {
    value.resize_like(in.take<detail::TensorShape>());
    in.take(value.data(), value.size() * sizeof(U));
  }
};

template <class U>
  requires(Portable<U>::exists && !std::is_same_v<U, bool>)
struct Portable<std::vector<U>> {
  static constexpr bool exists = true;
  static void write(ByteWriter& out, std::vector<U> const& value) {
    out.add(value.size());
    if constexpr (detail::Flat<U>)
      out.add(value.data(), value.size() * sizeof(U));
    else
      for (U const& element : value) Portable<U>::write(out, element);
  }
  static void read(ByteReader& in, std::vector<U>& value) {
    value.resize(in.take<std::size_t>());
    if constexpr (detail::Flat<U>)
      in.take(value.data(), value.size() * sizeof(U));
    else
      for (U& element : value) Portable<U>::read(in, element);
  }
};

namespace detail {
/// Of a std::optional that is not copied as it lies in memory: whether there is a value, and the
/// value.
/// @tparam Traits  of its value
template <class Traits, class U> struct PortableOptional {
  static constexpr bool exists = true;
  static void write(ByteWriter& out, std::optional<U> const& value) {
    out.add(value.has_value());
    if (value) Traits::write(out, *value);
  }
  static void read(ByteReader& in, std::optional<U>& value) {
    if (!in.take<bool>()) return value.reset();
    if (!value) value.emplace();
    Traits::read(in, *value);
  }
};
}  // namespace detail

template <class U>
  requires(Portable<U>::exists && !detail::Flat<std::optional<U>>)
struct Portable<std::optional<U>> : detail::PortableOptional<Portable<U>, U> {};

template <detail::HasFields T>
  requires detail::Fields<Portable, decltype(std::declval<T&>().fields())>::exist
struct Portable<T> {
  static constexpr bool exists = true;
  static void write(ByteWriter& out, T const& value) {
    detail::each_field<stagger::Portable>(
        value, [&](auto of, auto const& field) { of.write(out, field); });
  }
  static void read(ByteReader& in, T& value) {
    detail::each_field<stagger::Portable>(value, [&](auto of, auto& field) { of.read(in, field); });
  }
};

}  // namespace stagger
