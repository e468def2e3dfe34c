// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The messages between a worker and a parameter server in another process, and the
///         interface of the transport, which delivers them reliably and in order.

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/index_range.hpp>

namespace stagger::collective::detail {

/// Kinds of messages. Only the predicates below rely on their order. A worker sends:
enum class MessageKind : std::uint16_t {
  join = 1,   ///< payload: a JoinRequest
  values,     ///< first values of a layer, if the server wants them; payload: the values
  begin,      ///< a stream begins; rounds: 1 + its failures with other parts of the server, or 0
  read,       ///< asks for the newest values of a layer
  push,       ///< a push of a layer; payload: its values; number: pushes so far, with this one
  last_push,  ///< a push, with which the layer's stream ends
  ask,        ///< asks for a snapshot of a layer with `rounds`
  ask_last,   ///< asks for the snapshot with all pushes
  end,        ///< the stream ends
  fail,       ///< the stream ends, since the worker has failed
  who,        ///< asks which worker it waits for
  leave,      ///< the worker leaves
  // A worker with late layers also sends:
  push_rest,   ///< a push without the first bytes, which are late; number: as for push_late
  push_late,   ///< those first bytes, or a whole layer, which ends the push; number: pushes so far
  ask_rest,    ///< asks for a snapshot without its late bytes; number: how many are late
  ask_late,    ///< asks for those first bytes alone
  report,      ///< number: the bits of the loss of a step, a double
  ask_choice,  ///< asks which layers are late; rounds: the step, counted from 0
  resume,      ///< over another connection: the stream goes on; rounds: those of `newest`
  // The server sends:
  wanted = 64,  ///< the first values of all layers are wanted
  joined,   ///< layer: how many workers the server has; number: identifies its run; rounds: 1 if
            ///< streams go on over another connection; payload: a double, by which the worker
            ///< multiplies its changes
  refused,  ///< payload: a sentence; the connection ends
  newest,   ///< answers `read`; number: pushes of the worker so far; rounds: how many of its
            ///< streams have failed; payload: values
  pushed,   ///< a push is added, or kept until it is; number: that of the push
  answer,   ///< answers `ask`: the same `rounds`; payload: values
  last_answer,  ///< answers `ask_last`; payload: values
  lost,         ///< payload: the sentence that ends the stream
  waits,        ///< answers `who`; rounds: failures after which the stream began; payload: text
  choice,  ///< answers `ask_choice`: the same `rounds`; payload: one bit for each layer, the lowest
           ///< first; of `layer` only the first `number` bytes are late, unless that is 0
  scores,  ///< the same from one of several servers; number: the bits of the mean loss;
           ///< payload: [layers] double
  contents,  ///< before an `answer`, unless pushes are added in the order of workers; payload:
             ///< [workers] std::uint32_t, as VersionTag::pushes
};

/// Whether a message is sent only by workers whose layers may be late.
[[nodiscard]] constexpr bool is_of_late_worker(MessageKind kind) noexcept {
  return kind >= MessageKind::push_rest && kind <= MessageKind::ask_choice;
}

/// Whether a message gives a part of a layer's push.
[[nodiscard]] constexpr bool pushes_part(MessageKind kind) noexcept {
  return kind == MessageKind::push_rest || kind == MessageKind::push_late;
}

/// Whether a message asks for a part of a layer's snapshot.
[[nodiscard]] constexpr bool asks_part(MessageKind kind) noexcept {
  return kind == MessageKind::ask_rest || kind == MessageKind::ask_late;
}

/// Whether a worker's message belongs to one layer of its running stream.
[[nodiscard]] constexpr bool is_of_layer(MessageKind kind) noexcept {
  return (kind >= MessageKind::read && kind <= MessageKind::ask_last) || pushes_part(kind) ||
         asks_part(kind);
}

/// Whether a worker's message belongs to its running stream.
[[nodiscard]] constexpr bool is_of_stream(MessageKind kind) noexcept {
  return is_of_layer(kind) || kind == MessageKind::end || kind == MessageKind::fail ||
         is_of_late_worker(kind);
}

/// Whether the server's message belongs to one stream of a worker, and is dropped when the next one
/// begins. Acknowledgements of pushes are kept.
[[nodiscard]] constexpr bool answers_stream(MessageKind kind) noexcept {
  return kind == MessageKind::answer || kind == MessageKind::last_answer ||
         kind >= MessageKind::choice || kind == MessageKind::lost;
}

/// The header of a message. Fields that a kind does not use are 0.
struct Message {
  MessageKind kind{};
  std::uint16_t unused = 0;
  std::uint32_t layer = 0;
  std::uint32_t stream = 0;  ///< number of the worker's stream, counted from 1
  std::uint32_t rounds = 0;
  std::uint64_t number = 0;
  std::uint64_t bytes = 0;  ///< of the payload
};
static_assert(sizeof(Message) == 32);

/// Refuses a message that the other side should not have sent.
/// @throws Error  bad_data
[[noreturn]] inline void refuse_message(Message const& message, char const* reason) {
  raise(Errc::bad_data, "a message of kind ", static_cast<int>(message.kind), ", layer ",
        message.layer, " and ", message.bytes, " bytes ", reason,
        "; run the same version of the program at both ends");
}

/// Messages that wait to be sent. Its capacity is enough for any two ends that follow the protocol.
class MessageQueue {
 public:
  /// Empties the queue.
  /// @param count  its capacity from now on, in messages
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

/// One end of a connection. A transport calls `next` from one thread at a time, and the other
/// functions too. If an end throws, the transport sends the error's text as a message `refused`,
/// and the connection ends.
class MessageEnd {
 public:
  /// The memory into which the payload of the next message is to be received.
  /// @return [message.bytes]
  /// @throws Error  bad_data for a message that violates the protocol; the connection ends
  virtual std::span<std::byte> payload_buffer(Message const& message) = 0;
  /// A part of a payload has arrived and is still in a cache. A transport calls this for all parts
  /// in order, or for none; those that others follow end at a multiple of 64 bytes.
  virtual void part_received(Message const& /*message*/, stagger::detail::ByteRange /*part*/) {}
  /// A message has arrived, with its payload in `payload_buffer`.
  /// @throws Error  likewise
  virtual void received(Message const& message) = 0;
  /// The next message to send. The payload stays valid at least until `next` is called again.
  /// @return whether there is one
  virtual bool next(Message& message, std::span<std::byte const>& payload) = 0;
  /// The connection has ended. Nothing is called after this.
  virtual void gone(std::exception_ptr why) noexcept = 0;

