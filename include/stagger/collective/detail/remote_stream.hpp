// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The stream of a worker whose parameter server is in another process: what the worker
///         sends about its layers, and what it receives.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <stagger/collective/detail/remote_layer.hpp>
#include <stagger/collective/detail/server_session.hpp>
#include <stagger/collective/messages.hpp>
#include <stagger/collective/server_options.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/parameters/parameter_link.hpp>

namespace stagger::collective::detail {

using stagger::detail::ParameterListener;

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

class RemoteStream {
 protected:
  RemoteStream(std::unique_ptr<Connector> connector, int worker)
      : worker_(worker), run_(connector->run()), session_(std::move(connector)) {}
  ~RemoteStream() = default;

  /// @param message  complete except for layer and stream
  [[nodiscard]] Message of(std::size_t l, Message message) const noexcept {
    message.layer = static_cast<std::uint32_t>(l);
    message.stream = stream_.number();
    return message;
  }
  void require_stream() const {
    session_.require_alive();
    if (stream_.lost()) std::rethrow_exception(stream_.lost());
  }

  // Called by the worker.

  void fetch(std::size_t l, std::byte* values) {
    auto lock = session_.lock();
    session_.require_alive();
    RemoteLayer& layer = layers_[l];
    layer.read(workers_);
    session_.send(lock, of(l, {.kind = MessageKind::read}));
    lock.lock();
    auto const here = [&] { return !layer.reading(); };
    if (!session_.wait_for(lock, session_.deadline_s(), here, true)) require_sent(lock, here);
    layer.take_read();
    layer.copy_to(values);
  }
  /// Asks for whom the worker waits. @return whether `awaited_` has the server's answer
  [[nodiscard]] [[gnu::cold]] bool ask_who(ServerSession::Lock& lock) const {
    constexpr double answer_s = 2;
    told_ = false;
    session_.offer({.kind = MessageKind::who});
    double const most_s = std::min(session_.deadline_s(), answer_s);
    return session_.wait_for(lock, most_s, [this] { return told_; });
  }
  /// Waits until the previous push has been acknowledged.
  /// @param write  (layer) writes what is pushed
  template <class Write>
  void send_push(MessageKind kind, std::size_t l, ByteRange part, Write write) {
    RemoteLayer& layer = layers_[l];
    auto lock = session_.lock();
    session_.wait(lock, "acknowledged the last push",
                  [&] { return layer.acknowledged() || stream_.lost(); });
    require_stream();
    lock.unlock();
    write(layer);
    lock.lock();
    require_stream();
    session_.send(lock, of(l, layer.push(kind, part)));
  }
  void send_ask(MessageKind kind, std::size_t l, std::uint32_t rounds, ByteRange part) {
    auto lock = session_.lock();
    require_stream();
    if (layers_[l].ask(kind, rounds, part)) session_.send(lock, of(l, layers_[l].request()));
  }
  void say(Message message) {
    auto lock = session_.lock();
    require_stream();
    session_.send(lock, of(0, message));
  }
  /// Tells the server over a new connection that the stream goes on, or has ended. The lock is
  /// held.
  void go_on() {
    stream_.resume([this](Message const& message) { session_.send(message); });
    for (std::size_t l = 0; l < layers_.size(); ++l)
      layers_[l].repeat([&](Message const& message) { session_.send(of(l, message)); },
                        stream_.running());
  }

  // Called for messages of the server; the lock is held.

  [[nodiscard]] [[gnu::cold]] std::exception_ptr another_server() const {
    return raised(
        Errc::mismatch, session_.name(),
        " has been started anew and does not know what it had; start all workers anew, too");
  }
  [[nodiscard]] RemoteLayer& layer_of(Message const& message) {
    if (message.layer >= layers_.size()) refuse_message(message, "names no layer");
    return layers_[message.layer];
  }
  /// Notes how many workers the server has, which `joined` says.
  void note_workers(Message const& message) {
    if (message.layer > most_workers || std::cmp_less_equal(message.layer, worker_))
      refuse_message(message, "names an impossible number of workers");
    workers_ = message.layer;
  }
  /// The memory into which the payload of `joined` is received.
  [[nodiscard]] std::span<std::byte> factor_buffer(Message const& message) {
    if (message.bytes != sizeof(factor_))
      refuse_message(message, "does not contain exactly one number");
    return std::as_writable_bytes(std::span(&factor_, 1));
  }
  /// What was received there. @throws Error  bad_data
  [[nodiscard]] double told_factor() const {
    if (factor_ > 0 && factor_ <= 1) return factor_;
    raise(Errc::bad_data, session_.name(), " lets its workers multiply changes by ", factor_,
          "; run the same version of the program at both ends");
  }
  /// The memory into which the payload of `choice` or `scores` is received.
  [[nodiscard]] std::span<std::byte> choice_buffer(Message const& message) {
    if (message.bytes != (message.kind == MessageKind::choice ? (layers_.size() + 7) / 8
                                                              : layers_.size() * sizeof(double)))
      refuse_message(message, "is not about as many layers");
    if (scores_.size() != layers_.size()) refuse_message(message, "was not asked for");
    return std::as_writable_bytes(std::span(scores_)).first(message.bytes);
  }
  void arrive(Message const& message) {
    if (message.stream != stream_.number()) return;
    RemoteLayer& layer = layer_of(message);
    RemoteLayer::Arrival const arrival = layer.arrive(message, worker_, exact_);
    if (!stream_.running() || listener_ == nullptr) return;
    if (arrival == RemoteLayer::Arrival::too_old) session_.send(of(message.layer, layer.request()));
    if (arrival != RemoteLayer::Arrival::usable) return;
    listener_->arrived(message.layer, layer.rounds_there());
  }

  void choose(Message const& message) {
    if (!stream_.is(message) || listener_ == nullptr || !std::exchange(choice_asked_, false))
      return;
    if (message.kind == MessageKind::scores)
      return listener_->late_scores(message.rounds, scores_, std::bit_cast<double>(message.number));
    bool const splits = message.number != 0;
    if (splits && (message.number % 8 != 0 || message.number >= layer_of(message).bytes()))
      refuse_message(message, "splits no layer");
    listener_->late_layers(message.rounds, {std::as_bytes(std::span(scores_)), message.layer,
                                            static_cast<std::size_t>(message.number)});
  }

  int worker_;
  std::size_t workers_ = 0;  // of the server
  bool exact_ = true;        // pushes are added in the order of workers
  std::string const run_;    // the name of the worker's run
  FixedArray<RemoteLayer> layers_;
  mutable ServerSession session_;  // its lock guards the members below
  ParameterListener* listener_ = nullptr;
  std::vector<double> scores_;  // [layers] or which of them are late, if any may be
  bool choice_asked_ = false;   // and not arrived yet
  StreamProgress stream_;
  mutable bool told_ = false;  // the server has answered `who`
  std::string awaited_;        // its answer

 private:
  /// The weights have not come in time. A server that keeps them back until a worker can come back
  /// says for whom that waits.
  template <class Here> [[gnu::cold]] void require_sent(ServerSession::Lock& lock, Here here) {
    session_.require_alive();
    bool const answers = ask_who(lock);
    if (here()) return;
    session_.require_alive();
    double const late_s = session_.deadline_s();
    if (!answers || awaited_.empty())
      session_.disconnect(text("has not sent its weights for ", late_s, " s"));
    session_.disconnect(
        text("has not let the worker begin for ", late_s, " s, since it waits for ", awaited_),
        "that one");
  }

  double factor_ = 1;  // of changes
};

}  // namespace stagger::collective::detail
