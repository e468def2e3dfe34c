// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The envelopes in which one end of a connection sends its messages.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include <stagger/collective/messages.hpp>
#include <stagger/mpi/detail/channels.hpp>

namespace stagger::mpi::detail {

/// Packs messages that wait at the same time into one envelope, each with its payload behind it,
/// until the envelope has `full` bytes: for the many small layers of a model, an envelope each would
/// cost more than their bytes.
///
/// There are `window` envelopes, which are replaced when a longer message is to be sent than ever
/// before.
class Packing {
 public:
  static constexpr std::size_t window = 4;
  static constexpr std::size_t full = std::size_t{1} << 14U;
  static constexpr Stamp always{.epoch = 1};

  explicit Packing(Channels& channels) : channels_(channels) {}

  /// Sets where the envelopes come from and go to; called once, before anything else.
  /// @param pool  of the channels, for this connection alone
  void open(std::size_t pool, int peer, std::uint32_t what) {
    pool_ = pool, peer_ = peer, what_ = what;
    channels_.provide(pool_, window, full + sizeof(collective::detail::Message));
  }
  [[nodiscard]] std::size_t pool() const noexcept { return pool_; }
  /// Whether there is an envelope for a further message.
  [[nodiscard]] bool has_room() noexcept {
    return envelope_ != nullptr || channels_.has_spare(pool_);
  }
  /// Adds a message, and sends the envelope if it is full then.
  /// @param payload  [message.bytes]
  void add(collective::detail::Message const& message, std::span<std::byte const> payload) {
    longest_ = std::max(longest_, sizeof message + payload.size());
    channels_.provide(pool_, window, full + longest_);
    if (envelope_ == nullptr) envelope_ = channels_.blank(pool_);
    ByteWriter& to = envelope_->payload;
    to.reserve(to.size() + sizeof message + payload.size());  // so that it has whole messages
    to.add(message);
    to.add(payload.data(), payload.size());
    if (to.size() >= full) send();
  }
  /// Sends the envelope that is not full.
  void send() {
    if (envelope_ != nullptr) channels_.post(std::move(envelope_), always, what_, &peer_, 1);
  }
  /// Sends a message without waiting for others.
  void send(collective::detail::Message const& message, std::span<std::byte const> payload) {
    add(message, payload);
    send();
  }

 private:
  Channels& channels_;
  std::size_t pool_ = 0;
  int peer_ = 0;
  std::uint32_t what_ = 0;
  std::size_t longest_ = 0;               // message with its payload
  std::unique_ptr<Outgoing> envelope_{};  // null: none has been begun
};

}  // namespace stagger::mpi::detail
