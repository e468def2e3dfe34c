// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The server's end of a connection with a worker in another process, over any transport.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include <stagger/collective/messages.hpp>
#include <stagger/collective/parameter_server.hpp>
#include <stagger/collective/same_workers.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/list.hpp>
#include <stagger/parameters/optimizer_call.hpp>
#include <stagger/parameters/parameter_memory.hpp>

namespace stagger::collective::detail {

using stagger::detail::ParameterBlock;

/// What a server knows of workers in other processes before they join.
struct RemoteRules {
  /// With it the server takes steps, since no code comes over a connection.
  stagger::detail::OptimizerCall optimizer{};
  std::shared_ptr<void const> kept{};  ///< what it points into
  std::uint64_t model_bytes = 0;       ///< of the values of all layers, at most
  std::uint64_t run = 0;               ///< by which workers tell this server from another
};

/// Turns messages of a worker into calls of the server, and what the server tells it into messages.
/// Where a worker's connection ends before it has left, it has failed.
class ServerConnection final : public MessageEnd, private ParameterListener {
 public:
  /// @param rules  outlive this
  ServerConnection(std::shared_ptr<ServerInProcess> server, RemoteRules const& rules)
      : server_(std::move(server)), rules_(rules) {
    queue_.reserve(4);
  }
  ServerConnection(ServerConnection const&) = delete;
  ServerConnection& operator=(ServerConnection const&) = delete;
  ~ServerConnection() { gone(nullptr); }

  /// Once, before anything else.
  void carried_by(Transport& transport) noexcept { transport_ = &transport; }
  /// Whether it has said who it is.
  [[nodiscard]] bool introduced() const noexcept { return joined() || phase_ == Phase::wanting; }
  [[nodiscard]] bool joined() const noexcept { return phase_ == Phase::joined; }

  std::span<std::byte> room(Message const& message) override {
    using enum MessageKind;
    Phase const needed = message.kind == join     ? Phase::none
                         : message.kind == values ? Phase::wanting
                                                  : Phase::joined;
    if (phase_ != needed) refuse_message(message, "comes before or after its time");
    bool const of_layer = message.kind >= read && message.kind <= ask_last;
    if (of_layer && message.layer >= sizes_.size()) refuse_message(message, "names no layer");
    if (message.kind == join) {
      if (message.bytes > most_request) refuse_message(message, "is too long");
      request_bytes_.resize(message.bytes);
      return {request_bytes_.data(), request_bytes_.size()};
    }
    if (message.kind == values) {
      if (message.layer != first_values_ ||
          message.bytes != request_->layers[first_values_].bytes_of_values())
        refuse_message(message, "has not the first values of the next layer");
      return request_->layers[first_values_].values();
    }
    bool const pushes = message.kind == push || message.kind == last_push;
    if (message.bytes != (pushes ? sizes_[message.layer] : 0))
      refuse_message(message, "has not the length of the layer");
    return block_.span().first(message.bytes);
  }

  void received(Message const& message) override {
    try {
      take(message);
    } catch (Error const& error) {
      if (error.code() != Errc::peer_failed) throw;  // else the worker is being told
    }
  }

  bool next(Message& message, std::span<std::byte const>& payload) override {
    while (take_first(message)) {
      switch (message.kind) {
        case MessageKind::waits:
        case MessageKind::lost:
          payload = std::as_bytes(std::span(said_));
          break;
        case MessageKind::newest:
        case MessageKind::answer:
        case MessageKind::last_answer:
          if (!fetch(message)) continue;
          payload = block_to_send_.span().first(sizes_[message.layer]);
          break;
        default:
          payload = {};
      }
      message.bytes = payload.size();
      return true;
    }
    return false;
  }

  void gone(std::exception_ptr) noexcept override {
    if (std::exchange(phase_, Phase::over) == Phase::joined) server_->leave(seat_);
  }

 private:
  enum class Phase : std::uint8_t { none, wanting, joined, over };
  static constexpr std::size_t most_request = std::size_t{1} << 24U;  // bytes
  static constexpr std::size_t most_ahead = 1024;  // for which room is made when a worker joins

  void take(Message const& message) {
    using enum MessageKind;
    std::size_t const l = message.layer;
    switch (message.kind) {
      case join:
        request_ = std::make_unique<JoinRequest>();
        request_->read({request_bytes_.data(), request_bytes_.size()}, rules_.model_bytes);
        server_->require_worker(request_->worker);
        if (!server_->wants_values() || request_->layers.size() == 0) return finish_join();
        for (LayerParameters& layer : request_->layers) layer.hold();
        phase_ = Phase::wanting;
        return say({.kind = wanted});
      case values:
        if (++first_values_ == request_->layers.size()) finish_join();
        return;
      case begin:
        drop_answers(message.stream);  // before the server tells of the new one
        return server_->begin(seat_);
      case read:
        return say({.kind = newest, .layer = message.layer});
      case push:
      case last_push:
        add(message);
        return say({.kind = pushed, .layer = message.layer, .number = message.number});
      case ask:
        return server_->ask(seat_, l, {message.rounds});
      case ask_last:
        return server_->ask(seat_, l, {Ask::everything});
      case end:
        return server_->end(seat_, nullptr);
      case fail:
        return server_->end(
            seat_, std::make_exception_ptr(Error(Errc::peer_failed, "the worker has failed")));
      case who: {
        std::string words = server_->waits_for(seat_);
        std::lock_guard const lock(mutex_);
        waits_ = std::move(words);
        return put({.kind = waits});
      }
      case leave:
        return gone(nullptr);
      default:
        refuse_message(message, "is not for a server");
    }
  }

