// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The reports of a process about its ranks: their progress, recorded spans, and results
///         for the caller of the step.

#include <cstdint>
#include <utility>

#include <stagger/core/list.hpp>
#include <stagger/core/portable.hpp>
#include <stagger/mpi/detail/channels.hpp>
#include <stagger/mpi/detail/message_codec.hpp>
#include <stagger/mpi/detail/watch.hpp>

namespace stagger::mpi::detail {

struct LocalRank {
  enum class State : std::uint8_t { runnable, blocked, done };
  stagger::detail::RankState* rank = nullptr;
  State state = State::done;
};

class Reports {
 public:
  Reports(MessageCodec& codec, Channels& channels) : codec_(codec), channels_(channels) {}

  /// If ranks vote to update, their votes also say that they have finished, and carry the results.
  void begin_step() noexcept { missing_ = codec_.commits() ? 0 : channels_.size() - 1; }
  /// Whether reports of other processes are still missing.
  [[nodiscard]] bool missing() const noexcept { return missing_ != 0; }

  /// If steps are recorded: sends the spans of a rank and of its reducer, which has finished too.
  void send_spans(stagger::detail::RankState const& rank, List<LocalRank> const& ranks,
                  Stamp const& stamp) {
    if (!codec_.machine.options().record) return;
    for (LocalRank const& entry : ranks)
      if (entry.rank == &rank || reducer_for(entry) == rank.number) send_spans(*entry.rank, stamp);
  }
  /// @param ranks  of this process, which have all finished
  void send_results(List<LocalRank> const& ranks, Stamp const& stamp) {
    auto message = channels_.blank();
    for (LocalRank const& entry : ranks) {
      if (codec_.machine.options().record) send_spans(*entry.rank, stamp);
      message->payload.add(static_cast<std::uint32_t>(entry.rank->number));
      codec_.results(Writing{message->payload}, entry.rank->number);
    }
    channels_.post_to_all(std::move(message), stamp, notice_of_results);
  }
  /// Sends the progress of this process's ranks, for the error messages of the others when nothing
  /// moves.
  void send_progress(List<LocalRank> const& ranks, Stamp const& stamp) {
    auto message = channels_.blank();
    for (LocalRank const& entry : ranks) Watch::write(message->payload, *entry.rank);
    channels_.post_to_all(std::move(message), stamp, notice_of_progress);
  }
  /// @param what  notice_of_spans or notice_of_results
  void take(std::uint32_t what, ByteReader& in) {
    while (in.left() != 0) {
      auto const rank = in.take<std::uint32_t>();
      if (what == notice_of_spans)
        codec_.spans(Reading{in}, rank);
      else
        codec_.results(Reading{in}, rank);
    }
    if (what == notice_of_results) --missing_;
  }

 private:
  [[nodiscard]] int reducer_for(LocalRank const& entry) const {
    return codec_.program().ranks[entry.rank->number].reducer_for;
  }
  void send_spans(stagger::detail::RankState const& rank, Stamp const& stamp) {
    auto message = channels_.blank();
    message->payload.add(static_cast<std::uint32_t>(rank.number));
    codec_.spans(Writing{message->payload}, rank.number);
    channels_.post_to_all(std::move(message), stamp, notice_of_spans);
  }

  MessageCodec& codec_;
  Channels& channels_;
  int missing_ = 0;  // processes that have not finished
};

}  // namespace stagger::mpi::detail
