// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A worker's link to a parameter server in another process, over any transport.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <stagger/collective/detail/join_request.hpp>
#include <stagger/collective/detail/remote_stream.hpp>
#include <stagger/collective/messages.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/portable.hpp>
#include <stagger/parameters/layer_parameters.hpp>
#include <stagger/parameters/parameter_link.hpp>

namespace stagger::collective::detail {

using stagger::detail::ParameterLink;

/// Turns calls of the engine into messages, and messages of the server into values and calls of the
/// engine's listener.
class RemoteLink final : public ParameterLink, private RemoteStream, private MessageEnd {
 public:
  RemoteLink(std::unique_ptr<Connector> connector, int worker)
      : RemoteStream(std::move(connector), worker) {}
  RemoteLink(RemoteLink const&) = delete;
  RemoteLink& operator=(RemoteLink const&) = delete;
  ~RemoteLink() override { leave(); }

  [[gnu::cold]] void join(std::span<LayerParameters const> layers, WorkerRules const& rules,
                          ParameterListener& listener) override {
    if (session_.connected())
      raise(Errc::bad_configuration, "worker ", worker_,
            " trains already; give each pipeline a worker of its own");
    require_remote(worker_, rules);
    layers_ = FixedArray<RemoteLayer>(layers.size());
    for (std::size_t l = 0; l < layers.size(); ++l) layers_[l].make(layers[l].values());
    if (rules.late != nullptr) scores_.resize(layers.size());
    exact_ = rules.adds == staleness::Adds::in_worker_order;
    request_.clear();
    JoinRequest::write(request_, worker_, layers, rules, run_);
    session_.forget_server();
    stream_.forget();
    connect();
    listener_ = &listener;
  }
  [[nodiscard]] double change_factor() const override { return told_factor(); }

  void leave() noexcept override {
    {
      auto const lock = session_.lock();
      listener_ = nullptr;
      if (session_.joined()) session_.offer({.kind = MessageKind::leave});
    }
    session_.leave();
  }
  /// If the connection is lost, it makes another one, since the server may have been restarted.
  void begin() override { begin_after(stagger::detail::any_failures); }
  std::uint32_t begin_part(std::uint32_t failures) override {
    begin_after(failures);
    if (failures != stagger::detail::any_failures) return failures;
    auto lock = session_.lock();
    session_.require_alive();
    told_ = false;
    session_.send({.kind = MessageKind::who});
    session_.wait(lock, "said whether its stream begins", [this] { return told_; });
    return failures_;
  }

  void read(std::size_t l, std::byte* values) override { fetch(l, values); }
  void push(std::size_t l, std::byte const* values, bool last, ByteRange part = {}) override {
    MessageKind const whole = last ? MessageKind::last_push : MessageKind::push;
    MessageKind const of_part = part.first != 0 ? MessageKind::push_rest : MessageKind::push_late;
    send_push(layers_[l].is_whole(part) ? whole : of_part, l, part,
              [&](RemoteLayer& layer) { layer.write_push(values, part); });
  }
  void hand_over(std::size_t l, stagger::detail::ParameterBlock& values) override {
    send_push(MessageKind::push, l, {}, [&](RemoteLayer& layer) { layer.hand_over(values); });
  }
  void ask(std::size_t l, std::uint32_t rounds, ByteRange part = {}) override {
    bool const last = rounds == stagger::detail::all_rounds;
    MessageKind const whole = last ? MessageKind::ask_last : MessageKind::ask;
    MessageKind const of_part = part.first != 0 ? MessageKind::ask_rest : MessageKind::ask_late;
    send_ask(layers_[l].is_whole(part) ? whole : of_part, l, rounds, part);
  }
  void report(double loss) override {
    say({.kind = MessageKind::report, .number = std::bit_cast<std::uint64_t>(loss)});
  }
  void ask_late(std::uint32_t step) override {
    {
      auto const lock = session_.lock();
      choice_asked_ = true;
    }
    say({.kind = MessageKind::ask_choice, .rounds = step});
  }

  stagger::detail::VersionTag take(std::size_t l, std::uint32_t rounds, std::byte* values,
                                   ByteRange part = {}) override {
    RemoteLayer& layer = layers_[l];
    bool const whole = layer.is_whole(part);
    {
      auto const lock = session_.lock();
      require_stream();
      whole ? layer.take(rounds, exact_) : layer.take_part();
    }
    whole ? layer.copy_to(values) : layer.copy_part_to(values, part);
    return layer.contains(worker_);
  }

