// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A worker in another process that has not joined the parameter server yet.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include <stagger/collective/detail/entrance.hpp>
#include <stagger/collective/detail/join_request.hpp>
#include <stagger/collective/detail/same_workers.hpp>
#include <stagger/collective/handshake.hpp>
#include <stagger/collective/messages.hpp>
#include <stagger/core/error.hpp>
#include <stagger/parameters/layer_parameters.hpp>
#include <stagger/parameters/optimizer_call.hpp>
#include <stagger/parameters/parameter_link.hpp>
#include <stagger/parameters/parameter_memory.hpp>

namespace stagger::collective::detail {

/// What a server knows of workers in other processes before they join.
struct RemoteRules {
  /// The optimizer of the server's program, since no code comes over a connection.
  stagger::detail::OptimizerCall optimizer{};
  std::shared_ptr<void const> kept{};  ///< what `optimizer` points into
  std::uint64_t model_bytes = 0;       ///< most bytes that the values of all layers may have
  /// The server's functions for choosing late layers; null: no layer is late.
  stagger::detail::LateCalls const* late = nullptr;
  void const* late_policy = nullptr;
};

/// @param of    the optimizer's functions, its type erased
/// @param late  the staleness model's functions for late layers, or null
template <class O, class S>
[[nodiscard]] [[gnu::cold]] RemoteRules remote_rules(O const& optimizer, S const& model,
                                                     stagger::detail::OptimizerCall (*of)(O const&),
                                                     stagger::detail::LateCalls const* late) {
  struct Both {
    O optimizer;
    S model;
  };
  auto const kept = std::make_shared<Both const>(Both{optimizer, model});
  return {
      .optimizer = of(kept->optimizer), .kept = kept, .late = late, .late_policy = &kept->model};
}

/// The result of `allocate`, which makes memory for a worker in another process.
/// @throws Error  bad_data where there is not as much
template <class Allocate> [[gnu::cold]] decltype(auto) or_no_memory(int worker, Allocate allocate) {
  try {
    return allocate();
  } catch (std::bad_alloc const&) {
    raise(Errc::bad_data, "the parameter server has no memory for the layers of worker ", worker,
          "; check how large its model is, or run the server where there is more memory");
  }
}

/// Receives a worker's request to join, then the first values of its layers if the server wants
/// them. Memory for values is allocated when they come, so that a request alone costs none.
class JoiningWorker {
 public:
  JoiningWorker() = default;
  JoiningWorker(JoiningWorker const&) = delete;
  JoiningWorker& operator=(JoiningWorker const&) = delete;
  ~JoiningWorker() { leave(); }

  /// Whether the request has been read; only first values may still be missing.
  [[nodiscard]] bool identified() const noexcept { return identified_; }
  /// Whether it has been asked for first values.
  [[nodiscard]] bool gives() const noexcept { return gives_; }
  /// Whether it waits until it can join, or is asked for them.
  [[nodiscard]] bool waits() const noexcept { return entrance_ != nullptr && !gives_; }
  [[nodiscard]] JoinRequest const& request() const noexcept { return request_; }

  /// Where the payload of a message goes.
  /// @throws Error  bad_data for a message that does not belong here in this phase
  [[nodiscard]] std::span<std::byte> payload_buffer(Message const& message) {
    if (message.kind != (gives_ ? MessageKind::values : MessageKind::join) || gives_ != identified_)
      refuse_message(message, "is not allowed at this point of the protocol");
    if (gives_) {
      if (message.layer != layers_here_ ||
          message.bytes != request_.layers[layers_here_].bytes_of_values())
        refuse_message(message, "does not contain the first values of the next layer");
      LayerParameters& layer = request_.layers[layers_here_];
      return or_no_memory(request_.worker, [&] {
        return layer.exchange(0, [&](stagger::detail::ParameterBlock& values) {
          values.make_unwritten(message.bytes);
          return values.span();
        });
      });
    }
    if (message.bytes > JoinRequest::longest) refuse_message(message, "is too long");
    bytes_.make_unwritten(message.bytes);
    return bytes_.span();
  }

