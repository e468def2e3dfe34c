// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A worker's way to the parameter server that it trains with: what the engine calls, and
///         what it is told.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>

#include <stagger/core/error.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/model/exchange.hpp>
#include <stagger/parameters/late_set.hpp>
#include <stagger/parameters/layer_parameters.hpp>
#include <stagger/parameters/optimizer_call.hpp>
#include <stagger/parameters/version_tag.hpp>

namespace stagger::detail {

struct LateCalls;

/// What all workers of a server must agree on.
struct WorkerRules {
  int push_minibatches = 1;  ///< in one push
  staleness::Pushes pushes = staleness::Pushes::changes;
  staleness::Adds adds = staleness::Adds::in_worker_order;
  std::size_t ahead = 1;               ///< pushes that it may have made beyond the slowest worker's
  OptimizerCall optimizer{};           ///< applied by the server to gradients
  std::shared_ptr<void const> kept{};  ///< what it points into
  int process = 0;    ///< which process of the server's this is, where a worker runs in several
  int processes = 1;  ///< that the worker runs in; each joins, and exchanges the layers it runs
  void const* clock = nullptr;        ///< whose virtual time the worker runs in; null: real time
  LateCalls const* late = nullptr;    ///< some layers are late, which the server chooses
  void const* late_policy = nullptr;  ///< for `late`
  bool in_parts = false;  ///< the server is one of several, each with some layers; workers choose
};

/// Who is told what a worker has asked for. Called by any thread, which holds the server's lock.
class ParameterListener {
 public:
  /// Snapshots of a layer with so many rounds are there. @param rounds  since the stream began
  virtual void arrived(std::size_t layer, std::uint32_t rounds) noexcept = 0;
  /// Likewise the one with all pushes of every worker.
  virtual void arrived_last(std::size_t layer) noexcept = 0;
  /// Of a link whose transfers take virtual time: one of a layer has arrived, a push with its
  /// number in the stream, or an answer with the rounds that were asked for.
  virtual void carried(std::size_t /*layer*/, bool /*push*/, std::uint32_t /*number*/,
                       double /*start_s*/, double /*end_s*/) {}
  /// Which layers are late in a step.
  virtual void late_layers(std::uint32_t /*step*/, LateSet const& /*late*/) noexcept {}
  /// Of a server that is one of several: by what they are chosen.
  /// @param scores  [layers] of those that it has
  virtual void late_scores(std::uint32_t /*step*/, std::span<double const> /*scores*/,
                           double /*loss*/) noexcept {}
  /// Another worker has failed: nothing will come.
  virtual void lost(std::exception_ptr why) noexcept = 0;

 protected:
  ~ParameterListener() = default;
};

/// One worker's link. Layers are those of the model, in its order. A round is one push of every
/// worker; rounds count from the beginning of the stream.
class ParameterLink {
 public:
  virtual ~ParameterLink() = default;

  /// Once, before anything else: names the parameters, whose values the server takes over from the
  /// worker that comes first. `listener` outlives `leave`.
  /// @throws Error  bad_configuration for a worker whose model or rules differ from those of others
  virtual void join(std::span<LayerParameters const> layers, WorkerRules const& rules,
                    ParameterListener& listener) = 0;
  virtual void leave() noexcept = 0;

  /// A stream begins.
  virtual void begin() = 0;
  /// The newest values of a layer. @param values  [bytes_of_values()]
  virtual void read(std::size_t layer, std::byte* values) = 0;
  /// @param values  [bytes_of_values()] what the rules say
  /// @param last    of the stream
  virtual void push(std::size_t layer, std::byte const* values, bool last) = 0;
  /// Of a layer whose first bytes are late: the others, then those, with which it is pushed. What is
  /// late travels behind what this worker has pushed before.
  /// @param part  of the values: from its beginning, what is late; else from somewhere to its end
  virtual void push_part(std::size_t /*layer*/, std::byte const* /*values*/, ByteRange /*part*/) {
    refuse_late();
  }
  /// Likewise asks to be told of a part of a snapshot, and copies it.
  virtual void ask_part(std::size_t /*layer*/, std::uint32_t /*rounds*/, ByteRange /*part*/) {
    refuse_late();
  }
  virtual void take_part(std::size_t /*layer*/, std::uint32_t /*rounds*/, std::byte* /*values*/,
                         ByteRange /*part*/) {
    refuse_late();
  }
  /// The loss of a step, by which the server may choose what is late in the next.
  virtual void report(double /*loss*/) { refuse_late(); }
  /// Asks to be told which layers are late in a step, counted from the beginning.
  virtual void ask_late(std::uint32_t /*step*/) { refuse_late(); }
  /// Asks to be told of a snapshot; one request for each layer at a time.
  virtual void ask(std::size_t layer, std::uint32_t rounds) = 0;
  /// Likewise of the one that contains all pushes of every worker's stream.
  virtual void ask_last(std::size_t layer) = 0;
  /// Copies weights that have arrived: where pushes are added in the order of workers, precisely so
  /// many rounds; else the newest there are. Later ones have as many or more.
  /// @return  what they contain
  virtual VersionTag take(std::size_t layer, std::uint32_t rounds, std::byte* values) = 0;
  virtual void take_last(std::size_t layer, std::byte* values) = 0;
  /// The stream has ended. @param why  it failed, or null; what was pushed stays
  virtual void end(std::exception_ptr why) noexcept = 0;
  /// How much travels of a part of a layer, in bytes.
  [[nodiscard]] virtual std::size_t carried_bytes(LayerParameters const& /*layer*/,
                                                  ByteRange part) const {
    return part.size();
  }
  /// Before `join`: the worker runs in so many processes, each with a link of this kind that joins
  /// with the whole model and exchanges the layers that the process runs.
  /// @return whether that is possible
  [[nodiscard]] virtual bool span(int /*processes*/) noexcept { return false; }
  /// Of one that spans processes: its number among the server's workers.
  [[nodiscard]] virtual int worker() const noexcept { return -1; }
  /// Whom this worker waits for, in words; empty if all that it has asked for is on its way.
  [[nodiscard]] virtual std::string waits_for() const = 0;

 protected:
  [[noreturn]] [[gnu::cold]] static void refuse_late() {
    raise(Errc::bad_configuration,
          "this parameter server cannot choose layers that are late; use a "
          "collective::ParameterServer in this process, or another staleness model");
  }
};

}  // namespace stagger::detail
