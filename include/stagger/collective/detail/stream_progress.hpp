// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The progress of a worker's streams, as a parameter server in another process knows it.

#include <cstdint>
#include <exception>
#include <utility>

#include <stagger/collective/messages.hpp>

namespace stagger::collective::detail {

/// The number of the stream, whether it is running, and what is needed to resume it over another
/// connection.
class StreamProgress {
 public:
  [[nodiscard]] std::uint32_t number() const noexcept { return number_; }
  [[nodiscard]] bool running() const noexcept { return running_; }
  [[nodiscard]] std::exception_ptr const& lost() const noexcept { return lost_; }
  [[nodiscard]] bool is(Message const& message) const noexcept {
    return running_ && message.stream == number_;
  }

  /// @param failures  as for ParameterLink::begin_part
  [[nodiscard]] Message begin(std::uint32_t failures) noexcept {
    running_ = true;
    answered_ = false;
    lost_ = nullptr;
    return {.kind = MessageKind::begin, .stream = ++number_, .rounds = failures + 1};
  }
  /// @return whether the stream was running
  bool end(bool failed) noexcept {
    if (!std::exchange(running_, false)) return false;
    ended_by_ = failed ? MessageKind::fail : MessageKind::end;
    return true;
  }
  [[nodiscard]] Message end_message() const noexcept {
    return {.kind = ended_by_, .stream = number_};
  }
  /// Returns to the state before the worker's first stream.
  void forget() noexcept { *this = {}; }
  void lose(std::exception_ptr why) noexcept { lost_ = std::move(why); }
  /// Notes that the newest values have arrived.
  void newest(Message const& message) noexcept {
    if (!running_) return;
    answered_ = true;
    failures_ = message.rounds;
  }
  /// Sends the state over another connection.
  /// @param say  (message)
  template <class Say> void resume(Say say) const {
    if (answered_)
      say(Message{.kind = MessageKind::resume, .stream = number_, .rounds = failures_});
    else if (running_)
      say(Message{.kind = MessageKind::begin, .stream = number_});
    if (answered_ && !running_) say(end_message());
  }

 private:
  std::uint32_t number_ = 0;  // counted from 1
  bool running_ = false;
  bool answered_ = false;                     // the server has answered `begin`
  std::uint32_t failures_ = 0;                // earlier streams that the server counts as failed
  MessageKind ended_by_ = MessageKind::fail;  // how it ended, if it has
  std::exception_ptr lost_;                   // set if another worker has failed
};

}  // namespace stagger::collective::detail
