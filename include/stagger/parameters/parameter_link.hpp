// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The interface between a worker and its parameter server: what the engine calls, and the
///         listener through which it is notified.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>

#include <stagger/core/index_range.hpp>
#include <stagger/model/exchange.hpp>
#include <stagger/parameters/late_set.hpp>
#include <stagger/parameters/layer_parameters.hpp>
#include <stagger/parameters/optimizer_call.hpp>
#include <stagger/parameters/parameter_memory.hpp>
#include <stagger/parameters/version_tag.hpp>

namespace stagger::detail {

struct LateCalls;

constexpr std::uint32_t any_failures = 0xffffffff;

/// What all workers of a server must agree on.
struct WorkerRules {
  static constexpr std::uint32_t unlimited = 0xffffffff;
  int push_minibatches = 1;  ///< minibatches in one push
  staleness::Pushes pushes = staleness::Pushes::changes;
  staleness::Adds adds = staleness::Adds::in_worker_order;
  /// How many pushes a worker may be ahead of the slowest; `unlimited` where it only grows.
  std::uint32_t ahead = 1;
  OptimizerCall optimizer{};           ///< which the server applies to gradients
  std::shared_ptr<void const> kept{};  ///< what `optimizer` points into
  int process = 0;    ///< which process of the server this is, if a worker runs in several
  int processes = 1;  ///< processes that the worker runs in; each joins, and exchanges its layers
  void const* clock = nullptr;        ///< the virtual clock of the worker; null: real time
  LateCalls const* late = nullptr;    ///< null: no layer is late
  void const* late_policy = nullptr;  ///< for `late`
  std::string shared{};   ///< which layers groups of its ranks share, in words; empty: none
  bool in_parts = false;  ///< the server is one of several, each with some layers; workers choose
};

/// Is notified of what a worker has asked for. Called by any thread, which holds the server's lock.
class ParameterListener {
 public:
  /// Snapshots of a layer with at least this many rounds are available.
  /// @param rounds  since the stream began; all_rounds for the snapshot with all pushes
  virtual void arrived(std::size_t layer, std::uint32_t rounds) noexcept = 0;
  /// Only for a link whose transfers take virtual time: a transfer of a layer has ended, either a
  /// push with its number in the stream, or an answer with the rounds that were asked for last.
  virtual void carried(std::size_t /*layer*/, bool /*push*/, std::uint32_t /*number*/,
                       double /*start_s*/, double /*end_s*/) {}
  /// The late layers of a step have been chosen.
  virtual void late_layers(std::uint32_t /*step*/, LateSet const& /*late*/) noexcept {}
  /// From a server that is one of several: the scores by which late layers are chosen.
  /// @param scores  [layers] of the layers that this server keeps
  virtual void late_scores(std::uint32_t /*step*/, std::span<double const> /*scores*/,
                           double /*loss*/) noexcept {}
  /// A worker that waited to come back has done so: the stream that it has begun goes on.
  virtual void begins() noexcept {}
  /// Another worker has failed, so nothing that was asked for will arrive.
  virtual void lost(std::exception_ptr why) noexcept = 0;

 protected:
  ~ParameterListener() = default;
};

/// One worker's link to the server. Layers are numbered as in the model. A round is one push of
/// every worker; rounds are counted from the beginning of the stream.
class ParameterLink {
 public:
  virtual ~ParameterLink() = default;

  /// Called once, before anything else: describes the parameters, whose values the server takes
  /// over from the worker that joins first. `listener` must live until `leave` returns.
  /// @throws Error  bad_configuration for a worker whose model or rules differ from those of others
  virtual void join(std::span<LayerParameters const> layers, WorkerRules const& rules,
                    ParameterListener& listener) = 0;
  virtual void leave() noexcept = 0;
  /// By how much the worker multiplies its changes before it pushes them. Called after `join`.
  [[nodiscard]] virtual double change_factor() const { return 1; }

