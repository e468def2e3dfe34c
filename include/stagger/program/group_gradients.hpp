// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The pass that lets gradients of shared stages be added up, and those of others be pushed
///         to a parameter server, while the last backward still runs.
/// @source S. Shi, X. Chu, B. Li, "MG-WFBP: Efficient Data Communication for Distributed
///         Synchronous SGD", INFOCOM 2019, algorithm 2; here a rank of the program takes the place
///         of its communication thread, and each holder of a stage adds up a part of every layer.

#include <cstddef>
#include <cstdint>
#include <utility>

#include <stagger/core/algorithm.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/list.hpp>
#include <stagger/program/detail/lay_out_options.hpp>
#include <stagger/program/program.hpp>

namespace stagger {
namespace detail {

/// Makes the grouped program.
class GradientGrouping {
 public:
  GradientGrouping(Program const& program, List<GradientGroup> const& groups,
                   GradientGroupingRules const& rules)
      : old_(program),
        groups_(groups),
        rules_(rules),
        inner_(program.signals.size() - (program.exchanges() ? program.cells.size() : 0)) {
    each_stage(program, [&](int stage, IndexRange cells) {
      Holding own{cells.first, cells.last};
      while (own.group < groups.size() && groups[own.group].stage != stage) ++own.group;
      while (own.group + own.groups < groups.size() &&
             groups[own.group + own.groups].stage == stage)
        ++own.groups;
      for (std::size_t const c : cells) {
        auto const& code = program.ranks[program.cells[c].rank].code;
        own.last_backward = 0;
        own.alone = program.cells[c].alone;
        for (std::size_t i = 0; i < code.size(); ++i)
          if (gives_weight_gradient(code[i].op) && code[i].cell == c) own.last_backward = i;
        held_.push_back(own);
      }
    });
  }

  [[gnu::cold]] Program make() {
    Program made = old_;
    made.groups = groups_;
    made.pushes_groups = old_.training && rules_.push;
    for (std::size_t c = 0; made.pushes_groups && c < held_.size(); ++c)
      made.pushes_sums = made.pushes_sums || pushes_sums(c);
    resize_signals(made, old_.signals.size() + 2 * old_.cells.size());
    for (std::size_t s = old_.signals.size(); s-- > inner_;)  // those of a server stay the last
      made.signals[s + 2 * old_.cells.size()] = std::exchange(made.signals[s], SignalEnds{});
    for (std::size_t r = 0; r < old_.ranks.size(); ++r) made.ranks[r] = computing_rank(r);
    for (std::size_t r = 0; r < old_.ranks.size(); ++r) add_reducer(made, r);
    return made;
  }

 private:
  /// A cell among those of its stage, [first, end), and the stage's groups.
  struct Holding {
    std::size_t first = 0;
    std::size_t end = 0;
    std::size_t group = 0;
    std::size_t groups = 0;
    std::size_t last_backward = 0;  // index in its rank's code
    bool alone = false;             // its updates add up gradients
    [[nodiscard]] bool shared() const noexcept { return end - first > 1 && !alone; }
  };

  // Two signals of each cell: `ready`, given by the cell's rank once for each group; `summed`,
  // given likewise by that rank's reducer, after it has pushed the group if the reducer does.
  [[nodiscard]] std::uint32_t ready(std::size_t cell) const {
    return static_cast<std::uint32_t>(inner_ + 2 * cell);
  }
  [[nodiscard]] std::uint32_t summed(std::size_t cell) const { return ready(cell) + 1; }

