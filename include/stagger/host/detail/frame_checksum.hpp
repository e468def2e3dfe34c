// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The checksum of a frame, which is computed while the processor waits for memory.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include <stagger/collective/messages.hpp>
#include <stagger/core/checksum.hpp>

namespace stagger::detail::framed {

using collective::detail::Message;

/// Each of the 16 words of 8 bytes in a block of 128 bytes of the payload goes into a sum of its own,
/// by operations of which the vector units of any processor do several at once. From h = 0, for each
/// word: h = (h ^ word) * (1 + 2^13); h ^= h >> 29. Each step is one-to-one in the word, so every
/// change within 8 bytes is detected. The Checksum of the header and these sums is the result.
class FrameChecksum {
 public:
  static constexpr std::size_t block_bytes = 128;

  /// Adds bytes of the payload. An incomplete block is filled up with zeros; it must be the last one.
  void add(std::span<std::byte const> bytes) noexcept { pass<false>(nullptr, bytes); }
  /// Likewise, and copies them, which costs little more.
  void copy(std::byte* to, std::span<std::byte const> from) noexcept { pass<true>(to, from); }
  [[nodiscard]] std::uint64_t value(Message const& header) const noexcept {
    Checksum all;
    all.add(std::as_bytes(std::span(&header, 1)));
    for (std::uint64_t const sum : sums_) all.add(sum);
    return all.value();
  }

 private:
  typedef std::uint64_t Pair __attribute__((vector_size(16)));  // NOLINT(modernize-use-using)
  static constexpr std::size_t pairs = block_bytes / sizeof(Pair);
  static constexpr std::size_t line_bytes = 64;     // of a cache
  static constexpr std::size_t ahead_bytes = 4096;  // further than processors fetch by themselves

  template <bool copies> void pass(std::byte* to, std::span<std::byte const> from) noexcept {
    constexpr std::make_index_sequence<pairs> each;
    std::size_t const whole = from.size() - from.size() % block_bytes;
    Pair sums[pairs];
    std::memcpy(sums, sums_, sizeof(sums));
    for (std::size_t i = 0; i < whole; i += block_bytes) {
      for (std::size_t line = 0; line < block_bytes; line += line_bytes) {
        std::size_t const ahead = std::min(i + line + ahead_bytes, whole);
        __builtin_prefetch(from.data() + ahead);
        if constexpr (copies) __builtin_prefetch(to + ahead, 1);
      }
      add_block<copies>(sums, copies ? to + i : nullptr, from.data() + i, each);
    }
    if (std::size_t const rest = from.size() - whole; rest != 0) {
      std::byte last[block_bytes] = {};
      std::memcpy(last, from.data() + whole, rest);
      if constexpr (copies) std::memcpy(to + whole, last, rest);
      add_block<false>(sums, nullptr, last, each);
    }
    std::memcpy(sums_, sums, sizeof(sums));
  }
  template <bool copies, std::size_t... I>
  static void add_block(Pair (&sums)[pairs], std::byte* to, std::byte const* from,
                        std::index_sequence<I...>) noexcept {
    (add_pair<copies>(sums[I], to + I * (copies ? sizeof(Pair) : 0), from + I * sizeof(Pair)), ...);
  }
  template <bool copies>
  static void add_pair(Pair& sum, std::byte* to, std::byte const* from) noexcept {
    Pair words;
    std::memcpy(&words, from, sizeof(words));
    if constexpr (copies) std::memcpy(to, &words, sizeof(words));
    sum ^= words;
    sum += sum << 13;
    sum ^= sum >> 29;
  }

  std::uint64_t sums_[block_bytes / sizeof(std::uint64_t)] = {};
};

}  // namespace stagger::detail::framed