  /// Begins a stream.
  virtual void begin() = 0;
  /// Whether the stream has begun, so that weights can be read. A worker that comes back may have
  /// to wait until the others have ended theirs. `read` from a server in another process waits for
  /// that itself.
  [[nodiscard]] virtual bool begins() const noexcept { return true; }
  /// Begins a stream with a server that is one of several. A failure reaches them at different
  /// times; so that all of them end the same streams, each worker tells the others after how many
  /// failures its stream began with the first.
  /// @param failures  that number, or any_failures
  /// @return          that number
  virtual std::uint32_t begin_part(std::uint32_t /*failures*/) {
    begin();
    return 0;
  }
  /// Reads the newest values of a layer.
  /// @param values  [bytes_of_values()]
  virtual void read(std::size_t layer, std::byte* values) = 0;
  /// Pushes a layer. If its first bytes are late, it is pushed in two parts: first the other bytes,
  /// then those, which complete the push and are sent after everything that was pushed before.
  /// @param values  [bytes_of_values()] gradients, changes or weights, as the rules say
  /// @param last    of the stream
  /// @param part    of the values: from their beginning for the late part, otherwise up to their
  ///                end
  virtual void push(std::size_t layer, std::byte const* values, bool last, ByteRange part = {}) = 0;
  /// Likewise for a whole layer that is not the last of the stream, and saves a copy: the link may
  /// keep the memory, and leave other memory of the same size with any contents in its place.
  virtual void hand_over(std::size_t layer, ParameterBlock& values) {
    push(layer, values.data(), false);
  }
  /// Whether it is the worker's turn to push the layer, if pushes are added in turn. A link whose
  /// transfers take virtual time sends pushes only then.
  [[nodiscard]] virtual bool has_turn(std::size_t /*layer*/) const { return true; }
  /// Reports the loss of a step, from which the server may choose the late layers of the next.
  virtual void report(double loss) = 0;
  /// Asks which layers are late in a step; steps are counted from 0.
  virtual void ask_late(std::uint32_t step) = 0;
  /// Asks for a snapshot, or a part of one; the listener is notified. One request for each layer at
  /// a time, unless pushes are added on arrival: then it takes the place of one for fewer rounds
  /// that is under way, and the listener is notified once, by an answer with enough of them.
  /// @param rounds  that it must contain; all_rounds: all pushes of every worker's stream
  virtual void ask(std::size_t layer, std::uint32_t rounds, ByteRange part = {}) = 0;
  /// Copies weights that have arrived, or the part that was asked for. If pushes are added in the
  /// order of workers they contain precisely that many rounds; otherwise they are the newest, and
  /// contain no fewer rounds than those taken before.
  /// @return  what the weights contain, unless they are a part or the last ones
  virtual VersionTag take(std::size_t layer, std::uint32_t rounds, std::byte* values,
                          ByteRange part = {}) = 0;
  /// Likewise for a whole layer that has arrived since it was last taken, and saves a copy: the
  /// link may exchange the memory for that with the weights, which cannot be taken again then.
  virtual VersionTag take_over(std::size_t layer, std::uint32_t rounds, ParameterBlock& values) {
    return take(layer, rounds, values.data());
  }
  /// Ends the stream. What was pushed stays.
  /// @param why  the error by which it failed, or null
  virtual void end(std::exception_ptr why) noexcept = 0;
  /// How many bytes are sent for a part of a layer.
  [[nodiscard]] virtual std::size_t carried_bytes(LayerParameters const& /*layer*/,
                                                  ByteRange part) const {
    return part.size();
  }
  /// Called before `join` if the worker runs in several processes. Each has a link of this kind,
  /// which joins with the whole model and exchanges the layers that the process runs.
  /// @return whether the link supports that
  [[nodiscard]] virtual bool span(int /*processes*/) noexcept { return false; }
  /// The worker's number at the server.
  [[nodiscard]] virtual int worker() const noexcept = 0;
  /// How many workers the server has. Called after `join`.
  [[nodiscard]] virtual std::size_t workers() const noexcept = 0;
  /// The worker that this one waits for, as text; empty if everything that it has requested is in
  /// transit.
  [[nodiscard]] virtual std::string waits_for() const = 0;
};

}  // namespace stagger::detail
