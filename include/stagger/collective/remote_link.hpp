// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A worker's link to a parameter server in another process, over any transport.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <stagger/collective/detail/remote_layer.hpp>
#include <stagger/collective/detail/server_session.hpp>
#include <stagger/collective/join_request.hpp>
#include <stagger/collective/messages.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/portable.hpp>
#include <stagger/parameters/layer_parameters.hpp>
#include <stagger/parameters/parameter_link.hpp>

namespace stagger::collective::detail {

using stagger::detail::all_rounds;
using stagger::detail::ParameterLink;
using stagger::detail::ParameterListener;

/// Turns calls of the engine into messages, and what the server sends into values and what the
/// engine is told.
class RemoteLink final : public ParameterLink, private MessageEnd {
 public:
  RemoteLink(std::unique_ptr<Connector> connector, int worker)
      : worker_(worker), session_(std::move(connector)) {}
  RemoteLink(RemoteLink const&) = delete;
  RemoteLink& operator=(RemoteLink const&) = delete;
  ~RemoteLink() override { leave(); }

  [[gnu::cold]] void join(std::span<LayerParameters const> layers, WorkerRules const& rules,
                          ParameterListener& listener) override {
    require_possible(rules);
    layers_ = FixedArray<RemoteLayer>(layers.size());
    for (std::size_t l = 0; l < layers.size(); ++l) layers_[l].make(layers[l].values());
    exact_ = rules.adds == staleness::Adds::in_worker_order;
    request_.clear();
    JoinRequest::write(request_, worker_, layers, rules);
    session_.forget_server();
    stream_ = 0;
    connect();
    listener_ = &listener;
  }

  void leave() noexcept override {
    {
      auto const lock = session_.lock();
      listener_ = nullptr;
      if (session_.joined()) session_.offer({.kind = MessageKind::leave});
    }
    session_.hang_up();
  }

  /// Where the connection is lost, makes another: the server may have been started again.
  void begin() override {
    auto lock = session_.lock();
    if (session_.failure()) {
      lock.unlock();
      connect();
      lock.lock();
    }
    lost_ = nullptr;
    running_ = true;
    session_.send(lock, {.kind = MessageKind::begin, .stream = ++stream_});
  }

  void read(std::size_t l, std::byte* values) override {
    auto lock = session_.lock();
    session_.require_alive();
    RemoteLayer& layer = layers_[l];
    layer.read();
    session_.send(lock, {.kind = MessageKind::read, .layer = index(l), .stream = stream_});
    lock.lock();
    session_.wait(lock, "sent its weights", [&] { return !layer.reading(); });
    layer.take_read();
    layer.copy_to(values);
  }

  void push(std::size_t l, std::byte const* values, bool last) override {
    RemoteLayer& layer = layers_[l];
    auto lock = session_.lock();
    session_.wait(lock, "acknowledged the last push",
                  [&] { return layer.acknowledged() || lost_; });
    require_stream();
    lock.unlock();
    layer.write_push(values);
    lock.lock();
    require_stream();
    session_.send(lock, {.kind = last ? MessageKind::last_push : MessageKind::push,
                         .layer = index(l),
                         .stream = stream_,
                         .number = layer.push(),
                         .bytes = layer.bytes()});
  }

  void ask(std::size_t l, std::uint32_t rounds) override { ask(MessageKind::ask, l, rounds); }
  void ask_last(std::size_t l) override { ask(MessageKind::ask_last, l, all_rounds); }

  std::uint32_t take(std::size_t l, std::uint32_t rounds, std::byte* values) override {
    RemoteLayer& layer = layers_[l];
    {
      auto const lock = session_.lock();
      require_stream();
      layer.take(rounds, exact_);
    }
    layer.copy_to(values);
    return layer.contains();
  }
  void take_last(std::size_t l, std::byte* values) override {
    {
      auto const lock = session_.lock();
      require_stream();
      layers_[l].take_last();
    }
    layers_[l].copy_to(values);
  }

  void end(std::exception_ptr why) noexcept override {
    auto const lock = session_.lock();
    if (!std::exchange(running_, false) || session_.failure()) return;
    session_.offer({.kind = why ? MessageKind::fail : MessageKind::end, .stream = stream_});
  }

  [[nodiscard]] std::string waits_for() const override {
    auto lock = session_.lock();
    told_ = false;
    session_.offer({.kind = MessageKind::who});
    if (session_.wait_for(lock, std::min(session_.deadline_s(), answer_s),
                          [this] { return told_; }))
      return answer_;
    return text(session_.name(), ", which does not answer");
  }

