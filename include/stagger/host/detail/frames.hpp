// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Messages between workers and a parameter server as frames of a stream of bytes, with a
///         checksum each. docs/workers_protocol.md describes them byte by byte.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include <stagger/collective/messages.hpp>
#include <stagger/core/checksum.hpp>
#include <stagger/core/error.hpp>

namespace stagger::detail::framed {

using collective::detail::Message;
using collective::detail::MessageEnd;
using collective::detail::MessageKind;

static_assert(std::endian::native == std::endian::little,
              "stagger: frames are sent as they lie in memory, which must be little-endian");

inline constexpr std::size_t buffer_bytes = std::size_t{1} << 16U;
inline constexpr std::size_t small_bytes = std::size_t{1} << 14U;  // payloads that are copied
inline constexpr std::size_t piece_bytes = std::size_t{1} << 18U;  // of a large one, in a cache

/// The first bytes that a worker sends.
struct Hello {
  static constexpr std::size_t longest_token = 64;
  char token[longest_token] = {};  // then zeros
  char protocol[6] = {'s', 't', 'g', 'p', 'r', 'm'};
  std::uint16_t version = 5;
};
static_assert(sizeof(Hello) == 72);

/// The checksum of a frame, which is computed while the processor waits for memory.
///
/// Each of the 16 words of 8 bytes in a block of 128 bytes of the payload goes into a sum of its
/// own, by operations of which the vector units of any processor do several at once. From h = 0,
/// for each word: h = (h ^ word) * (1 + 2^13); h ^= h >> 29. Each step is one-to-one in the word,
/// so every change within 8 bytes is detected. The Checksum of the header and these sums is the
/// result.
class FrameChecksum {
 public:
  static constexpr std::size_t block_bytes = 128;

  /// Adds bytes of the payload. An incomplete block is filled up with zeros; it must be the last
  /// one.
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

/// Extracts messages from the bytes that arrive.
class FrameReader {
 public:
  /// @param expected  the first bytes of the other side, or null; must outlive this object
  explicit FrameReader(Hello const* expected) noexcept : expected_(expected) {}

  /// The memory for the next bytes. It is small enough to stay in a cache, so that a payload is
  /// checked there, and its destination is only written.
  [[nodiscard]] std::span<std::byte> space() noexcept { return std::span(in_).subspan(filled_); }
  /// Called when this many bytes have arrived there. Delivers the messages that they complete.
  /// @throws Error  for bytes that are not frames, or what `end` throws
  void came(std::size_t count, MessageEnd& end) {
    filled_ += count;
    std::size_t at = 0;
    if (expected_ != nullptr && filled_ >= sizeof(Hello)) {
      check_hello(in_.data());
      at += sizeof(Hello);
    }
    while (expected_ == nullptr && take(at, end)) {
    }
    filled_ -= at;
    if (at != 0 && filled_ != 0) std::memmove(in_.data(), in_.data() + at, filled_);
  }
  /// How many of the first bytes of the other side have not arrived yet.
  [[nodiscard]] std::size_t hello_missing() const noexcept {
    return expected_ == nullptr ? 0 : sizeof(Hello) - filled_;
  }
  /// Whether a frame has begun that is not complete.
  [[nodiscard]] bool partial() const noexcept { return in_frame_ || filled_ != 0; }
  /// Ignores everything that arrives from now on.
  void forget() noexcept {
    in_frame_ = false;
    payload_ = {};
    filled_ = 0;
  }

 private:
  /// @return whether a frame was complete
  bool take(std::size_t& at, MessageEnd& end) {
    if (!in_frame_) {
      if (filled_ - at < sizeof(Message)) return false;
      std::memcpy(&message_, in_.data() + at, sizeof(Message));
      at += sizeof(Message);
      if (message_.unused != 0) refuse_message(message_, "is none of this protocol");
      payload_ = end.payload_buffer(message_);
      in_frame_ = true;
      got_ = 0;
      sum_ = {};
    }
    std::size_t const left = payload_.size() - got_;
    std::size_t count = std::min(filled_ - at, left);
    if (count != left)
      count -= count % FrameChecksum::block_bytes;  // the rest of the block follows
    if (count != 0) {
      sum_.copy(payload_.data() + got_, std::span(in_).subspan(at, count));
      end.part_received(message_, {got_, got_ + count});
      at += count;
      got_ += count;
    }
    if (got_ != payload_.size() || filled_ - at < sizeof(std::uint64_t)) return false;
    std::uint64_t sum = 0;
    std::memcpy(&sum, in_.data() + at, sizeof(sum));
    at += sizeof(sum);
    if (sum != sum_.value(message_)) refuse_message(message_, "does not agree with its checksum");
    in_frame_ = false;
    end.received(message_);
    return true;
  }

