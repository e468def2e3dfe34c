// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The server's end of a connection with a worker in another process, over any transport.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <utility>

#include <stagger/collective/detail/joining_worker.hpp>
#include <stagger/collective/detail/server_in_process.hpp>
#include <stagger/collective/detail/worker_outbox.hpp>
#include <stagger/collective/messages.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/list.hpp>
#include <stagger/parameters/parameter_memory.hpp>

namespace stagger::collective::detail {

using stagger::detail::ParameterBlock;

/// Refuses a message about a part of a layer that cannot be.
/// @param all      bytes of the layer
/// @throws Error  bad_data
inline void require_part(Message const& message, std::size_t all) {
  bool const asks = asks_part(message.kind);
  std::uint64_t const bytes = asks ? message.number : message.bytes;
  bool const whole =
      message.kind == MessageKind::push_late || message.kind == MessageKind::ask_late;
  if (bytes == 0 || bytes % 8 != 0 || bytes > all || (bytes == all && !whole))
    refuse_message(message, "names no part of the layer");
  if (asks && message.bytes != 0) refuse_message(message, "should have no payload");
}

/// The part of a layer that a message asks for. @param all  bytes of the layer
[[nodiscard]] inline ByteRange part_asked(Message const& message, std::size_t all) noexcept {
  if (!asks_part(message.kind)) return {0, all};
  bool const rest = message.kind == MessageKind::ask_rest;
  return {rest ? message.number : 0, rest ? all : message.number};
}

/// Turns messages of a worker into calls of the server, and the server's answers into messages. A
/// worker whose connection ends before it has left has failed.
class ServerConnection final : public MessageEnd {
 public:
  /// @param rules  must outlive this object
  ServerConnection(std::shared_ptr<ServerInProcess> server, RemoteRules const& rules)
      : server_(std::move(server)), rules_(rules), joining_(std::make_unique<JoiningWorker>()) {}
  ServerConnection(ServerConnection const&) = delete;
  ServerConnection& operator=(ServerConnection const&) = delete;
  ~ServerConnection() { gone(nullptr); }

  /// Sets the transport; called once, before anything else.
  void carried_by(Transport& transport) noexcept { outbox_.carried_by(transport); }
  /// Whether the worker's request to join has been read.
  [[nodiscard]] bool identified() const noexcept {
    return joining_ == nullptr || joining_->identified();
  }
  [[nodiscard]] bool joined() const noexcept { return joined_; }
  /// Whether its first values are awaited.
  [[nodiscard]] bool gives() const noexcept { return joining_ != nullptr && joining_->gives(); }
  /// Called several times a second by the thread that calls the functions below.
  /// @return whether there is something to say to a worker that waits until it can join
  bool tick() noexcept { return joining_ != nullptr && joining_->remind(); }

  std::span<std::byte> payload_buffer(Message const& message) override {
    using enum MessageKind;
    finite_bytes_ = 0;
    if (joining_ != nullptr) return joining_->payload_buffer(message);
    if (!joined_ || message.kind == join || message.kind == values)
      refuse_message(message, "is not allowed at this point of the protocol");
    if (is_of_late_worker(message.kind) && !late_)
      refuse_message(message, "is of a worker whose layers may be late");
    if (is_of_layer(message.kind) && message.layer >= sizes_.size())
      refuse_message(message, "names no layer");
    bool const pushes = message.kind == push || message.kind == last_push;
    if (asks_part(message.kind) || pushes_part(message.kind)) {
      std::size_t const all = sizes_[message.layer];
      require_part(message, all);
      return received_.span().subspan(message.kind == push_rest ? all - message.bytes : 0,
                                      message.bytes);
    }
    std::size_t const bytes = pushes ? sizes_[message.layer] : 0;
    if (message.bytes != bytes) refuse(message, "should have ", bytes, " bytes");
    return received_.span().first(message.bytes);
  }
  void part_received(Message const& message, ByteRange part) override {
    using enum MessageKind;
    if ((message.kind != push && message.kind != last_push) || finite_bytes_ != part.first) return;
    if (server_->all_finite(message.layer, received_.data(), part)) finite_bytes_ = part.last;
  }
  void received(Message const& message) override {
    try {
      take(message);
    } catch (Error const& error) {
      if (error.code() != Errc::peer_failed) throw;  // otherwise the worker is told elsewhere
    }
  }

