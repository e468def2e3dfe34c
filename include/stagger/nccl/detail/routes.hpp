// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What goes from place to place in a program, and one order for all of it.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <stagger/program/play.hpp>
#include <stagger/program/program.hpp>

namespace stagger::nccl::detail {

/// The values of one edge in one direction, between two places; or rows of them.
struct Lane {
  static constexpr std::size_t whole = static_cast<std::size_t>(-1);
  std::size_t cell = 0;  // behind which the edge is
  bool forward = true;
  std::size_t giver = 0;  // ranks
  std::size_t taker = 0;
  std::size_t channel = 0;
  std::size_t slots = 0;
  std::size_t first_event = 0;  // of both ends' tables: slot is read, slot may be written
  std::size_t cut = whole;      // of the program, that the rows cross
};

/// The gradients of one owner of a stage on their way to the first, and the values back.
struct Share {
  std::size_t cell = 0;   // of the owner
  std::size_t giver = 0;  // ranks: the owner's and the first one's
  std::size_t taker = 0;
  std::size_t channel = 0;  // from giver to taker
  std::size_t back = 0;     // from taker to giver
  std::size_t event = 0;    // of both ends' tables: gradients are read, have arrived
};

/// One instruction of one rank.
struct Turn {
  std::uint32_t rank = 0;
  std::uint32_t index = 0;
};

/// Where one process meets another, or one GPU another: `channels`, from place to place. In the
/// order of `turns` every instruction stands behind all that it waits for; a message stands right
/// behind the instruction that makes it. So if each place issues what it takes part in by that
/// order, whatever is not done waits only for what stands before it, and there is no deadlock, even
/// if every message holds up the next one of its channel until both ends have come to it.
///
/// Ranks take turns as if every instruction took the same time.
class Routes {
 public:
  static constexpr std::uint32_t none = 0xffffffffU;

  Routes() = default;
  /// @param place  [ranks]
  [[gnu::cold]] Routes(Program const& program, std::vector<int> const& place) : place_(place) {
    put_in_order(program);
    lane_of_.assign(program.signals.size(), none);
    into_.assign(program.cells.size(), none);
    back_to_ = into_;
    for (std::size_t c = 0; c < program.cells.size(); ++c) {
      if (program.cells[c].after == Cell::none) continue;
      auto const d = static_cast<std::size_t>(program.cells[c].after);
      add_lane(program, c, true, c, d, program.cells[d].x_slots);
      if (program.training) add_lane(program, c, false, d, c, program.cells[c].dy_slots);
    }
    for (std::size_t k = 0; k < program.cuts.size(); ++k) {
      Cut const cut = program.cuts[k];
      add_lane(program, cut.from, true, cut.from, cut.to, program.cells[cut.from].y_slots, k);
      if (program.training)
        add_lane(program, cut.from, false, cut.to, cut.from, program.cells[cut.to].dx_slots, k);
    }
    if (program.training && program.flushes && program.groups.empty()) add_shares(program);
    find_ends(program);
  }

  [[nodiscard]] std::vector<Turn> const& turns() const noexcept { return turns_; }
  [[nodiscard]] std::vector<Lane> const& lanes() const noexcept { return lanes_; }
  [[nodiscard]] std::vector<Share> const& shares() const noexcept { return shares_; }
  /// Pairs of places: from, to.
  [[nodiscard]] std::vector<std::pair<int, int>> const& channels() const noexcept {
    return channels_;
  }
  /// The lane whose messages a signal announces; none: it announces none, or within a place.
  [[nodiscard]] std::uint32_t lane_of(std::size_t signal) const noexcept {
    return lane_of_[signal];
  }
  /// How many events lanes and shares need in the table of each place.
  [[nodiscard]] std::size_t events() const noexcept { return events_; }
  /// Lanes into, and out of, a cell whose slots an action frees.
  [[nodiscard]] std::uint32_t lane_into(std::size_t cell) const noexcept { return into_[cell]; }
  [[nodiscard]] std::uint32_t lane_back_to(std::size_t cell) const noexcept {
    return back_to_[cell];
  }
  /// Whether an instruction is the last of its microbatch at its cell.
  [[nodiscard]] bool ends_flight(std::size_t rank, std::size_t index) const noexcept {
    return ends_[rank][index];
  }