  /// The request has arrived.
  /// @param most_bytes  most bytes that the values of all layers may have
  /// @throws Error      bad_data for a request that no worker sends, or a model that is larger
  void identify(std::uint64_t most_bytes) {
    request_.read(bytes_.span(), most_bytes);
    bytes_ = {};
    identified_ = true;
  }
  /// It has identified itself, and its turn to join comes. @param transport  of its connection
  void enter(Entrance& entrance, Transport& transport) {
    entrance.enter(transport, request_.worker, request_.process);
    entrance_ = &entrance;
    transport_ = &transport;
  }
  /// @throws Error  mismatch if the same worker has come again over another connection
  void require_place() const {
    if (entrance_ != nullptr && entrance_->turn(*transport_) == Entrance::Turn::lost)
      raise(Errc::mismatch, "worker ", request_.worker,
            " has come again over another connection, and is let in there; give each worker a "
            "number of its own");
  }
  void leave() noexcept {
    if (auto* const left = std::exchange(entrance_, nullptr)) left->leave(*transport_);
  }
  /// It is to be told soon that it waits, if it does, so that it does not take the server for dead.
  /// @return whether it does
  bool remind() noexcept { return reminds_ = waits(); }
  /// What comes next. @param wanted  whether the server has no values yet
  /// @return joined: it can join; wanted: its first values are; waits: it is told that it waits; or
  ///         no kind
  [[nodiscard]] MessageKind next(bool wanted) {
    if (!wanted || request_.layers.size() == 0) return MessageKind::joined;
    gives_ = entrance_->turn(*transport_) == Entrance::Turn::first;
    if (gives_) return MessageKind::wanted;
    return std::exchange(reminds_, false) ? MessageKind::waits : MessageKind{};
  }
  /// Notes that the first values of one more layer have arrived.
  /// @return whether those of all layers have
  [[nodiscard]] bool add_values() noexcept { return ++layers_here_ == request_.layers.size(); }

  /// @throws Error  mismatch if the server takes steps with another optimizer than the worker's, or
  ///                chooses late layers by another staleness model
  [[gnu::cold]] [[nodiscard]] WorkerRules rules(RemoteRules const& server) const {
    WorkerRules rules = request_.rules.rules();
    rules.process = request_.process;
    rules.processes = request_.processes;
    rules.in_parts = request_.in_parts;
    if (!request_.rules.late.empty()) {
      if (rules.pushes != staleness::Pushes::gradients ||
          rules.adds != staleness::Adds::in_worker_order)
        raise(Errc::bad_data, "worker ", request_.worker, ", which pushes ", pushes_of(rules),
              ", cannot send layers late; run the same version of the program at both ends");
      require_same_fact(request_.worker, {"the staleness model", request_.rules.late},
                        "those who started the server",
                        {"", server.late == nullptr ? "none that sends layers late"
                                                    : server.late->words(server.late_policy)});
      rules.late = server.late;
      rules.late_policy = server.late_policy;
    }
    if (rules.pushes == staleness::Pushes::gradients) {  // otherwise workers take the steps
      require_same_fact(request_.worker, optimizer_fact(rules.optimizer),
                        "those who started the server", optimizer_fact(server.optimizer));
      rules.optimizer = server.optimizer;
      rules.kept = server.kept;
    }
    return rules;
  }

 private:
  bool identified_ = false;
  bool gives_ = false;
  bool reminds_ = false;
  Entrance* entrance_ = nullptr;  // null: it is not there
  Transport* transport_ = nullptr;
  std::size_t layers_here_ = 0;            // whose first values have arrived
  stagger::detail::ParameterBlock bytes_;  // the request, until it has been read
  JoinRequest request_;
};

}  // namespace stagger::collective::detail
