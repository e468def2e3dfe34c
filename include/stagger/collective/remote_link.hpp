// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A worker's link to a parameter server in another process, over any transport.

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include <stagger/collective/messages.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/core/portable.hpp>
#include <stagger/parameters/parameter_link.hpp>
#include <stagger/parameters/parameter_memory.hpp>

namespace stagger::collective::detail {

using stagger::detail::ParameterBlock;
using stagger::detail::ParameterLink;
using stagger::detail::ParameterListener;

/// Each layer has three blocks: the push that the server has not acknowledged yet, the values that
/// are in use, and those that are on their way. So a push returns while its bytes travel, and waits
/// only for the one before it; and an answer is told of when its values are here.
class RemoteLink final : public ParameterLink, private MessageEnd {
 public:
  RemoteLink(std::unique_ptr<Connector> connector, int worker)
      : connector_(std::move(connector)), worker_(worker) {}
  RemoteLink(RemoteLink const&) = delete;
  RemoteLink& operator=(RemoteLink const&) = delete;
  ~RemoteLink() override { leave(); }

  [[gnu::cold]] void join(std::span<LayerParameters const> layers, WorkerRules const& rules,
                          ParameterListener& listener) override {
    require_possible(rules);
    layers_ = FixedArray<Layer>(layers.size());
    for (std::size_t l = 0; l < layers.size(); ++l)
      for (ParameterBlock* const block : {&layers_[l].sent, &layers_[l].used, &layers_[l].coming})
        block->make(nullptr, layers[l].bytes_of_values());
    for (std::size_t l = 0; l < layers.size(); ++l)  // in case that the server wants them
      if (std::size_t const bytes = layers_[l].sent.size(); bytes != 0)
        std::memcpy(layers_[l].sent.data(), layers[l].values().data(), bytes);
    exact_ = rules.adds == staleness::Adds::in_worker_order;
    request_.clear();
    JoinRequest::write(request_, worker_, layers, rules);
    run_ = 0;
    stream_ = 0;
    connect();
    listener_ = &listener;
  }

  void leave() noexcept override {
    {
      std::lock_guard const lock(mutex_);
      listener_ = nullptr;
      if (joined_) offer({.kind = MessageKind::leave});
    }
    hang_up();
  }

  /// Where the connection is lost, makes another: the server may have been started again.
  void begin() override {
    std::unique_lock lock(mutex_);
    if (failure_) {
      lock.unlock();
      connect();
      lock.lock();
    }
    lost_ = nullptr;
    running_ = true;
    send({.kind = MessageKind::begin, .stream = ++stream_});
  }

  void read(std::size_t l, std::byte* values) override {
    std::unique_lock lock(mutex_);
    require_connected();
    Layer& layer = layers_[l];
    layer.state = State::reading;
    send({.kind = MessageKind::read, .layer = index(l), .stream = stream_});
    wait(lock, "sent its weights", [&] { return layer.state != State::reading; });
    std::swap(layer.used, layer.coming);
    layer.contained = 0;
    copy(values, layer.used);
  }

  void push(std::size_t l, std::byte const* values, bool last) override {
    Layer& layer = layers_[l];
    std::unique_lock lock(mutex_);
    wait(lock, "acknowledged the last push", [&] { return !layer.unacknowledged || lost_; });
    require_stream();
    lock.unlock();
    if (layer.sent.size() != 0) std::memcpy(layer.sent.data(), values, layer.sent.size());
    lock.lock();
    require_stream();
    layer.unacknowledged = true;
    send({.kind = last ? MessageKind::last_push : MessageKind::push,
          .layer = index(l),
          .stream = stream_,
          .number = ++layer.pushes,
          .bytes = layer.sent.size()});
  }

  void ask(std::size_t l, std::uint32_t rounds) override { ask(MessageKind::ask, l, rounds); }
  void ask_last(std::size_t l) override { ask(MessageKind::ask_last, l, 0); }

  std::uint32_t take(std::size_t l, std::uint32_t rounds, std::byte* values) override {
    Layer& layer = layers_[l];
    {
      std::lock_guard const lock(mutex_);
      require_stream();
      if (layer.state == State::arrived && (!exact_ || rounds >= layer.rounds)) take_over(layer);
    }
    copy(values, layer.used);
    return layer.contained;
  }
  void take_last(std::size_t l, std::byte* values) override {
    {
      std::lock_guard const lock(mutex_);
      require_stream();
      take_over(layers_[l]);
    }
    copy(values, layers_[l].used);
  }

  void end(std::exception_ptr why) noexcept override {
    std::lock_guard const lock(mutex_);
    if (!std::exchange(running_, false) || failure_) return;
    offer({.kind = why ? MessageKind::fail : MessageKind::end, .stream = stream_});
  }