 private:
  [[nodiscard]] bool apart(Program const& program, std::size_t c, std::size_t d) const {
    return place_[static_cast<std::size_t>(program.cells[c].rank)] !=
           place_[static_cast<std::size_t>(program.cells[d].rank)];
  }

  std::size_t channel(std::size_t giver, std::size_t taker) {
    std::pair<int, int> const ends(place_[giver], place_[taker]);
    for (std::size_t i = 0; i < channels_.size(); ++i)
      if (channels_[i] == ends) return i;
    channels_.push_back(ends);
    return channels_.size() - 1;
  }

  void add_lane(Program const& program, std::size_t edge, bool forward, std::size_t from,
                std::size_t to, std::size_t slots, std::size_t cut = Lane::whole) {
    if (!apart(program, from, to)) return;
    auto const number = static_cast<std::uint32_t>(lanes_.size());
    auto const rank = [&](std::size_t c) {
      return static_cast<std::size_t>(program.cells[c].rank);
    };
    Lane lane{edge,  forward, rank(from), rank(to), channel(rank(from), rank(to)),
              slots, events_, cut};
    lanes_.push_back(lane);
    events_ += slots;
    lane_of_[signal_of(cut == Lane::whole ? edge : program.cells.size() + cut,
                       forward ? EdgeSignal::forward_full : EdgeSignal::backward_full)] = number;
    if (cut == Lane::whole) (forward ? into_[to] : back_to_[to]) = number;
  }

  void add_shares(Program const& program) {
    for (std::size_t c = 0, first = 0; c < program.cells.size(); ++c) {
      if (program.cells[c].stage != program.cells[first].stage) first = c;
      if (c == first || !apart(program, c, first)) continue;
      auto const giver = static_cast<std::size_t>(program.cells[c].rank);
      auto const taker = static_cast<std::size_t>(program.cells[first].rank);
      shares_.push_back({c, giver, taker, channel(giver, taker), channel(taker, giver), events_++});
    }
  }

  [[gnu::cold]] void put_in_order(Program const& program) {
    // In rounds: each rank carries out one instruction, if what it waits for was given before.
    std::vector<std::uint32_t> next(program.ranks.size());                  // round of each rank
    std::vector<std::vector<std::uint32_t>> given(program.signals.size());  // likewise of gives
    std::vector<std::vector<Turn>> rounds;
    for (Player player(program); player.next();) {
      std::size_t const r = player.rank();
      Instruction const& in = player.instruction();
      for (Wait const& wait : player.waits())
        if (wait.count != 0) next[r] = std::max(next[r], given[wait.signal][wait.count - 1]);
      if (rounds.size() <= next[r]) rounds.resize(next[r] + 1);
      rounds[next[r]++].push_back(
          {static_cast<std::uint32_t>(r), static_cast<std::uint32_t>(player.index())});
      for (unsigned g = 0; g < in.gives; ++g) given[in.give[g]].push_back(next[r]);
    }
    for (auto& round : rounds) {
      std::sort(round.begin(), round.end(), [](Turn a, Turn b) { return a.rank < b.rank; });
      turns_.insert(turns_.end(), round.begin(), round.end());
    }
  }

  [[gnu::cold]] void find_ends(Program const& program) {
    auto const units = static_cast<std::size_t>(program.microbatches);
    std::vector<bool> seen(program.cells.size() * units);
    for (auto const& rank : program.ranks) {
      ends_.emplace_back(rank.code.size());
      for (std::size_t i = rank.code.size(); i-- > 0;) {
        auto const& in = rank.code[i];
        if ((!computes(in.op) && !computes_part(in.op)) || seen[in.cell * units + in.microbatch])
          continue;
        ends_.back()[i] = seen[in.cell * units + in.microbatch] = true;
      }
    }
  }

  std::vector<int> place_;  // [ranks]
  std::vector<Turn> turns_;
  std::vector<Lane> lanes_;
  std::vector<Share> shares_;
  std::vector<std::pair<int, int>> channels_;
  std::vector<std::uint32_t> lane_of_;         // [signals]
  std::vector<std::uint32_t> into_, back_to_;  // [cells]
  std::vector<std::vector<bool>> ends_;        // [ranks][instructions]
  std::size_t events_ = 0;
};

}  // namespace stagger::nccl::detail
