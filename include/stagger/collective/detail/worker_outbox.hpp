// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The messages that a parameter server sends to a worker in another process.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include <stagger/collective/messages.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/list.hpp>
#include <stagger/parameters/late_set.hpp>
#include <stagger/parameters/parameter_link.hpp>
#include <stagger/parameters/version_tag.hpp>

namespace stagger::collective::detail {

/// A queue of messages to send, with the text of those that have one. Any thread may add messages;
/// one thread takes them. It is the listener that the server notifies for the worker.
class WorkerOutbox final : public stagger::detail::ParameterListener {
 public:
  /// @param count  how many messages there is room for
  explicit WorkerOutbox(std::size_t count) { queue_.reset(count); }
  /// Prepares for a worker that is about to join.
  /// @param choice_bytes  size of a message about late layers
  void reset(int worker, std::size_t count, std::size_t choice_bytes) {
    worker_ = worker;
    queue_.reset(count);
    choice_.resize(choice_bytes);
  }
  /// Sets the transport; called once, before anything else.
  void carried_by(Transport& transport) noexcept { transport_ = &transport; }

  void say(Message const& message) noexcept {
    std::lock_guard const lock(mutex_);
    put(message);
  }
  void say_waits_for(std::string words, std::uint32_t failures) noexcept {
    std::lock_guard const lock(mutex_);
    waits_for_ = std::move(words);
    put({.kind = MessageKind::waits, .stream = stream_, .rounds = failures});
  }
  /// Drops the answers of the previous stream. Acknowledgements stay.
  void begin(std::uint32_t stream) noexcept {
    std::lock_guard const lock(mutex_);
    stream_ = stream;
    queue_.remove_if([](Message const& message) { return answers_stream(message.kind); });
  }

  void arrived(std::size_t layer, std::uint32_t rounds) noexcept override {
    bool const last = rounds == stagger::detail::all_rounds;
    std::lock_guard const lock(mutex_);
    put({.kind = last ? MessageKind::last_answer : MessageKind::answer,
         .layer = static_cast<std::uint32_t>(layer),
         .stream = stream_,
         .rounds = last ? 0 : rounds});
  }
  void late_layers(std::uint32_t step, stagger::detail::LateSet const& late) noexcept override {
    std::lock_guard const lock(mutex_);
    choose({.kind = MessageKind::choice,
            .layer = static_cast<std::uint32_t>(late.split),
            .rounds = step,
            .number = late.split_bytes},
           late.bitmap);
  }
  void late_scores(std::uint32_t step, std::span<double const> scores,
                   double loss) noexcept override {
    std::lock_guard const lock(mutex_);
    choose(
        {.kind = MessageKind::scores, .rounds = step, .number = std::bit_cast<std::uint64_t>(loss)},
        std::as_bytes(scores));
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

  /// The next message. @param words  its own, or other bytes, until the next call
  /// @return        whether there is one
  /// @throws Error  bad_data if there was no room for a message
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
    bool const chooses = message.kind == MessageKind::choice || message.kind == MessageKind::scores;
    words = {};
    if (speaks) words = std::as_bytes(std::span(said_));
    if (chooses) words = {choice_.data(), choice_.size()};  // until the worker asks again
    return true;
  }

 private:
  /// @pre the lock is held
  void put(Message const& message) noexcept {
    if (!queue_.push(message)) flooded_ = true;
    if (transport_ != nullptr) transport_->wake();
  }
  /// @pre the lock is held
  void choose(Message message, std::span<std::byte const> bytes) noexcept {
    if (bytes.size() == choice_.size()) std::copy(bytes.begin(), bytes.end(), choice_.begin());
    message.stream = stream_;
    put(message);
  }

  Transport* transport_ = nullptr;
  int worker_ = 0;
  std::string said_;  // the text that is being sent
  std::mutex mutex_;  // guards all members below
  MessageQueue queue_;
  std::string waits_for_, lost_;
  List<std::byte> choice_;  // which layers are late, or the scores for choosing them
  std::uint32_t stream_ = 0;
  bool flooded_ = false;
};

}  // namespace stagger::collective::detail