  void check_hello(std::byte const* from) {
    Hello hello;
    std::memcpy(&hello, from, sizeof(hello));
    unsigned char differs = 0;  // in a time that does not depend on where they differ
    for (std::size_t i = 0; i < sizeof(hello.token); ++i)
      differs |= static_cast<unsigned char>(hello.token[i] ^ expected_->token[i]);
    if (differs != 0)
      raise(Errc::mismatch, "the token is not that of the server; give both the same");
    if (std::memcmp(hello.protocol, expected_->protocol, sizeof(hello.protocol)) != 0 ||
        hello.version != expected_->version)
      raise(Errc::mismatch, "the server speaks version ", expected_->version,
            " of its protocol and nothing else; run the same version of the program at both ends");
    expected_ = nullptr;
  }

  Hello const* expected_;  // null once they have arrived
  std::array<std::byte, buffer_bytes> in_;
  std::size_t filled_ = 0;  // of it
  bool in_frame_ = false;
  Message message_;               // whose payload comes
  std::span<std::byte> payload_;  // for it
  std::size_t got_ = 0;           // of it
  FrameChecksum sum_;             // likewise
};

/// Makes frames of messages: small ones are collected in a buffer, and large payloads are sent from
/// their own memory, piece by piece.
class FrameWriter {
 public:
  void hello(Hello const& hello) noexcept { append(&hello, sizeof(hello)); }
  /// Adds the last message. @pre not partial()
  void refuse(std::string const& sentence) noexcept {
    std::size_t const bytes = std::min(sentence.size(), small_bytes);
    add({.kind = MessageKind::refused, .bytes = bytes},
        std::as_bytes(std::span(sentence.data(), bytes)));
  }
  /// Whether a part of a large payload has been sent.
  [[nodiscard]] bool partial() const noexcept { return !piece_.empty() || !payload_.empty(); }
  /// Adds frames while there is room for one more. @throws what `end` throws
  void fill(MessageEnd& end) {
    Message message;
    std::span<std::byte const> payload;
    while (!partial() && has_room() && end.next(message, payload)) add(message, payload);
  }
  [[nodiscard]] bool has_room() const noexcept {
    return out_.size() - filled_ >= small_bytes + sizeof(Message) + sizeof(std::uint64_t);
  }

  /// The next bytes to send: collected ones, then a piece of a large payload. Valid until `sent`.
  struct Pieces {
    std::span<std::byte const> gathered, large;
    [[nodiscard]] bool empty() const noexcept { return gathered.empty() && large.empty(); }
  };
  [[nodiscard]] Pieces next() noexcept {
    if (piece_.empty() && !payload_.empty()) {
      piece_ = payload_.first(std::min(payload_.size(), piece_bytes));
      payload_ = payload_.subspan(piece_.size());
      sum_.add(piece_);  // while it is brought into the cache
    }
    return {std::span(out_).subspan(sent_, filled_ - sent_), piece_};
  }
  /// Called when this many of these bytes have been sent.
  void sent(std::size_t count) noexcept {
    std::size_t const gathered = std::min(count, filled_ - sent_);
    sent_ += gathered;
    if (sent_ == filled_) sent_ = filled_ = 0;
    if (count == gathered) return;
    piece_ = piece_.subspan(count - gathered);
    if (!partial()) append_sum();
  }

 private:
  void append(void const* bytes, std::size_t count) noexcept {
    if (count != 0) std::memcpy(out_.data() + filled_, bytes, count);
    filled_ += count;
  }
  void append_sum() noexcept {
    std::uint64_t const sum = sum_.value(message_);
    append(&sum, sizeof(sum));
  }
  void add(Message const& message, std::span<std::byte const> payload) noexcept {
    append(&message, sizeof(message));
    message_ = message;
    sum_ = {};
    if (payload.size() > small_bytes) {
      payload_ = payload;
      return;
    }
    append(payload.data(), payload.size());
    sum_.add(payload);
    append_sum();
  }

  std::array<std::byte, buffer_bytes> out_;
  std::size_t filled_ = 0;              // of it
  std::size_t sent_ = 0;                // of these
  std::span<std::byte const> piece_;    // of a large frame, what is being sent
  std::span<std::byte const> payload_;  // behind it
  Message message_;                     // of the frame
  FrameChecksum sum_;                   // of its payload
};

}  // namespace stagger::detail::framed