  stagger::detail::VersionTag take_over(std::size_t l, std::uint32_t,
                                        stagger::detail::ParameterBlock& values) override {
    auto const lock = session_.lock();
    require_stream();
    layers_[l].take_over(values);
    return layers_[l].contains(worker_);
  }

  void end(std::exception_ptr why) noexcept override {
    auto const lock = session_.lock();
    if (stream_.end(why != nullptr) && !session_.failure()) session_.offer(stream_.end_message());
  }

  [[nodiscard]] int worker() const noexcept override { return worker_; }
  [[nodiscard]] std::size_t workers() const noexcept override { return workers_; }
  [[nodiscard]] std::string waits_for() const override {
    auto lock = session_.lock();
    if (ask_who(lock)) return awaited_;
    return text(session_.name(), ", which does not answer");
  }

 private:
  static constexpr std::size_t most_words = 1U << 16U;  // bytes

  [[gnu::cold]] void connect() {
    {
      auto const lock = session_.lock();
      stream_.end(true);
      for (RemoteLayer& layer : layers_) layer.stop_waiting();
    }
    session_.connect(*this, {.kind = MessageKind::join, .bytes = request_.size()},
                     4 * layers_.size() + 16);
  }

  void begin_after(std::uint32_t failures) {
    auto lock = session_.lock();
    while (session_.mending() && !session_.failure())
      session_.wait_for(lock, session_.deadline_s(), [this] { return !session_.mending(); });
    if (session_.failure()) {
      lock.unlock();
      connect();
      lock.lock();
    }
    for (RemoteLayer& layer : layers_) layer.begin();
    session_.send(lock, stream_.begin(failures));
  }

  // Called by the transport.

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
      case joined:
        return factor_buffer(message);
      case newest:
      case answer:
      case last_answer:
        return layer_of(message).payload_buffer(message, stream_.is(message));
      case contents:
        return layer_of(message).contents_buffer(message);
      case choice:
      case scores:
        return choice_buffer(message);
      default:
        if (message.bytes != 0) refuse_message(message, "should have no payload");
        return {};
    }
  }

  void received(Message const& message) override {
    using enum MessageKind;
    auto lock = session_.lock();
    switch (message.kind) {
      case wanted:
        if (session_.knows_server()) return end_all(another_server());
        for (std::size_t l = 0; l < layers_.size(); ++l)
          session_.send(of(l, {.kind = values, .bytes = layers_[l].bytes()}));
        return;
      case joined:
        note_workers(message);
        if (session_.joined()) return;  // what must be repeated is under way already
        if (!session_.join(message.number, message.rounds != 0)) return end_all(another_server());
        if (session_.resumes()) go_on();
        break;
      case refused:
        return end_all(raised(Errc::mismatch, words_));
      case newest:
        layer_of(message).newest(message.number);
        stream_.newest(message);
        break;
      case pushed:
        layer_of(message).acknowledge(message);
        break;
      case answer:
      case last_answer:
        return arrive(message);
      case contents:
        if (stream_.is(message)) layer_of(message).contents_arrive();
        return;
      case choice:
      case scores:
        return choose(message);
      case lost:
        if (!stream_.is(message)) return;
        stream_.lose(raised(Errc::peer_failed, words_));
        if (listener_ != nullptr) listener_->lost(stream_.lost());
        break;
      case waits:
        if (message.stream != stream_.number()) return;  // it answers what an earlier stream asked
        awaited_ = words_;
        failures_ = message.rounds;
        told_ = true;
        break;
      default:
        refuse_message(message, "is not for a worker");
    }
    session_.notify(lock);
  }

  bool next(Message& message, std::span<std::byte const>& payload) override {
    auto const lock = session_.lock();
    if (!session_.next(message)) return false;
    payload = {};
    if (message.kind == MessageKind::join)
      payload = {request_.data(), request_.size()};
    else if (message.bytes != 0)
      payload = layers_[message.layer].payload(message);
    return true;
  }

  void gone(std::exception_ptr why) noexcept override {
    auto const lock = session_.lock();
    if (!stream_.running() || stream_.lost() || !session_.mend(why)) end_all(std::move(why));
  }
  void end_all(std::exception_ptr why) noexcept {
    if (session_.fail(std::move(why)) && stream_.running() && listener_ != nullptr)
      listener_->lost(session_.failure());
  }

  ByteWriter request_;
  std::string words_;           // the text of the last message that had one
  std::uint32_t failures_ = 0;  // as the server has answered `who`
};

}  // namespace stagger::collective::detail
