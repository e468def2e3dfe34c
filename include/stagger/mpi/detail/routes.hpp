// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The processes to which the signals of a program are sent, the pools of messages for
///         them, and counts of what is sent, by rank and kind.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <stagger/engine/machine.hpp>
#include <stagger/mpi/detail/channels.hpp>
#include <stagger/mpi/detail/edge_values.hpp>
#include <stagger/mpi/detail/placement.hpp>
#include <stagger/program/traffic.hpp>

namespace stagger::mpi::detail {

class Routes {
 public:
  void find(EdgeValues const& values, Placement const& placement) {
    auto const& program = values.program();
    program_ = &program;
    found_.clear();
    given_.assign(program.signals.size(), 0);
    for (int r = 0; r < placement.ranks(); ++r) {
      int const process = placement.process_of(r);
      for (Wait const& wait : program.ranks[r].waits) {
        int const sender = program.signals[wait.signal].sender;
        if (sender != SignalEnds::outside && placement.process_of(sender) != process)
          found_.emplace_back(wait.signal, process);
      }
      if (process != placement.here()) continue;
      for (Instruction const& in : program.ranks[r].code)
        for (std::size_t g = 0; g < in.signal_count; ++g) ++given_[in.signal[g]];
    }
    std::sort(found_.begin(), found_.end());
    found_.erase(std::unique(found_.begin(), found_.end()), found_.end());
    first_receiver_.assign(1, 0);
    receivers_.clear();
    first_pool_.assign(given_.size(), 0);
    pools_.clear();
    for (std::uint32_t which = 0; which < given_.size(); ++which) {
      while (receivers_.size() < found_.size() && found_[receivers_.size()].first == which)
        receivers_.push_back(found_[receivers_.size()].second);
      std::size_t const count = receivers_.size() - first_receiver_.back();
      first_receiver_.push_back(receivers_.size());
      if (given_[which] == 0 || count == 0) continue;
      first_pool_[which] = pools_.size() + 1;
      if (program.signals[which].of_group())
        pools_.insert(pools_.end(), given_[which], count);
      else
        pools_.push_back(count * values.under_way(which, given_[which]));
    }
  }
  /// Adds a pool. @return its number
  std::size_t add_pool(std::size_t count) {
    pools_.push_back(count);
    return pools_.size();
  }

  /// The other processes whose ranks wait for a signal.
  [[nodiscard]] std::span<int const> receivers(std::uint32_t which) const noexcept {
    return std::span(receivers_)
        .subspan(first_receiver_[which], first_receiver_[which + 1U] - first_receiver_[which]);
  }
  /// The pool of messages that a signal of this process uses when it is given for the `time`th
  /// time, counted from 1. Groups of gradients differ in size, and so have pools of their own.
  [[nodiscard]] std::size_t pool(std::uint32_t which, std::uint32_t time) const {
    return first_pool_[which] + (program_->signals[which].of_group() ? time - 1 : 0);
  }
  /// The most messages of pools 1, 2, ... that are in transit at a time.
  [[nodiscard]] std::vector<std::size_t> const& pools() const noexcept { return pools_; }

 private:
  Program const* program_ = nullptr;
  std::vector<std::pair<std::uint32_t, int>> found_{};  // signals, and processes that wait for them
  std::vector<std::size_t> given_{};                    // [signals] how often, by this process
  std::vector<std::size_t> first_receiver_{};           // [signals + 1]
  std::vector<int> receivers_{};                        // by signal
  std::vector<std::size_t> first_pool_{};               // [signals]
  std::vector<std::size_t> pools_{};
};

/// Counts every message that is posted to an outbox, for a machine.
class SentCounts {
 public:
  SentCounts(Machine& machine, Outbox const& outbox) : machine_(machine), outbox_(outbox) {
    machine.traffic.by_back_end();
  }

  /// Counts what a rank sends; for a reducer, it counts for the rank whose gradients it adds up.
  void count(int rank, TrafficKind kind, TrafficCount const& sent) {
    auto const& program = machine_.program();
    counted_ += sent;
    machine_.traffic.add(rank < program.computing ? rank : program.ranks[rank].reducer_for, kind,
                         sent);
  }
  /// Called after a step: messages of the process itself count for its first rank.
  void count_rest(Placement const& placement) {
    TrafficCount const all = outbox_.posted();
    if (!placement.empty()) count(placement.first_here(), TrafficKind::control, all - counted_);
  }

 private:
  Machine& machine_;
  Outbox const& outbox_;
  TrafficCount counted_{};
};

}  // namespace stagger::mpi::detail
