// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What a worker and a parameter server in another process say to each other, and what
///         carries it: reliable messages in order, over any transport.

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>

namespace stagger::collective::detail {

/// Kinds of messages. Of a worker:
enum class MessageKind : std::uint16_t {
  join = 1,   ///< payload: a JoinRequest
  values,     ///< of a layer, where the server wants them; payload: the first values
  begin,      ///< a stream
  read,       ///< asks for the newest values of a layer
  push,       ///< payload: what the worker pushes of a layer; number: of pushes, with this one
  last_push,  ///< likewise, and the layer's stream ends
  ask,        ///< for a snapshot of a layer with `rounds`
  ask_last,   ///< for the one with all pushes
  end,        ///< the stream ends
  fail,       ///< the stream ends, since the worker has failed
  who,        ///< asks whom it waits for
  leave,      ///< the worker goes
  // Of a worker some of whose layers are late:
  push_rest,  ///< of a layer whose first bytes are late: the others; number: as the whole push will have
  push_late,  ///< those, or a whole layer, which ends the push; number: of pushes, with this one
  ask_rest,   ///< for a snapshot of a layer with `rounds` but for its first bytes; number: of those
  ask_late,   ///< likewise for those alone
  report,     ///< number: the bits of the loss of a step, a double
  ask_choice,  ///< which layers are late; rounds: in a step, counted from 0
  resume,      ///< over another connection, the stream goes on; rounds: as `newest` had
  // Of the server:
  wanted = 64,  ///< first values are wanted, of all layers
  joined,       ///< number: of the run, by which a server is told from another; rounds: 1 where
                ///< streams go on over another connection
  refused,      ///< payload: a sentence; the connection ends
  newest,  ///< the answer to `read`; number: pushes of the worker so far; rounds: of its streams,
           ///< that have failed; payload: values
  pushed,  ///< a push is added, or kept until it will be; number: as the push had
  answer,  ///< to `ask`: `rounds` as asked for; number: of a VersionTag; payload: values asked for
  last_answer,  ///< to `ask_last`; payload: values
  lost,         ///< payload: the sentence that ends the stream
  waits,        ///< payload: the answer to `who`, in words
  choice,       ///< to `ask_choice`: `rounds` likewise; payload: one bit for each layer, the lowest
                ///< first; of `layer` only the first `number` bytes are late, unless that is 0
  scores,       ///< likewise from one of several servers: number: the bits of the mean loss;
                ///< payload: [layers] double
};

/// What precedes a payload. Fields that a kind does not use are 0.
struct Message {
  MessageKind kind{};
  std::uint16_t unused = 0;
  std::uint32_t layer = 0;
  std::uint32_t stream = 0;  ///< of the worker, counted from 1
  std::uint32_t rounds = 0;
  std::uint64_t number = 0;
  std::uint64_t bytes = 0;  ///< of the payload
};
static_assert(sizeof(Message) == 32);

/// Refuses what the other side should not have sent.
/// @throws Error  bad_data
[[noreturn]] inline void refuse_message(Message const& message, char const* reason) {
  raise(Errc::bad_data, "a message of kind ", static_cast<int>(message.kind), ", layer ",
        message.layer, " and ", message.bytes, " bytes ", reason,
        "; let both ends run one version of one program");
}

/// Messages that wait to be sent. It has as much room as is ever needed by ends that keep the rules.
class MessageQueue {
 public:
  /// Forgets what is in it. @param count  messages for which there is room from now on
  void reset(std::size_t count) {
    ring_ = FixedArray<Message>(count);
    first_ = last_ = 0;
  }
  [[nodiscard]] bool empty() const noexcept { return first_ == last_; }
  /// @return whether there was room
  bool push(Message const& message) noexcept {
    if (last_ - first_ == ring_.size()) return false;
    ring_[last_++ % ring_.size()] = message;
    return true;
  }
  /// @pre not empty
  Message pop() noexcept { return ring_[first_++ % ring_.size()]; }
  template <class Which> void remove_if(Which which) noexcept {
    std::size_t const end = std::exchange(last_, first_);
    for (std::size_t i = first_; i != end; ++i)
      if (Message const& each = ring_[i % ring_.size()]; !which(each)) push(each);
  }

 private:
  FixedArray<Message> ring_;
  std::size_t first_ = 0;
  std::size_t last_ = 0;
};

/// One end of a connection. A transport calls `next` from one thread at a time, and the others too. Where an end throws, the
/// transport sends what it says as a message `refused`, and the connection ends.
class MessageEnd {
 public:
  /// Where the payload of a message that is about to arrive goes.
  /// @return [message.bytes]
  /// @throws Error  bad_data for a message that cannot be; the connection ends
  virtual std::span<std::byte> payload_buffer(Message const& message) = 0;
  /// A message has arrived, and its payload lies there.
  /// @throws Error  likewise
  virtual void received(Message const& message) = 0;
  /// The next message to send. The payload stays as it is until `next` is called again, or longer.
  /// @return whether there is one
  virtual bool next(Message& message, std::span<std::byte const>& payload) = 0;
  /// The connection has ended. Nothing is called after this.
  virtual void gone(std::exception_ptr why) noexcept = 0;

 protected:
  ~MessageEnd() = default;
};

/// Carries messages to the other end of a connection, and its messages here.
class Transport {
 public:
  virtual ~Transport() = default;
  /// There are messages to send: asks `next` for them, soon. Any thread; never waits, never
  /// allocates.
  virtual void wake() noexcept = 0;
  /// Likewise; it may ask on the calling thread, at once, and send what is small. The caller holds no
  /// lock that the end needs.
  virtual void wake_and_send() noexcept { wake(); }
  /// Sends what there is, ends the connection and calls the end no more. Not from within a call of
  /// the end. Waits no longer than the transport's deadline.
  virtual void close() noexcept = 0;
};

/// Makes connections to a server.
class Connector {
 public:
  virtual ~Connector() = default;
  /// @throws Error  io if there is no server
  [[nodiscard]] virtual std::unique_ptr<Transport> connect(MessageEnd& end) = 0;
  /// s, > 0: how long a worker waits for an answer of the server itself, and for room to send.
  [[nodiscard]] virtual double deadline_s() const = 0;
  /// Where the server is, in words.
  [[nodiscard]] virtual std::string name() const = 0;

  // The time by which a worker waits; real, unless a transport has another.

  /// s, since any moment.
  [[nodiscard]] virtual double now_s() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  /// Waits for `changed`, so many seconds at most; it may return earlier.
  virtual void wait(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
                    double most_s) const {
    changed.wait_for(lock, std::chrono::duration<double>(most_s));
  }
};

}  // namespace stagger::collective::detail
