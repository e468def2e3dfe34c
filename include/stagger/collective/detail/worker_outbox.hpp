// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The messages that a parameter server sends to a worker in another process, and the
///         values that go with them.

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
#include <stagger/core/index_range.hpp>
#include <stagger/core/list.hpp>
#include <stagger/model/exchange.hpp>
#include <stagger/parameters/late_set.hpp>
#include <stagger/parameters/parameter_link.hpp>
#include <stagger/parameters/parameter_memory.hpp>
#include <stagger/parameters/version_tag.hpp>

namespace stagger::collective::detail {

using stagger::detail::ByteRange;

/// A queue of messages to send, with the text of those that have one. Any thread may add messages;
/// one thread takes them. It is the listener that the server notifies for the worker.
class WorkerOutbox final : public stagger::detail::ParameterListener {
 public:
  /// @param count  how many messages there is room for
  explicit WorkerOutbox(std::size_t count) { queue_.reset(count); }
  /// Prepares for a worker that is about to join.
  /// @param late      whether layers may be late
  /// @param in_parts  whether the server is one of several
  void reset(int worker, std::size_t layers, bool late, bool in_parts) {
    worker_ = worker;
    queue_.reset(4 * layers + 16);
    if (late) choice_.resize(in_parts ? layers * sizeof(double) : (layers + 7) / 8);
  }
  /// Sets the transport; called once, before anything else.
  void carried_by(Transport& transport) noexcept { transport_ = &transport; }
  [[nodiscard]] Transport& transport() const noexcept { return *transport_; }

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
    begun_ = false;
    held_ = {};
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
  void begins() noexcept override {
    std::lock_guard const lock(mutex_);
    begun_ = true;
    if (held_.kind != MessageKind{}) put(std::exchange(held_, {}));
  }
  /// Keeps an answer until the stream of a worker that comes back has begun.
  void hold(Message const& message) noexcept {
    std::lock_guard const lock(mutex_);
    begun_ ? put(message) : void(held_ = message);  // it may have begun a moment ago
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
            " asks for more than it takes; run the same version of the program at both ends");
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
  Message held_{};      // of no kind if there is none
  bool begun_ = false;  // the worker has come back in this stream
  bool flooded_ = false;
};

/// The values that are sent. One block for the largest layer is enough, since values are copied
/// when their message is sent. What they contain precedes them in a message of its own.
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
