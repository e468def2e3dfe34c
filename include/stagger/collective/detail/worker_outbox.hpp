// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What a parameter server has to say to a worker in another process.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include <stagger/collective/messages.hpp>
#include <stagger/core/error.hpp>
#include <stagger/parameters/parameter_link.hpp>

namespace stagger::collective::detail {

/// Messages that wait to be sent, and the words of those that have some. Any thread adds to it; one
/// takes from it. It hears what the server tells the worker.
class WorkerOutbox final : public stagger::detail::ParameterListener {
 public:
  /// @param count  messages for which there is room
  explicit WorkerOutbox(std::size_t count) { queue_.reset(count); }
  /// Likewise, of a worker that is about to join.
  void reset(int worker, std::size_t count) {
    worker_ = worker;
    queue_.reset(count);
  }
  /// Once, before anything else.
  void carried_by(Transport& transport) noexcept { transport_ = &transport; }

  void say(Message const& message) noexcept {
    std::lock_guard const lock(mutex_);
    put(message);
  }
  void say_waits_for(std::string words) noexcept {
    std::lock_guard const lock(mutex_);
    waits_for_ = std::move(words);
    put({.kind = MessageKind::waits});
  }
  /// Answers of the stream before are of no use any more. Acknowledgements stay.
  void begin(std::uint32_t stream) noexcept {
    std::lock_guard const lock(mutex_);
    stream_ = stream;
    queue_.remove_if([](Message const& message) {
      return message.kind == MessageKind::answer || message.kind == MessageKind::last_answer ||
             message.kind == MessageKind::lost;
    });
  }

  void arrived(std::size_t layer, std::uint32_t rounds) noexcept override {
    of_stream({.kind = MessageKind::answer,
               .layer = static_cast<std::uint32_t>(layer),
               .rounds = rounds});
  }
  void arrived_last(std::size_t layer) noexcept override {
    of_stream({.kind = MessageKind::last_answer, .layer = static_cast<std::uint32_t>(layer)});
  }
  void lost(std::exception_ptr why) noexcept override {
    std::lock_guard const lock(mutex_);
    try {
      std::rethrow_exception(why);
    } catch (std::exception const& error) {
      lost_ = error.what();
    }
    put({.kind = MessageKind::lost, .stream = stream_});
  }

  /// The next message. @param words  its own, until the next call
  /// @return        whether there is one
  /// @throws Error  bad_data where there was no room for all
  bool next(Message& message, std::span<std::byte const>& words) {
    std::lock_guard const lock(mutex_);
    if (flooded_)
      raise(Errc::bad_data, "worker ", worker_,
            " asks for more than it takes; let both ends run one version of one program");
    if (queue_.empty()) return false;
    message = queue_.pop();
    if (message.kind == MessageKind::waits) said_ = waits_for_;
    if (message.kind == MessageKind::lost) said_ = lost_;
    bool const speaks = message.kind == MessageKind::waits || message.kind == MessageKind::lost;
    words = speaks ? std::as_bytes(std::span(said_)) : std::span<std::byte const>();
    return true;
  }

 private:
  /// @pre the lock is held
  void put(Message const& message) noexcept {
    if (!queue_.push(message)) flooded_ = true;
    if (transport_ != nullptr) transport_->wake();
  }
  void of_stream(Message message) noexcept {
    std::lock_guard const lock(mutex_);
    message.stream = stream_;
    put(message);
  }

  Transport* transport_ = nullptr;
  int worker_ = 0;
  std::string said_;  // words that are being sent
  std::mutex mutex_;  // of all below
  MessageQueue queue_;
  std::string waits_for_, lost_;
  std::uint32_t stream_ = 0;
  bool flooded_ = false;
};

}  // namespace stagger::collective::detail
