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

/// The same, four times as fast: each of the four words in 32 bytes goes into a sum of its own, and
/// the checksum of these four sums is the result.
class WideChecksum {
 public:
  /// An incomplete block of 32 bytes is filled up with zeros; it must be the last one.
  void add(std::span<std::byte const> bytes) noexcept {
    std::size_t const whole = bytes.size() / 32 * 32;
    Checksum a = lanes_[0], b = lanes_[1], c = lanes_[2], d = lanes_[3];
    for (std::size_t i = 0; i < whole; i += 32) {
      std::uint64_t words[4];
      std::memcpy(words, bytes.data() + i, 32);
      a.add(words[0]);
      b.add(words[1]);
      c.add(words[2]);
      d.add(words[3]);
    }
    lanes_[0] = a, lanes_[1] = b, lanes_[2] = c, lanes_[3] = d;
    if (whole == bytes.size()) return;
    std::uint64_t words[4] = {};
    std::memcpy(words, bytes.data() + whole, bytes.size() - whole);
    for (std::size_t i = 0; i < 4; ++i) lanes_[i].add(words[i]);
  }
  [[nodiscard]] std::uint64_t value() const noexcept {
    Checksum all;
    for (Checksum const& lane : lanes_) all.add(lane.value());
    return all.value();
  }

 private:
  Checksum lanes_[4];
};

}  // namespace stagger::detail
