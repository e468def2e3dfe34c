// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The processes to which the signals of a program are sent, and the pools of messages for
///         them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <stagger/mpi/detail/message_codec.hpp>
#include <stagger/mpi/detail/placement.hpp>

namespace stagger::mpi::detail {

class Routes {
 public:
  void find(MessageCodec const& codec, Placement const& placement) {
    auto const& program = codec.program();
    std::vector<std::vector<int>> receivers(program.signals.size());
    std::vector<std::size_t> given(program.signals.size());
    for (int r = 0; r < placement.ranks(); ++r) {
      int const process = placement.process_of(r);
      for (Wait const& wait : program.ranks[r].waits) {
        auto& known = receivers[wait.signal];
        int const sender = program.signals[wait.signal].sender;
        if (sender == SignalEnds::outside || placement.process_of(sender) == process) continue;
        if (std::find(known.begin(), known.end(), process) == known.end()) known.push_back(process);
      }
      if (process != placement.here()) continue;
      for (Instruction const& in : program.ranks[r].code)
        for (std::size_t g = 0; g < in.signal_count; ++g) ++given[in.signal[g]];
    }
    first_receiver_.assign(1, 0);
    receivers_.clear();
    first_pool_.assign(given.size(), 0);
    pools_.clear();
    for (std::uint32_t which = 0; which < given.size(); ++which) {
      receivers_.insert(receivers_.end(), receivers[which].begin(), receivers[which].end());
      first_receiver_.push_back(receivers_.size());
      if (given[which] == 0 || receivers[which].empty()) continue;
      first_pool_[which] = pools_.size() + 1;
      if (codec.carries_group(which))
        pools_.insert(pools_.end(), given[which], receivers[which].size());
      else
        pools_.push_back(receivers[which].size() * codec.edges.under_way(which, given[which]));
    }
  }

  /// The other processes whose ranks wait for a signal.
  [[nodiscard]] std::span<int const> receivers(std::uint32_t which) const noexcept {
    return std::span(receivers_)
        .subspan(first_receiver_[which], first_receiver_[which + 1U] - first_receiver_[which]);
  }
  /// The pool of messages that a signal of this process uses when it is given for the `time`th
  /// time, counted from 1. Groups of gradients differ in size, and so have pools of their own.
  [[nodiscard]] std::size_t pool(MessageCodec const& codec, std::uint32_t which,
                                 std::uint32_t time) const {
    return first_pool_[which] + (codec.carries_group(which) ? time - 1 : 0);
  }
  /// The most messages of pools 1, 2, ... that are in transit at a time.
  [[nodiscard]] std::vector<std::size_t> const& pools() const noexcept { return pools_; }

 private:
  std::vector<std::size_t> first_receiver_{};  // [signals + 1]
  std::vector<int> receivers_{};               // by signal
  std::vector<std::size_t> first_pool_{};      // [signals]
  std::vector<std::size_t> pools_{};
};

}  // namespace stagger::mpi::detail