  [[gnu::cold]] RankProgram computing_rank(std::size_t number) const {
    RankProgram const& old = old_.ranks[number];
    RankProgram rank;
    std::size_t wait = 0;
    for (std::size_t i = 0; i < old.code.size(); ++i) {
      Instruction const& in = old.code[i];
      std::size_t const first_wait = wait;
      wait += in.waits;
      if (ends_step(in.op) && !updates(in.op)) {  // nothing is handed in
        if (adds_up(in.op)) push_finish(rank, in, static_cast<int>(number));
        continue;
      }
      for (std::size_t w = first_wait; w < wait; ++w) {
        rank.waits.push_back(old.waits[w]);
        if (std::uint32_t& signal = rank.waits.back().signal; signal >= inner_)
          signal += static_cast<std::uint32_t>(2 * old_.cells.size());
      }
      Holding const& own = held_[in.cell];
      bool const alone = rules_.push && !own.shared() && !own.alone;
      if (pushes(in.op) && (alone || pushes_sums(in.cell))) continue;  // its groups were pushed
      bool const last =
          gives_weight_gradient(in.op) && own.last_backward == i && (alone || own.shared());
      if (!last) {
        rank.code.push_back(in);
        continue;
      }
      List<std::uint16_t> gives;
      for (std::size_t g = 0; g < in.signal_count; ++g) gives.push_back(in.signal[g]);
      for (; i + 1 < old.code.size() && old.code[i + 1].op == Op::pass; ++i)
        for (std::size_t g = 0; g < old.code[i + 1].signal_count; ++g)
          gives.push_back(old.code[i + 1].signal[g]);
      push_parts(rank, in, gives);
    }
    return rank;
  }

  /// Appends the last backward of a stage in parts, one for each group, and after each of them what
  /// tells the stage's reducers of the group or pushes it.
  void push_parts(RankProgram& rank, Instruction const& in, List<std::uint16_t>& gives) const {
    Holding const& own = held_[in.cell];
    Instruction part = in;
    Instruction push = instruction_on(old_.cells, in.cell, Op::push);
    for (std::size_t g = 0; g < own.groups; ++g) {
      if (own.groups > 1)
        part.op = in.op == Op::backward ? Op::backward_part : Op::backward_weight_part;
      part.group = static_cast<std::uint16_t>(own.group + g);
      push.group = part.group;
      part.signal_count = 0;
      if (g + 1 == own.groups) break;
      if (own.shared()) part.add_signal(ready(in.cell));
      rank.code.push_back(part);
      if (!own.shared()) rank.code.push_back(push);
      part.waits = 0;
    }
    if (own.shared()) gives.push_back(static_cast<std::uint16_t>(ready(in.cell)));
    rank.append(part, gives);
    if (!own.shared()) rank.code.push_back(push);
  }

  /// Appends the finish of a rank, once all holders of its stages have added up their parts.
  void push_finish(RankProgram& rank, Instruction finish, int self) const {
    auto const& cells = old_.cells;
    auto const done = finish.signal[0];
    finish.waits = finish.signal_count = 0;
    for (std::size_t c = 0; c < cells.size(); ++c) {
      Holding const& own = held_[c];
      if (cells[c].rank != self || !own.shared()) continue;
      for (std::size_t d = own.first; d < own.end; ++d)
        if (!rules_.by_library || d == c) rank.add_wait(finish, summed(d), own.groups);
      if (rules_.chain_squares && c != own.first)
        rank.add_wait(finish, old_.handed_in(cells[c - 1].rank), 1);
    }
    if (rules_.chain_squares) finish.add_signal(old_.handed_in(self));
    finish.add_signal(done);
    rank.code.push_back(finish);
  }

  /// Adds the reducer of a rank that holds shared stages. It works in the order of that rank's last
  /// backwards. No rank needs a sum before its whole backward is done, so the reducer's waits delay
  /// no other rank. A push waits for the sums of other reducers. If these work on the same stages in
  /// the same order, it follows the sum of its group; otherwise they could wait for each other, so
  /// that it follows all sums of its reducer.
  [[gnu::cold]] void add_reducer(Program& made, std::size_t self) const {
    List<std::size_t> const own = shared_cells(static_cast<int>(self));
    if (own.empty()) return;
    int const number = static_cast<int>(made.ranks.size());
    RankProgram rank;
    rank.reducer_for = static_cast<int>(self);
    for (std::size_t const c : own) {
      int const cell = static_cast<int>(c);
      made.signals[ready(c)] = {rank.reducer_for, SignalEnds::everyone, -1, cell};
      made.signals[summed(c)] = {number, SignalEnds::everyone, -1, -1, cell};
      if (old_.training) push_reductions(rank, c);
    }
    for (std::size_t const c : own)
      for (std::size_t g = 0; pushes_sums(c) && !in_one_order(c) && g < held_[c].groups; ++g)
        push_sum(rank, c, g);
    made.ranks.push_back(std::move(rank));
  }

