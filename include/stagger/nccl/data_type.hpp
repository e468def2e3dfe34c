// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   NCCL's names for element types and reductions.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <stagger/nccl/error.hpp>

namespace stagger::nccl {

/// How the values of several ranks are combined.
enum class Reduction : std::uint8_t { sum, max };

/// NCCL's name for an element type. Specialise it for half-precision types:
///
///     template <> struct stagger::nccl::DataType<__nv_bfloat16> { static constexpr auto value =
///     ncclBfloat16; };
template <class T> struct DataType;

template <class T>
  requires(std::is_arithmetic_v<T> || std::same_as<T, std::byte>)
struct DataType<T> {
  static constexpr ncclDataType_t value = [] {
    if constexpr (std::same_as<T, double>)
      return ncclFloat64;
    else if constexpr (std::same_as<T, float>)
      return ncclFloat32;
    else if constexpr (sizeof(T) == 8)
      return std::is_signed_v<T> ? ncclInt64 : ncclUint64;
    else if constexpr (sizeof(T) == 4)
      return std::is_signed_v<T> ? ncclInt32 : ncclUint32;
    else if constexpr (sizeof(T) == 1)
      return std::is_signed_v<T> ? ncclInt8 : ncclUint8;
    else
      return ncclNumTypes;
  }();
};

/// Whether NCCL can send a type: plain bytes, and all numbers except two-byte integers and long
/// double.
template <class T>
concept Element = requires { DataType<std::remove_cv_t<T>>::value; } &&
                  DataType<std::remove_cv_t<T>>::value != ncclNumTypes;

namespace detail {

template <class T> inline constexpr ncclDataType_t data_type = DataType<std::remove_cv_t<T>>::value;

[[nodiscard]] constexpr ncclRedOp_t reduction(Reduction how) noexcept {
  return how == Reduction::sum ? ncclSum : ncclMax;
}

}  // namespace detail
}  // namespace stagger::nccl
