// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Parameters of which several processes update a part each: at the end of a step each
///         sends its part to the others.

#include <cstddef>
#include <utility>

#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/mpi/detail/channels.hpp>
#include <stagger/mpi/detail/held_parameters.hpp>
#include <stagger/mpi/detail/placement.hpp>

namespace stagger::mpi::detail {

/// One process's part in the end of a step in which each replica updates a part of its layers.
/// Parts of others stay in message buffers until it is agreed that all processes have all parts.
class ParameterExchange {
 public:
  /// @param placement  outlives this
  /// @param pool       of messages, for values
  void load(HeldParameters const& held, Placement const& placement, std::size_t pool) {
    placement_ = &placement;
    pool_ = pool;
    if (given_.size() == 0) given_ = FixedArray<Given>(placement.processes());
    for (int p = 0; p < placement.processes(); ++p)
      if (p != placement.here())
        given_[p].bytes = held.renewed_bytes(placement.runs(p), placement.runs_here());
  }
  void begin_step() noexcept {
    for (Given& given : given_) given.here = false;
  }

  /// Sends new values to the processes that have the same stages, and a message without values to
  /// the others.
  /// @return what is sent to the former
  TrafficCount send(HeldParameters const& held, Channels& channels, Stamp const& stamp) const {
    TrafficCount sent;
    held.clear_gradients_of(placement_->runs_here());
    for (int p = 0; p < placement_->processes(); ++p) {
      if (p == placement_->here()) continue;
      auto message = channels.blank(pool_);
      held.values(Writing{message->payload}, placement_->runs_here(), placement_->runs(p));
      std::size_t const bytes = message->payload.size();
      if (bytes != 0) sent += {1, bytes};
      channels.post(std::move(message), stamp, notice_of_values, &p, 1);
    }
    return sent;
  }
  /// Keeps the part that a process has sent.
  void take(Channels& channels, ByteReader const& in, int peer) {
    Given& given = given_[peer];
    if (in.left() != given.bytes)
      raise(Errc::mismatch, "process ", peer, " hands over ", in.left(),
            " bytes of parameters instead of ", given.bytes,
            "; start all processes with the same program");
    given.here = given.bytes != 0;
    if (given.here) channels.keep_payload(peer, given.memory);
  }
  /// Called once all processes have all parts: copies them into the parameters.
  void commit(HeldParameters const& held, Channels& channels) noexcept {
    for (int p = 0; p < placement_->processes(); ++p) {
      Given& given = given_[p];
      if (!std::exchange(given.here, false)) continue;
      ByteReader in(given.memory.bytes.get(), given.bytes);
      held.values(Reading{in}, placement_->runs(p), placement_->runs_here());
      channels.return_payload(p, given.memory);
    }
  }

 private:
  /// The values that another process updates and this one has too.
  struct Given {
    std::size_t bytes = 0;
    bool here = false;  // in this step
    Payload memory{};
  };

  Placement const* placement_ = nullptr;
  std::size_t pool_ = 0;
  FixedArray<Given> given_{};  // [processes]
};

}  // namespace stagger::mpi::detail