 private:
  static constexpr double answer_s = 2;                 // to a question that an error waits for
  static constexpr std::size_t most_words = 1U << 16U;  // bytes

  static std::uint32_t index(std::size_t l) { return static_cast<std::uint32_t>(l); }

  [[gnu::cold]] void connect() {
    running_ = false;
    session_.connect(*this, {.kind = MessageKind::join, .bytes = request_.size()},
                     4 * layers_.size() + 16);
  }

  void require_possible(WorkerRules const& rules) const {
    if (session_.connected())
      raise(Errc::bad_configuration, "worker ", worker_,
            " trains already; give each pipeline a worker of its own");
    if (rules.late != nullptr) refuse_late();
    require_remote(worker_, rules);
  }
  void require_stream() const {
    session_.require_alive();
    if (lost_) std::rethrow_exception(lost_);
  }

  void ask(MessageKind kind, std::size_t l, std::uint32_t rounds) {
    auto lock = session_.lock();
    require_stream();
    layers_[l].ask(rounds);
    session_.send(lock, {.kind = kind,
                         .layer = index(l),
                         .stream = stream_,
                         .rounds = rounds == all_rounds ? 0 : rounds});
  }

  // What the transport calls.

  std::span<std::byte> payload_buffer(Message const& message) override {
    using enum MessageKind;
    auto const lock = session_.lock();
    switch (message.kind) {
      case refused:
      case lost:
      case waits:
        if (message.bytes > most_words) refuse_message(message, "is too long");
        words_.resize(message.bytes);
        return std::as_writable_bytes(std::span(words_));
      case newest:
      case answer:
      case last_answer:
        return layer_of(message).payload_buffer(message, message.stream == stream_);
      default:
        if (message.bytes != 0) refuse_message(message, "has a payload that none belongs to");
        return {};
    }
  }

  void received(Message const& message) override {
    using enum MessageKind;
    auto lock = session_.lock();
    switch (message.kind) {
      case wanted:
        if (session_.knows_server()) return end_all(session_.another_server());
        for (std::size_t l = 0; l < layers_.size(); ++l)
          session_.send({.kind = values, .layer = index(l), .bytes = layers_[l].bytes()});
        return;
      case joined:
        if (!session_.join(message.number)) return end_all(session_.another_server());
        break;
      case refused:
        return end_all(std::make_exception_ptr(Error(Errc::mismatch, words_)));
      case newest:
        layer_of(message).newest(message.number);
        break;
      case pushed:
        layer_of(message).acknowledge(message);
        break;
      case answer:
      case last_answer:
        return arrive(message);
      case lost:
        if (!running_ || message.stream != stream_) return;
        lost_ = std::make_exception_ptr(Error(Errc::peer_failed, words_));
        if (listener_ != nullptr) listener_->lost(lost_);
        break;
      case waits:
        answer_ = words_;
        told_ = true;
        break;
      default:
        refuse_message(message, "is not for a worker");
    }
    session_.notify(lock);
  }

  [[nodiscard]] RemoteLayer& layer_of(Message const& message) {
    if (message.layer >= layers_.size()) refuse_message(message, "names no layer");
    return layers_[message.layer];
  }

  void arrive(Message const& message) {
    if (message.stream != stream_ || !layer_of(message).arrive(message)) return;
    if (!running_ || listener_ == nullptr) return;
    message.kind == MessageKind::answer ? listener_->arrived(message.layer, message.rounds)
                                        : listener_->arrived_last(message.layer);
  }

  bool next(Message& message, std::span<std::byte const>& payload) override {
    auto const lock = session_.lock();
    if (!session_.next(message)) return false;
    payload = {};
    if (message.kind == MessageKind::join)
      payload = {request_.data(), request_.size()};
    else if (message.bytes != 0)
      payload = layers_[message.layer].payload();
    return true;
  }

  void gone(std::exception_ptr why) noexcept override {
    auto const lock = session_.lock();
    end_all(std::move(why));
  }
  void end_all(std::exception_ptr why) noexcept {
    if (session_.fail(std::move(why)) && running_ && listener_ != nullptr)
      listener_->lost(session_.failure());
  }

  int worker_;
  bool exact_ = true;
  ByteWriter request_;
  FixedArray<RemoteLayer> layers_;
  mutable ServerSession session_;  // whose lock guards all below, and of layers what they say
  ParameterListener* listener_ = nullptr;
  mutable bool told_ = false;
  std::string words_;   // of the last message with words
  std::string answer_;  // to `who`
  std::exception_ptr lost_;
  std::uint32_t stream_ = 0;
  bool running_ = false;
};

}  // namespace stagger::collective::detail
