// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A checksum of words of 8 bytes, which detects accidental changes.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include <stagger/core/requirements.hpp>

namespace stagger::detail {

/// From h = 0x9e3779b97f4a7c15, for each word: h = (h ^ word) * 0xff51afd7ed558ccd; h ^= h >> 32.
/// Each step is one-to-one in the word, so every change within 8 bytes is detected.
class Checksum {
 public:
  /// @pre bytes.size() is a multiple of 8
  void add(std::span<std::byte const> bytes) noexcept {
    for (std::size_t i = 0; i < bytes.size(); i += 8) {
      std::uint64_t word;
      std::memcpy(&word, bytes.data() + i, 8);
      add(word);
    }
  }
  void add(std::uint64_t word) noexcept {
    value_ = (value_ ^ word) * 0xff51afd7ed558ccdU;
    value_ ^= value_ >> 32U;
  }
  [[nodiscard]] std::uint64_t value() const noexcept { return value_; }

 private:
  std::uint64_t value_ = 0x9e3779b97f4a7c15U;
};

}  // namespace stagger::detail