  /// A push that was there already is acknowledged and not added.
  void add(Message const& message) {
    std::uint64_t const made = server_->pushes(seat_, message.layer);
    if (message.number > made + 1) refuse_message(message, "leaves out a push");
    if (message.number == made + 1)
      server_->push(seat_, message.layer, block_.data(), message.kind == MessageKind::last_push);
  }

  [[gnu::cold]] void finish_join() {
    JoinRequest& request = *request_;
    WorkerRules rules{.push_minibatches = request.push_minibatches,
                      .pushes = request.pushes,
                      .adds = request.adds,
                      .ahead = std::min<std::size_t>(request.ahead, most_ahead),
                      .optimizer = rules_.optimizer,
                      .process = request.process,
                      .processes = request.processes};
    rules.kept = rules_.kept;
    if (rules.pushes == staleness::Pushes::gradients) {
      Fact const own = optimizer_fact(rules_.optimizer);
      require_same_fact(request.worker, {own.name, request.optimizer},
                        "those who started the server", own);
    } else {  // it is the workers who take steps
      auto const words = std::make_shared<std::string const>(request.optimizer);
      rules.kept = words;
      rules.optimizer = {.optimizer = words.get(), .words = [](void const* of) {
                           return *static_cast<std::string const*>(of);
                         }};
    }
    sizes_.clear();
    std::size_t largest = 0;
    for (LayerParameters const& layer : request.layers) {
      sizes_.push_back(layer.bytes_of_values());
      largest = std::max(largest, layer.bytes_of_values());
    }
    block_.make(nullptr, largest);
    block_to_send_.make(nullptr, largest);
    queue_.reserve(4 * sizes_.size() + 16);
    seat_ = server_->join(request.worker, {request.layers.data(), request.layers.size()},
                          request.digests, rules, *this);
    worker_ = request.worker;
    request_ = nullptr;
    request_bytes_ = {};
    phase_ = Phase::joined;
    say({.kind = MessageKind::joined, .number = rules_.run});
  }

  /// @pre the lock is held
  void put(Message const& message) noexcept {
    if (!queue_.push(message)) flooded_ = true;
    if (transport_ != nullptr) transport_->wake();
  }
  void say(Message const& message) noexcept {
    std::lock_guard const lock(mutex_);
    put(message);
  }

  bool take_first(Message& message) {
    std::lock_guard const lock(mutex_);
    if (flooded_)
      raise(Errc::bad_data, "worker ", worker_,
            " asks for more than it takes; let both ends run one version of one program");
    if (queue_.empty()) return false;
    message = queue_.pop();
    if (message.kind == MessageKind::waits) said_ = waits_;
    if (message.kind == MessageKind::lost) said_ = lost_;
    return true;
  }
  /// Fills in the values of an answer. @return false where the stream has ended meanwhile
  bool fetch(Message& message) {
    std::size_t const l = message.layer;
    std::byte* const to = block_to_send_.data();
    try {
      if (message.kind == MessageKind::newest) {
        server_->read(seat_, l, to);
        message.number = server_->pushes(seat_, l);
      } else {
        bool const last = message.kind == MessageKind::last_answer;
        message.number = server_->take(seat_, l, last ? Ask::everything : message.rounds, to);
      }
      return true;
    } catch (Error const& error) {
      if (error.code() != Errc::peer_failed) throw;
      return false;
    }
  }

  /// Those of the stream before. Acknowledgements stay.
  void drop_answers(std::uint32_t stream) {
    std::lock_guard const lock(mutex_);
    stream_ = stream;
    queue_.remove_if([](Message const& message) {
      return message.kind == MessageKind::answer || message.kind == MessageKind::last_answer ||
             message.kind == MessageKind::lost;
    });
  }

  void arrived(std::size_t layer, std::uint32_t rounds) noexcept override {
    answer({.kind = MessageKind::answer,
            .layer = static_cast<std::uint32_t>(layer),
            .rounds = rounds});
  }
  void arrived_last(std::size_t layer) noexcept override {
    answer({.kind = MessageKind::last_answer, .layer = static_cast<std::uint32_t>(layer)});
  }
  void answer(Message message) noexcept {
    std::lock_guard const lock(mutex_);
    message.stream = stream_;
    put(message);
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

  std::shared_ptr<ServerInProcess> server_;
  RemoteRules const& rules_;
  Transport* transport_ = nullptr;
  Phase phase_ = Phase::none;
  std::unique_ptr<JoinRequest> request_;  // until it has joined
  List<std::byte> request_bytes_;         // likewise
  std::size_t first_values_ = 0;          // layers of which they are here
  int worker_ = 0;
  int seat_ = 0;
  List<std::size_t> sizes_;  // [layers] of their values, in bytes
  ParameterBlock block_;     // a push that is received
  ParameterBlock block_to_send_;
  std::string said_;  // words that are being sent
  std::mutex mutex_;  // of all below
  MessageQueue queue_;
  std::string waits_, lost_;
  std::uint32_t stream_ = 0;
  bool flooded_ = false;
};

}  // namespace stagger::collective::detail
