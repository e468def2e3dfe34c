// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A worker in another process that has not joined the parameter server yet.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <stagger/collective/detail/join_request.hpp>
#include <stagger/collective/detail/same_workers.hpp>
#include <stagger/collective/handshake.hpp>
#include <stagger/collective/messages.hpp>
#include <stagger/core/list.hpp>
#include <stagger/parameters/layer_parameters.hpp>
#include <stagger/parameters/optimizer_call.hpp>
#include <stagger/parameters/parameter_link.hpp>

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

/// Receives a worker's request to join, then the first values of its layers if the server wants
/// them.
class JoiningWorker {
 public:
  /// Whether the request has been read; only first values may still be missing.
  [[nodiscard]] bool identified() const noexcept { return identified_; }
  [[nodiscard]] JoinRequest const& request() const noexcept { return request_; }

  /// Where the payload of a message goes.
  /// @throws Error  bad_data for a message that does not belong here in this phase
  [[nodiscard]] std::span<std::byte> payload_buffer(Message const& message) {
    if (message.kind != (identified_ ? MessageKind::values : MessageKind::join))
      refuse_message(message, "is not allowed at this point of the protocol");
    if (identified_) {
      if (message.layer != layers_here_ ||
          message.bytes != request_.layers[layers_here_].bytes_of_values())
        refuse_message(message, "does not contain the first values of the next layer");
      return request_.layers[layers_here_].values();
    }
    if (message.bytes > most_request) refuse_message(message, "is too long");
    bytes_.resize(message.bytes);
    return {bytes_.data(), bytes_.size()};
  }

  /// The request has arrived.
  /// @param most_bytes  most bytes that the values of all layers may have
  /// @throws Error      bad_data for a request that no worker sends, or a model that is larger
  void identify(std::uint64_t most_bytes) {
    request_.read({bytes_.data(), bytes_.size()}, most_bytes);
    bytes_ = {};
    identified_ = true;
  }
  /// Makes memory for first values.
  void hold_values() {
    for (LayerParameters& layer : request_.layers) layer.hold();
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
  static constexpr std::size_t most_request = std::size_t{1} << 22U;  // bytes

  bool identified_ = false;
  std::size_t layers_here_ = 0;  // whose first values have arrived
  List<std::byte> bytes_;        // the request, until it has been read
  JoinRequest request_;
};

}  // namespace stagger::collective::detail