  void push_reductions(RankProgram& rank, std::size_t c) const {
    Holding const& own = held_[c];
    for (std::size_t g = 0; g < own.groups; ++g) {
      Instruction reduce = instruction_on(old_.cells, c, Op::reduce);
      reduce.group = static_cast<std::uint16_t>(own.group + g);
      reduce.set_part(static_cast<std::uint16_t>(c - own.first),
                      static_cast<std::uint16_t>(own.end - own.first));
      for (std::size_t d = own.first; d < own.end; ++d)
        if (!rules_.by_library || d == c) rank.add_wait(reduce, ready(d), g + 1);
      if (!pushes_sums(c)) reduce.add_signal(summed(c));
      rank.code.push_back(reduce);
      if (pushes_sums(c) && in_one_order(c)) push_sum(rank, c, g);
    }
  }

  /// Appends the push of a group whose sum the reducer, and those of the other holders, have made.
  void push_sum(RankProgram& rank, std::size_t c, std::size_t g) const {
    Instruction push = instruction_on(old_.cells, c, Op::push);
    push.group = static_cast<std::uint16_t>(held_[c].group + g);
    for (std::size_t d = c + 1; d < held_[c].end; ++d) rank.add_wait(push, summed(d), g + 1);
    push.add_signal(summed(c));
    rank.code.push_back(push);
  }

  /// Whether the reducer of a cell's rank pushes the sums of the cell's stage.
  [[nodiscard]] bool pushes_sums(std::size_t c) const {
    return old_.training && rules_.push_sums && held_[c].shared() && held_[c].first == c;
  }
  /// Whether the reducers of all holders of a stage work on the same stages in the same order.
  [[nodiscard]] [[gnu::cold]] bool in_one_order(std::size_t c) const {
    List<std::size_t> const own = shared_cells(old_.cells[c].rank);
    for (std::size_t d = held_[c].first; d < held_[c].end; ++d) {
      List<std::size_t> const others = shared_cells(old_.cells[d].rank);
      if (others.size() != own.size()) return false;
      for (std::size_t i = 0; i < own.size(); ++i)
        if (old_.cells[others[i]].stage != old_.cells[own[i]].stage) return false;
    }
    return true;
  }
  /// The shared cells of a rank, in the order of their last backward.
  [[nodiscard]] [[gnu::cold]] List<std::size_t> shared_cells(int rank) const {
    List<std::size_t> own;
    for (std::size_t c = 0; c < held_.size(); ++c)
      if (old_.cells[c].rank == rank && held_[c].shared()) own.push_back(c);
    std::sort(own.begin(), own.end(), [&](std::size_t a, std::size_t b) {
      return held_[a].last_backward < held_[b].last_backward;
    });
    return own;
  }

  Program const& old_;
  List<GradientGroup> const& groups_;
  GradientGroupingRules rules_;
  std::size_t inner_;   // signals that ranks give; those of a server follow
  List<Holding> held_;  // [cells]
};

}  // namespace detail

/// Splits the last backward of every stage that several ranks hold into gradient groups and adds a
/// reducer for each of these ranks, which adds up gradients. Steps then end with these sums instead
/// of `hand_in`. If groups are pushed, it also splits the last backward of the other stages, each
/// of whose groups is pushed as soon as its part has run, instead of all at the end of the step; if
/// sums are, the reducer of a stage's first holder pushes each group once all parts are added up.
/// @param groups  of all stages, sorted by stage, then in backward order
/// @throws Error  bad_schedule for more signals than a program can number
[[nodiscard]] [[gnu::cold]] inline Program group_gradients(
    Program const& program, List<GradientGroup> const& groups,
    GradientGroupingRules const& rules = {}) {
  return detail::GradientGrouping(program, groups, rules).make();
}

}  // namespace stagger