  [[nodiscard]] std::string waits_for() const override {
    std::unique_lock lock(mutex_);
    told_ = false;
    offer({.kind = MessageKind::who});
    wait_for(lock, std::min(connector_->deadline_s(), answer_s), [this] { return told_; });
    if (told_) return answer_;
    return text("the parameter server at ", connector_->name(), ", which does not answer");
  }

 private:
  enum class State : std::uint8_t { idle, asked, reading, arrived };
  struct Layer {
    State state = State::idle;
    bool unacknowledged = false;
    std::uint32_t rounds = 0;            // asked for
    std::uint64_t pushes = 0;            // made
    std::uint32_t contained = 0;         // of the stream's pushes, in `used`
    std::uint32_t coming_contained = 0;  // likewise, in `coming`
    ParameterBlock sent{};
    ParameterBlock used{};
    ParameterBlock coming{};
  };

  static constexpr double answer_s = 2;                 // to a question that an error waits for
  static constexpr std::size_t most_words = 1U << 16U;  // bytes

  static std::uint32_t index(std::size_t l) { return static_cast<std::uint32_t>(l); }
  static void copy(std::byte* to, ParameterBlock const& from) {
    if (from.size() != 0) std::memcpy(to, from.data(), from.size());
  }
  static void take_over(Layer& layer) {
    std::swap(layer.used, layer.coming);
    layer.contained = layer.coming_contained;
    layer.state = State::idle;
  }

  /// Waits for a server that does not run yet, or has no room for a moment.
  [[gnu::cold]] void connect() {
    double const begun_s = connector_->now_s();
    for (;;) {
      hang_up();
      failure_ = nullptr;
      running_ = joined_ = false;
      queue_.reserve(4 * layers_.size() + 16);
      queue_.push({.kind = MessageKind::join, .bytes = request_.size()});
      try {
        auto made = connector_->connect(*this);
        std::unique_lock lock(mutex_);
        transport_ = std::move(made);
        transport_->wake();
        return wait(lock, "let the worker join", [this] { return joined_; });
      } catch (Error const& error) {
        hang_up();
        failure_ = std::current_exception();
        if (error.code() != Errc::io || connector_->now_s() - begun_s > connector_->deadline_s())
          throw;
      }
      std::unique_lock lock(mutex_);
      connector_->wait(lock, changed_, 0.05);
    }
  }
  /// After this the transport tells nothing any more.
  void hang_up() noexcept {
    if (transport_ != nullptr) transport_->close();
    transport_ = nullptr;
  }

  void require_possible(WorkerRules const& rules) const {
    if (transport_ != nullptr)
      raise(Errc::bad_configuration, "worker ", worker_,
            " trains already; give each pipeline a worker of its own");
    if (rules.clock != nullptr)
      raise(Errc::bad_configuration, "worker ", worker_,
            " runs in virtual time, which a server in another process does not share; give it "
            "host::Threads, or a server in this process");
    if (rules.late != nullptr) refuse_late();
    if (rules.optimizer.digest(rules.optimizer.optimizer) == 0)
      raise(Errc::bad_configuration, "worker ", worker_,
            " and the server cannot compare the numbers of this optimizer, whose members are of "
            "several types; give it 'auto fields() const { return std::tie(rate, warm_up); }' with "
            "all of them");
  }
  void require_connected() const {
    if (failure_) std::rethrow_exception(failure_);
  }
  void require_stream() const {
    require_connected();
    if (lost_) std::rethrow_exception(lost_);
  }

  /// @pre the lock is held, or nobody else knows of this yet
  /// @return whether there was room
  bool offer(Message const& message) const noexcept {
    bool const taken = queue_.push(message);
    if (transport_ != nullptr) transport_->wake();
    return taken;
  }
  void send(Message const& message) {
    if (!offer(message)) disconnect("takes no messages");
  }
  template <class Until>
  void wait_for(std::unique_lock<std::mutex>& lock, double most_s, Until until) const {
    double const limit_s = connector_->now_s() + most_s;
    for (double left_s = most_s; !until() && !failure_ && left_s > 0;
         left_s = limit_s - connector_->now_s())
      connector_->wait(lock, changed_, left_s);
  }
  template <class Until>
  void wait(std::unique_lock<std::mutex>& lock, char const* what, Until until) {
    wait_for(lock, connector_->deadline_s(), until);
    if (until()) return;
    require_connected();
    disconnect(text("has not ", what, " for ", connector_->deadline_s(), " s"));
  }
  [[noreturn]] [[gnu::cold]] void disconnect(std::string const& reason) {
    end_all(std::make_exception_ptr(
        Error(Errc::deadline, text("the parameter server at ", connector_->name(), " ", reason,
                                   "; see whether it runs, or raise the deadline"))));
    std::rethrow_exception(failure_);
  }

