// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The values that a parameter server sends to a worker in another process.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include <stagger/collective/messages.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/list.hpp>
#include <stagger/model/exchange.hpp>
#include <stagger/parameters/parameter_memory.hpp>

namespace stagger::collective::detail {

using stagger::detail::ByteRange;

/// One block for the largest layer is enough, since values are copied when their message is sent.
/// What they contain precedes them in a message of its own.
class WorkerAnswers {
 public:
  /// @param sizes    [layers] bytes of the values
  /// @param adds     in the order of workers, answers contain precisely what was asked for
  /// @param workers  of the server
  [[gnu::cold]] void reset(List<std::size_t> const& sizes, staleness::Adds adds,
                           std::size_t workers) {
    std::size_t largest = 0;
    for (std::size_t const bytes : sizes) {
      parts_.push_back({0, bytes});
      largest = std::max(largest, bytes);
    }
    values_.make(nullptr, largest);
    contents_.assign(adds == staleness::Adds::in_worker_order ? 0 : workers, 0);
  }
  /// Sets which part of a layer its next answer has.
  void ask(std::size_t l, ByteRange part) { parts_[l] = part; }
  [[nodiscard]] ByteRange asked(std::size_t l) const { return parts_[l]; }
  /// [bytes of the largest layer] where the values of an answer are put.
  [[nodiscard]] std::span<std::byte> values() noexcept { return values_.span(); }
  /// [workers] where it is put what they contain; empty if that is not sent.
  [[nodiscard]] std::span<std::uint32_t> contents() noexcept {
    return {contents_.data(), contents_.size()};
  }

  /// Puts the message before an answer that says what the answer contains, if there is one.
  void precede(Message& message, std::span<std::byte const>& payload) noexcept {
    if (contents_.empty()) return;
    held_ = message;
    held_.bytes = payload.size();
    held_values_ = std::exchange(payload, std::as_bytes(contents()));
    message.kind = MessageKind::contents;
  }
  /// Gives the answer that such a message has preceded.
  /// @return whether there is one
  bool next(Message& message, std::span<std::byte const>& payload) noexcept {
    if (held_.kind == MessageKind{}) return false;
    message = std::exchange(held_, {});
    payload = held_values_;
    return true;
  }
  /// Drops it, since its stream has ended.
  void drop() noexcept { held_ = {}; }

 private:
  List<ByteRange> parts_;  // [layers] the part of each layer that was requested last
  stagger::detail::ParameterBlock values_;
  List<std::uint32_t> contents_;  // [workers] or none
  Message held_{};                // of no kind if there is none
  std::span<std::byte const> held_values_;
};

}  // namespace stagger::collective::detail
