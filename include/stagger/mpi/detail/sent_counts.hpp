// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Counts of what the ranks of a process have sent to those of other processes, by rank and
///         kind.

#include <stagger/engine/machine.hpp>
#include <stagger/mpi/detail/channels.hpp>
#include <stagger/mpi/detail/message_codec.hpp>
#include <stagger/mpi/detail/placement.hpp>
#include <stagger/program/traffic.hpp>

namespace stagger::mpi::detail {

/// Counts every message that is posted to an outbox, for a machine.
class SentCounts {
 public:
  SentCounts(MessageCodec const& codec, Outbox const& outbox) : codec_(codec), outbox_(outbox) {
    codec.machine.traffic.by_back_end();
  }

  /// Counts what a rank sends; for a reducer, it counts for the rank whose gradients it adds up.
  void count(int rank, TrafficKind kind, TrafficCount const& sent) {
    auto const& program = codec_.program();
    counted_ += sent;
    codec_.machine.traffic.add(rank < program.computing ? rank : program.ranks[rank].reducer_for,
                               kind, sent);
  }
  /// Likewise a signal. @param to  [ranks] whether the receiver's process runs the rank
  void count(int rank, std::uint32_t signal, Instruction const& in, bool const* to,
             std::size_t bytes) {
    count(rank, codec_.kind(signal, in.group, to), {1, bytes});
  }
  /// Called after a step: messages of the process itself count for its first rank.
  void count_rest(Placement const& placement) {
    TrafficCount const all = outbox_.posted();
    if (!placement.empty()) count(placement.first_here(), TrafficKind::control, all - counted_);
  }

 private:
  MessageCodec const& codec_;
  Outbox const& outbox_;
  TrafficCount counted_{};
};

}  // namespace stagger::mpi::detail