  void ask(MessageKind kind, std::size_t l, std::uint32_t rounds) {
    std::lock_guard const lock(mutex_);
    require_stream();
    layers_[l].state = State::asked;
    layers_[l].rounds = rounds;
    send({.kind = kind, .layer = index(l), .stream = stream_, .rounds = rounds});
  }

  // What the transport calls.

  std::span<std::byte> room(Message const& message) override {
    using enum MessageKind;
    std::lock_guard const lock(mutex_);
    switch (message.kind) {
      case refused:
      case lost:
      case waits:
        if (message.bytes > most_words) refuse_message(message, "is too long");
        words_.resize(message.bytes);
        return std::as_writable_bytes(std::span(words_));
      case newest:
      case answer:
      case last_answer: {
        if (message.layer >= layers_.size()) refuse_message(message, "names no layer");
        Layer& layer = layers_[message.layer];
        if (message.bytes != layer.coming.size())
          refuse_message(message, "has not the length of the layer");
        if (layer.state != State::reading &&
            (message.kind == newest || layer.state != State::asked))
          refuse_message(message, "was not asked for");
        return layer.coming.span();
      }
      default:
        if (message.bytes != 0) refuse_message(message, "has a payload that none belongs to");
        return {};
    }
  }

  void received(Message const& message) override {
    using enum MessageKind;
    std::lock_guard const lock(mutex_);
    switch (message.kind) {
      case wanted:
        if (run_ != 0) return end_all(another_server());
        for (std::size_t l = 0; l < layers_.size(); ++l)
          send({.kind = values, .layer = index(l), .bytes = layers_[l].sent.size()});
        return;
      case joined:
        if (run_ != 0 && run_ != message.number) return end_all(another_server());
        run_ = message.number;
        joined_ = true;
        break;
      case refused:
        end_all(std::make_exception_ptr(Error(Errc::mismatch, words_)));
        return;
      case newest: {
        Layer& layer = layers_[message.layer];
        layer.state = State::idle;
        layer.pushes = message.number;
        layer.unacknowledged = false;
        break;
      }
      case pushed:
        if (message.layer >= layers_.size() || message.number > layers_[message.layer].pushes)
          refuse_message(message, "acknowledges what was not pushed");
        if (message.number == layers_[message.layer].pushes)
          layers_[message.layer].unacknowledged = false;
        break;
      case answer:
      case last_answer:
        arrive(message);
        return;
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
    changed_.notify_all();
  }

  [[nodiscard]] std::exception_ptr another_server() const {
    return std::make_exception_ptr(Error(
        Errc::mismatch,
        text("the parameter server at ", connector_->name(),
             " has been started anew and does not know what it had; start all workers anew, too")));
  }

  void arrive(Message const& message) {
    Layer& layer = layers_[message.layer];
    if (layer.state != State::asked) return;  // of a stream that has ended
    layer.state = State::arrived;
    layer.coming_contained = static_cast<std::uint32_t>(message.number);
    if (!running_ || message.stream != stream_ || listener_ == nullptr) return;
    message.kind == MessageKind::answer ? listener_->arrived(message.layer, message.rounds)
                                        : listener_->arrived_last(message.layer);
  }

  bool next(Message& message, std::span<std::byte const>& payload) override {
    std::lock_guard const lock(mutex_);
    if (queue_.empty()) return false;
    message = queue_.pop();
    payload = {};
    if (message.kind == MessageKind::join)
      payload = {request_.data(), request_.size()};
    else if (message.bytes != 0)
      payload = layers_[message.layer].sent.span();
    return true;
  }

  void gone(std::exception_ptr why) noexcept override {
    std::lock_guard const lock(mutex_);
    if (!failure_) end_all(std::move(why));
  }
  void end_all(std::exception_ptr why) noexcept {
    failure_ = std::move(why);
    if (running_ && listener_ != nullptr) listener_->lost(failure_);
    changed_.notify_all();
  }

  std::unique_ptr<Connector> connector_;
  int worker_;
  bool exact_ = true;
  ParameterListener* listener_ = nullptr;
  ByteWriter request_;
  FixedArray<Layer> layers_;
  mutable std::mutex mutex_;  // of all below, and of layers but their blocks
  mutable std::condition_variable changed_;
  mutable MessageQueue queue_;
  mutable bool told_ = false;
  std::string words_;   // of the last message with words
  std::string answer_;  // to `who`
  std::exception_ptr failure_;
  std::exception_ptr lost_;
  std::uint64_t run_ = 0;  // of the server; 0: it has not joined yet
  std::uint32_t stream_ = 0;
  bool joined_ = false;
  bool running_ = false;
  std::unique_ptr<Transport> transport_;
};

}  // namespace stagger::collective::detail