  bool next(Message& message, std::span<std::byte const>& payload) override {
    if (answers_.next(message, payload)) return true;
    if (joining_ != nullptr) joining_->require_place();
    if (joining_ != nullptr && joining_->waits()) go_in();
    while (outbox_.next(message, payload)) {
      bool const weights = message.kind == MessageKind::newest ||
                           message.kind == MessageKind::answer ||
                           message.kind == MessageKind::last_answer;
      if (weights && !fetch(message, payload)) continue;
      if (message.kind == MessageKind::joined)
        payload = std::as_bytes(std::span(&change_factor_, 1));
      message.bytes = payload.size();
      return true;
    }
    return false;
  }

  void gone(std::exception_ptr) noexcept override {
    if (std::exchange(joined_, false)) server_->leave(client_);
    if (joining_ != nullptr) joining_->leave();
  }
  /// Ends the connection because the server stops, not because the worker leaves.
  void lose() noexcept {
    if (std::exchange(joined_, false)) server_->lose(client_);
  }

 private:
  template <class... Reason>
  [[noreturn]] void refuse(Message const& message, Reason const&... reason) const {
    refuse_message(message, text("of worker ", worker_, " ", reason...).c_str());
  }
  [[noreturn]] void refuse_push(Message const& message, std::uint64_t made) const {
    refuse(message, "is push ", message.number, ", where push ", made + 1, " comes next");
  }

  void take(Message const& message) {
    using enum MessageKind;
    std::size_t const l = message.layer;
    if (is_of_stream(message.kind) && message.stream != stream_) {
      if (message.stream < stream_) return;  // that stream has ended
      refuse(message, "is of stream ", message.stream, ", where the last one to begin was ",
             stream_);
    }
    switch (message.kind) {
      case join:
        joining_->identify(rules_.model_bytes);
        server_->require_run(joining_->request().worker, joining_->request().run);
        server_->require_worker(joining_->request().worker, joining_->request().process);
        joining_->enter(server_->entrance(), outbox_.transport());
        return go_in();
      case values:
        if (joining_->add_values()) finish_join();
        return;
      case begin:
        if (message.stream <= stream_) return;
        begin_stream(message.stream);                             // before the server answers in it
        failures_ = server_->begin(client_, message.rounds - 1);  // 0: any_failures
        return;
      case resume:
        if (!server_->resumes())
          refuse_message(message, "asks for a stream that this server has not kept");
        begin_stream(message.stream);
        failures_ = message.rounds;
        if (auto const why = server_->resume(client_, failures_)) outbox_.lost(why);
        return;
      case read:
        return outbox_.say({.kind = newest, .layer = message.layer});
      case push:
      case last_push:
      case push_late:
        add(message);
        return outbox_.say({.kind = pushed, .layer = message.layer, .number = message.number});
      case ask:
      case ask_rest:
      case ask_late:
        answers_.ask(l, part_asked(message, sizes_[l]));
        return server_->ask(client_, l, {message.rounds, message.kind == ask_rest});
      case ask_last:
        return server_->ask(client_, l, {Ask::everything});
      case push_rest: {
        std::uint64_t const made = server_->pushes(client_, l);
        server_->require_active(client_);  // else others' pushes may be counted for it
        if (message.number != made + 1) refuse_push(message, made);
        return server_->push(client_, l, received_.data(), false,
                             {sizes_[l] - message.bytes, sizes_[l]}, true);
      }
      case report:
        return server_->report(client_, std::bit_cast<double>(message.number));
      case ask_choice:
        return server_->ask_late(client_, message.rounds);
      case end:
        return server_->end(client_, false);
      case fail:
        return server_->end(client_, true);
      case who:
        return outbox_.say_waits_for(server_->waits_for(client_), failures_);
      case leave:
        return gone(nullptr);
      default:
        refuse_message(message, "is not for a server");
    }
  }