 protected:
  ~MessageEnd() = default;
};

/// Carries messages between this end of a connection and the other.
class Transport {
 public:
  virtual ~Transport() = default;
  /// Says that there are messages to send, so that the transport calls `next` soon. May be called
  /// by any thread; never waits and never allocates.
  virtual void wake() noexcept = 0;
  /// Likewise, but may call `next` at once on the calling thread and send small messages. The
  /// caller must not hold a lock that the end needs.
  virtual void wake_and_send() noexcept { wake(); }
  /// How often bytes were transferred so far, in either direction; 0 if that is not counted. May be
  /// called by any thread.
  [[nodiscard]] virtual std::uint64_t moved() const noexcept { return 0; }
  /// Sends what is pending, ends the connection and makes no further calls. Must not be called from
  /// within a call of the end. Waits no longer than the transport's deadline.
  virtual void close() noexcept = 0;
};

/// Makes connections to a server.
class Connector {
 public:
  /// What runs beside the worker; to destroy it waits until that has ended.
  class Aside {
   public:
    virtual ~Aside() = default;
  };

  virtual ~Connector() = default;
  /// @throws Error  io if there is no server
  [[nodiscard]] virtual std::unique_ptr<Transport> connect(MessageEnd& end) = 0;
  /// How long a worker waits for an answer of the server itself, and for room to send, while no
  /// bytes are transferred; seconds, > 0.
  [[nodiscard]] virtual double deadline_s() const = 0;
  /// The server's address, for messages.
  [[nodiscard]] virtual std::string name() const = 0;
  /// The name of the worker's run, which must be the server's.
  [[nodiscard]] virtual std::string run() const { return {}; }

  // The clock and the threads by which a worker waits: real ones, unless a transport overrides it.

  /// Seconds since an arbitrary moment.
  [[nodiscard]] virtual double now_s() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  /// Waits for `changed` for at most this many seconds; it may return earlier.
  virtual void wait(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
                    double most_s) const {
    changed.wait_for(lock, std::chrono::duration<double>(most_s));
  }
  /// Runs `body(of)` beside the worker.
  [[nodiscard]] [[gnu::cold]] virtual std::unique_ptr<Aside> run_aside(void (*body)(void*),
                                                                       void* of) const {
    struct OnThread final : Aside {
      OnThread(void (*body)(void*), void* of) : thread(body, of) {}
      ~OnThread() override { thread.join(); }
      std::thread thread;
    };
    return std::make_unique<OnThread>(body, of);
  }
};

}  // namespace stagger::collective::detail
