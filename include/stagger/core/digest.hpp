// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A digest of bytes: 64 bits of FNV-1a.

#include <cstddef>
#include <cstdint>

#include <stagger/core/requirements.hpp>

namespace stagger::detail {

inline constexpr std::uint64_t empty_digest = 0xcbf29ce484222325U;

/// @param before  the digest of the bytes before these, if there are any
[[nodiscard]] constexpr std::uint64_t digest(char const* bytes, std::size_t count,
                                             std::uint64_t before = empty_digest) noexcept {
  for (std::size_t i = 0; i < count; ++i)
    before = (before ^ static_cast<unsigned char>(bytes[i])) * 0x100000001b3U;
  return before;
}

}  // namespace stagger::detail