  void begin_stream(std::uint32_t stream) noexcept {
    stream_ = stream;
    outbox_.begin(stream);
    answers_.drop();
  }
  /// A push that has been received before is acknowledged and not added again.
  void add(Message const& message) {
    std::size_t const l = message.layer;
    server_->require_active(client_);
    std::uint64_t const made = server_->pushes(client_, l);
    if (message.number > made + 1) refuse_push(message, made);
    if (message.number != made + 1) return;
    bool const last = message.kind == MessageKind::last_push;
    server_->push(client_, l, received_.data(), last, {0, message.bytes},
                  finite_bytes_ == message.bytes || server_->all_finite(l, received_.data()));
  }

  [[gnu::cold]] void go_in() {
    MessageKind const next = joining_->next(server_->wants_values());
    if (next == MessageKind::joined) return finish_join();
    if (next == MessageKind::wanted) outbox_.say({.kind = next});
    if (next == MessageKind::waits) outbox_.say_waits_for("a worker that gives first values", 0);
  }
  [[gnu::cold]] void finish_join() {
    JoinRequest const& request = joining_->request();
    WorkerRules const rules = joining_->rules(rules_);
    for (LayerParameters const& layer : request.layers) sizes_.push_back(layer.bytes_of_values());
    late_ = rules.late != nullptr;
    outbox_.reset(request.worker, sizes_.size(), late_, request.in_parts);
    worker_ = request.worker;
    client_ = server_->join(worker_, {request.layers.data(), request.layers.size()},
                            request.digests, rules, outbox_);
    joined_ = true;  // and its layers are as large as those of the others
    joining_ = nullptr;
    or_no_memory(worker_, [&] {
      answers_.reset(sizes_, rules.adds, server_->workers());
      received_.make(nullptr, answers_.values().size());
    });
    change_factor_ = server_->layers().record().change_factor(worker_);
    outbox_.say({.kind = MessageKind::joined,
                 .layer = static_cast<std::uint32_t>(server_->workers()),
                 .rounds = server_->resumes() ? 1U : 0U,
                 .number = server_->layers().record().run});
  }

  /// Fills in the values of an answer, or puts before it what they contain.
  /// @return false if the stream has ended meanwhile, or has not begun
  bool fetch(Message& message, std::span<std::byte const>& payload) {
    std::size_t const l = message.layer;
    bool const answers = message.kind == MessageKind::answer;
    ByteRange const part = answers ? answers_.asked(l) : ByteRange{0, sizes_[l]};
    std::byte* const values = answers_.values().data();
    payload = {values + part.first, part.size()};
    try {
      if (message.kind == MessageKind::newest) {
        if (server_->returns(client_)) return outbox_.hold(message), false;
        server_->read(client_, l, values);
        message.number = server_->pushes(client_, l);
        message.rounds = failures_;
      } else {
        std::uint32_t const rounds = answers ? message.rounds : Ask::everything;
        server_->take(client_, l, rounds, values, part, answers_.contents());
      }
    } catch (Error const& error) {
      if (error.code() != Errc::peer_failed) throw;
      return false;
    }
    if (answers) answers_.precede(message, payload);
    return true;
  }

  std::shared_ptr<ServerInProcess> server_;
  RemoteRules const& rules_;
  std::unique_ptr<JoiningWorker> joining_;  // null once it has joined
  bool joined_ = false;                     // the worker has joined and not left
  int worker_ = 0;
  int client_ = 0;
  std::uint32_t stream_ = 0;      // the stream that the worker began last
  std::uint32_t failures_ = 0;    // earlier streams that failed
  bool late_ = false;             // layers may be late
  double change_factor_ = 1;      // of the worker
  List<std::size_t> sizes_;       // [layers] bytes of the values
  ParameterBlock received_;       // a push
  std::size_t finite_bytes_ = 0;  // how many of them are known to be finite
  WorkerAnswers answers_;
  WorkerOutbox outbox_{4};
};

}  // namespace stagger::collective::detail
