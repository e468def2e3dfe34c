// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   NCCL's names for element types and reductions.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <stagger/collective/communicator.hpp>
#include <stagger/nccl/error.hpp>

namespace stagger::nccl {

/// How NCCL calls an element type. Specialise it for half-precision types:
///
///     template <> struct stagger::nccl::DataType<__nv_bfloat16> { static constexpr auto value =
///     ncclBfloat16; };
template <class T> struct DataType;

template <class T>
requires collective::Element<T>
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

/// What NCCL can carry: every element of a collective but two-byte integers.
template <class T>
concept Element = requires {
  DataType<std::remove_cv_t<T>>::value;
}
&&DataType<std::remove_cv_t<T>>::value != ncclNumTypes;

namespace detail {

template <class T> inline constexpr ncclDataType_t data_type = DataType<std::remove_cv_t<T>>::value;

[[nodiscard]] constexpr ncclRedOp_t reduction(collective::Reduction how) noexcept {
  switch (how) {
    case collective::Reduction::min:
      return ncclMin;
    case collective::Reduction::max:
      return ncclMax;
    default:
      return ncclSum;
  }
}

}  // namespace detail
}  // namespace stagger::nccl
