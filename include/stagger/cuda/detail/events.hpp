// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The events of a program: one for each time that a signal is given, in as many turns as
/// there are iterations in flight.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <stagger/cuda/detail/jobs.hpp>
#include <stagger/cuda/stream.hpp>
#include <stagger/program/program.hpp>

namespace stagger::cuda::detail {

/// Made with a program, recorded again in each iteration. A turn has its own, so that it can be
/// told how far an iteration is while the next one is enqueued already.
class Events {
 public:
  /// One event for each time that a signal is given: a taker waits for the time it needs, not for a
  /// later one. Behind them in a turn: one for each rank, and one for the end.
  [[gnu::cold]] void load(Program const& program, std::size_t turns) {
    ranks_ = program.ranks.size();
    std::vector<std::size_t> gives(program.signals.size());
    for (auto const& rank : program.ranks)
      for (auto const& in : rank.code)
        for (unsigned g = 0; g < in.gives; ++g) ++gives[in.give[g]];
    first_.assign(1, 0);
    for (std::size_t const count : gives) first_.push_back(first_.back() + count);
    of_turn_ = first_.back() + ranks_ + 1;
    table_.reserve(turns * of_turn_);
    issued_.assign(gives.size(), 0);
    begin(0);
  }

  void begin(std::size_t turn) noexcept {
    std::fill(issued_.begin(), issued_.end(), 0);
    base_ = turn * of_turn_;
  }

  /// Of the turn under way. Whether it was enqueued that often, not whether the device is there.
  [[nodiscard]] bool given(Wait const& wait) const noexcept {
    return issued_[wait.signal] >= wait.count;
  }
  void give(Stream const& stream, std::uint32_t signal) {
    stream.record(table_[base_ + first_[signal] + issued_[signal]]);
    ++issued_[signal];
  }
  void await(Stream const& stream, Wait const& wait) const {
    stream.wait(table_[base_ + first_[wait.signal] + wait.count - 1]);
  }
  [[nodiscard]] Event& fence(std::size_t rank) noexcept {
    return table_[base_ + first_.back() + rank];
  }
  [[nodiscard]] Event& end(std::size_t turn) noexcept {
    return table_[turn * of_turn_ + first_.back() + ranks_];
  }

  /// How far the device is in a turn, by the events of each rank in the order of its program.
  [[gnu::cold]] void look(Program const& program, std::size_t turn, Jobs& jobs) const {
    std::size_t const base = turn * of_turn_;
    for (std::size_t r = 0; r < program.ranks.size(); ++r) {
      auto const& code = program.ranks[r].code;
      std::vector<std::size_t> given(issued_.size());
      for (std::size_t i = 0; i < code.size(); ++i)
        for (unsigned g = 0; g < code[i].gives; ++g) {
          std::size_t const signal = code[i].give[g];
          std::size_t const event = given[signal]++;
          bool const recorded = base != base_ || event < issued_[signal];
          if (!recorded || !table_[base + first_[signal] + event].done()) {
            i = code.size() - 1;
            break;
          }
          jobs.finished(r, i + 1);
        }
    }
  }

 private:
  EventTable table_;                   // [turns][of_turn_]
  std::vector<std::size_t> first_;     // [signals + 1] within a turn
  std::vector<std::uint32_t> issued_;  // [signals] in the turn under way
  std::size_t ranks_ = 0;
  std::size_t of_turn_ = 0;
  std::size_t base_ = 0;  // of the turn under way
};

}  // namespace stagger::cuda::detail
