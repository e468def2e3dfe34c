// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The messages of a program from GPU to GPU, and the order in which everything is
///         enqueued.

#include <stagger/core/requirements.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <stagger/core/list.hpp>
#include <stagger/program/play.hpp>
#include <stagger/program/program.hpp>

namespace stagger::cuda::detail {

/// The values, or some rows of them, that one rank sends to another along an edge.
struct Route {
  static constexpr std::size_t whole = ~std::size_t{0};
  std::size_t cell = 0;  ///< at which the edge begins
  bool forward = true;
  std::size_t sender = 0;    ///< rank that sends
  std::size_t receiver = 0;  ///< rank that receives
  std::size_t channel = 0;
  std::size_t slots = 0;
  std::size_t first_slot = 0;    ///< slots are numbered over all routes
  std::size_t row_edge = whole;  ///< of the program, where only rows of a value travel
};

/// The route on which the gradients of another owner of a stage are sent to the first one, and the
/// values back.
struct OwnerRoute {
  std::size_t cell = 0;      ///< of the other owner
  std::size_t sender = 0;    ///< its rank
  std::size_t receiver = 0;  ///< the first owner's rank
  std::size_t channel = 0;   ///< from sender to receiver
  std::size_t back = 0;      ///< from receiver to sender
};

/// An instruction of a rank.
struct Issue {
  std::uint32_t rank = 0;
  std::uint32_t index = 0;
};

/// In `order`, every instruction comes after everything that it waits for, and a message right
/// after the instruction that makes it. If each place (a GPU) enqueues its part in this order,
/// unfinished work waits only for something earlier, so nothing deadlocks, even if a message delays
/// the next one of its channel until both ends have reached it.
struct Routes {
  static constexpr std::uint32_t none = 0xffffffffU;

  Routes() = default;
  /// @param places  [ranks]
  [[gnu::cold]] Routes(Program const& program, std::vector<int> const& places) {
    for (int const at : places) place_.push_back(at);
    put_in_order(program);
    route_of.assign(program.signals.size(), none);
    route_into.assign(program.cells.size(), none);
    route_back_to = route_into;
    for (std::size_t c = 0; c < program.cells.size(); ++c) {
      int const after = program.cells[c].after;
      if (after == Cell::none) continue;
      add_route(program, c, after, true, program.cells[after].x_slots);
      if (program.training) add_route(program, c, after, false, program.cells[c].dy_slots);
    }
    for (std::size_t k = 0; k < program.row_edges.size(); ++k) {
      RowEdge const& edge = program.row_edges[k];
      if (edge.forward.used)
        add_route(program, edge.from, edge.to, true, program.cells[edge.from].y_slots, k);
      if (program.training && edge.backward.used)
        add_route(program, edge.from, edge.to, false, program.cells[edge.to].dx_slots, k);
    }
    if (program.training && program.flushes && program.groups.empty()) add_owners(program);
    find_last_uses(program);
  }

  List<Issue> order;
  List<Route> all;
  List<OwnerRoute> owners;
  std::vector<std::pair<int, int>> channels;  ///< pairs of places: from, to
  std::size_t slots = 0;                      ///< the number of slots of all routes
  /// [signals] the route whose messages a signal announces; none if it announces none, or only
  /// within a place
  List<std::uint32_t> route_of;
  /// [cells] the routes to a cell whose slots an action frees
  List<std::uint32_t> route_into, route_back_to;
  /// [ranks][instructions] whether an instruction is the last of its microbatch at its cell
  List<std::vector<bool>> last_uses;

 private:
  static std::size_t rank_of(Program const& program, auto cell) noexcept {
    return static_cast<std::size_t>(program.cells[cell].rank);
  }

  std::size_t channel(std::size_t sender, std::size_t receiver) {
    std::pair<int, int> const ends(place_[sender], place_[receiver]);
    for (std::size_t i = 0; i < channels.size(); ++i)
      if (channels[i] == ends) return i;
    channels.push_back(ends);
    return channels.size() - 1;
  }

  /// @param from   the cell at which the edge begins
  /// @param to     that at which it ends
  /// @param count  of slots
  void add_route(Program const& program, std::size_t from, int to, bool forward, std::size_t count,
                 std::size_t row_edge = Route::whole) {
    std::size_t sender = rank_of(program, from);
    std::size_t receiver = rank_of(program, to);
    if (!forward) std::swap(sender, receiver);
    if (place_[sender] == place_[receiver]) return;
    auto const number = static_cast<std::uint32_t>(all.size());
    all.push_back(
        {from, forward, sender, receiver, channel(sender, receiver), count, slots, row_edge});
    slots += count;
    bool const whole = row_edge == Route::whole;
    route_of[signal_of(whole ? from : program.cells.size() + row_edge,
                       forward ? EdgeSignal::forward_full : EdgeSignal::backward_full)] = number;
    if (whole) (forward ? route_into[to] : route_back_to[from]) = number;
  }

  void add_owners(Program const& program) {
    for (std::size_t c = 0, first = 0; c < program.cells.size(); ++c) {
      if (program.cells[c].stage != program.cells[first].stage) first = c;
      std::size_t const sender = rank_of(program, c);
      std::size_t const receiver = rank_of(program, first);
      if (place_[sender] != place_[receiver])
        owners.push_back(
            {c, sender, receiver, channel(sender, receiver), channel(receiver, sender)});
    }
  }

  /// Orders instructions in rounds, as if each took the same time: in each round, a rank carries
  /// out one instruction if everything that it waits for was given in an earlier round.
  [[gnu::cold]] void put_in_order(Program const& program) {
    List<std::uint32_t> next(program.ranks.size());                         // round of each rank
    std::vector<std::vector<std::uint32_t>> given(program.signals.size());  // rounds of signals
    std::vector<std::vector<Issue>> rounds;
    for (Player player(program); player.next();) {
      auto const r = static_cast<std::size_t>(player.rank());
      Instruction const& in = player.instruction();
      for (Wait const& wait : player.waits())
        if (wait.count != 0 && program.signals[wait.signal].sender != SignalEnds::outside)
          next[r] = std::max(next[r], given[wait.signal][wait.count - 1]);
      if (rounds.size() <= next[r]) rounds.resize(next[r] + 1);
      rounds[next[r]++].push_back(
          {static_cast<std::uint32_t>(r), static_cast<std::uint32_t>(player.index())});
      for (unsigned g = 0; g < in.signal_count; ++g) given[in.signal[g]].push_back(next[r]);
    }
    for (auto& round : rounds) {
      std::sort(round.begin(), round.end(), [](Issue a, Issue b) { return a.rank < b.rank; });
      for (Issue const& issue : round) order.push_back(issue);
    }
  }

  [[gnu::cold]] void find_last_uses(Program const& program) {
    List<std::vector<bool>> seen(program.cells.size());  // [cells][microbatches]
    for (auto const& rank : program.ranks) {
      last_uses.emplace_back(rank.code.size());
      for (std::size_t i = rank.code.size(); i-- > 0;) {
        auto const& in = rank.code[i];
        if (!runs_layers(in.op)) continue;
        auto& seen_here = seen[in.cell];
        if (seen_here.size() <= in.microbatch) seen_here.resize(in.microbatch + 1);
        last_uses.back()[i] = !seen_here[in.microbatch];
        seen_here[in.microbatch] = true;
      }
    }
  }

  List<int> place_;  // [ranks]
};

}  // namespace stagger::cuda::detail
