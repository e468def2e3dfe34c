// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The check of gradients: whether they are complete when they are added up, and all have
///         been added up when a step ends.

#include <cstddef>
#include <cstdint>

#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/program/detail/check_state.hpp>
#include <stagger/program/detail/lay_out_options.hpp>
#include <stagger/program/program.hpp>

namespace stagger::detail {

class GradientCheck {
 public:
  [[gnu::cold]] GradientCheck(CheckState const& state, LayOutOptions const& options)
      : state_(state),
        options_(options),
        cells_(state.program.cells.size()),
        ranks_(state.program.ranks.size()),
        parts_at_(state.program.cells.size() * state.program.groups.size()) {
    auto const& cells = state.program.cells;
    auto const& groups = state.program.groups;
    for (std::size_t c = 0; c < cells.size(); ++c) {
      Holder& own = cells_[c];
      own.first = is_first_holder(cells, c) ? c : cells_[c - 1].first;
      for (std::size_t d = own.first; d <= c; ++d) cells_[d].end = c + 1;
      for (std::size_t g = groups.size(); g-- > 0;)
        if (groups[g].stage == cells[c].stage) own.group = g, ++own.groups;
    }
  }

  /// Called before the program is played: counts how often a cell will add to its gradients.
  void expect(Instruction const& in) {
    if (gives_weight_gradient(in.op)) ++cells_[in.cell].to_end;
  }

  /// Whether a rank has handed in its gradients, or added up those of others.
  [[nodiscard]] bool has_ended(int rank) const {
    return ranks_[rank].handed_in != 0 || ranks_[rank].finished != 0;
  }
  [[nodiscard]] bool has_updated(int rank) const { return ranks_[rank].updated != 0; }
  /// How many B, W and parts of them a cell has ended.
  [[nodiscard]] std::uint32_t ended(std::size_t cell) const { return cells_[cell].ended; }
  [[nodiscard]] bool begun_last(std::size_t cell) const { return cells_[cell].parts != 0; }
  [[nodiscard]] bool is_last_part(Instruction const& in) const {
    return !computes_part(in.op) || cells_[in.cell].parts + 1 == cells_[in.cell].groups;
  }

  /// An instruction that makes gradients of parameters.
  void add(Instruction const& in) {
    Holder& own = cells_[in.cell];
    if (own.parts != 0 && !computes_part(in.op))
      state_.refuse("adds to gradients that were announced");
    ++own.ended;
    own.last_end = state_.now();
  }

  /// A part of a last backward, after the slots that it works on.
  [[gnu::cold]] void add_part(Instruction const& in) {
    Holder& own = cells_[in.cell];
    Instruction const* const last = own.part;
    if (last != nullptr &&
        (in.op != last->op || in.microbatch != last->microbatch || in.kept != last->kept ||
         in.dy != last->dy || in.dx != last->dx || in.inner != last->inner || in.x != last->x))
      state_.refuse("does not go on with the part before it");
    own.part = &in;
    if (own.parts == own.groups || in.group != own.group + own.parts)
      state_.refuse("computes gradient group ", in.group, " instead of ", own.group + own.parts);
    parts_at_[in.cell * state_.program.groups.size() + in.group] = state_.now();
    ++own.parts;
  }

  /// A signal that announces gradients, or their sums.
  [[gnu::cold]] void require_announced(SignalEnds const& ends, std::uint32_t number) const {
    Instruction const& in = *state_.in;
    int const c = ends.gradients >= 0 ? ends.gradients : ends.sums;
    if (in.cell != c || number >= cells_[c].groups || in.group != cells_[c].group + number)
      state_.refuse("announces the wrong gradients");
  }

  [[gnu::cold]] void reduce(Instruction const& in) {
    Holder& own = cells_[in.cell];
    if (!state_.program.training || in.group != own.group + own.reduced)
      state_.refuse("adds up another gradient group than the next");
    if (in.part() != in.cell - own.first || in.parts() != own.end - own.first)
      state_.refuse("adds up part ", in.part(), " of ", in.parts(), ", which is not its own");
    for (std::size_t d = own.first; d < own.end; ++d) {
      if (options_.sums_by_library && d != in.cell) continue;
      Holder const& other = cells_[d];
      std::uint32_t ready = other.ended == other.to_end ? other.last_end : nothing;
      if (own.groups > 1) ready = parts_at_[d * state_.program.groups.size() + in.group];
      if ((ready == 0 && other.to_end != 0) || !state_.knows(rank_of(d), ready))
        state_.refuse("adds up gradients that rank ", rank_of(d), " may not have yet");
    }
    ++own.reduced;
    own.reduced_at = state_.now();
    own.reducer = state_.rank;
  }

  [[gnu::cold]] void end_step(Op op) {
    RankEnd& own = ranks_[state_.rank];
    if (updates(op)) {
      if (own.updated != 0) state_.refuse("updates twice");
      own.updated = state_.now();
      for (int r = 0; r < state_.program.computing; ++r)
        if (!knows_end(r, ranks_[r].finished))
          state_.refuse("updates before it knows that rank ", r, " has finished");
    } else if (adds_up(op)) {
      if (own.finished != 0) state_.refuse("finishes twice");
      own.finished = state_.now();
      for (std::size_t c = 0; c < cells_.size(); ++c)
        if (rank_of(c) == state_.rank && cells_[c].end - cells_[c].first > 1) require_sums(c);
    } else {
      if (has_ended(state_.rank)) state_.refuse("hands in twice, or too late");
      own.handed_in = state_.now();
    }
  }

 private:
  static constexpr std::uint32_t nothing = 0xffffffff;

  /// A cell that holds a stage; all holders of the stage are the cells [first, end).
  struct Holder {
    std::size_t first = 0;
    std::size_t end = 0;
    std::size_t group = 0;     // of the stage, the first
    std::uint32_t groups = 0;  // of the stage
    std::uint32_t ended = 0;   // B, W and parts of them
    std::uint32_t to_end = 0;
    std::uint32_t last_end = 0;         // instructions ended with the last of them
    std::uint32_t parts = 0;            // of the last backward
    Instruction const* part = nullptr;  // the last
    std::uint32_t reduced = 0;          // groups, by the rank that adds them up beside the cell's
    std::uint32_t reduced_at = 0;       // instructions of that rank ended with the last
    int reducer = 0;                    // that rank
  };
  struct RankEnd {
    std::uint32_t handed_in = 0, finished = 0, updated = 0;  // instructions ended with it; 0: not
  };

  [[nodiscard]] int rank_of(std::size_t c) const { return state_.program.cells[c].rank; }
  [[nodiscard]] bool knows_end(int rank, std::uint32_t end) const {
    return end != 0 && state_.knows(rank, end);
  }

  /// Requires what a holder of a shared stage must know before it has finished.
  [[gnu::cold]] void require_sums(std::size_t c) const {
    Holder const& own = cells_[c];
    for (std::size_t d = own.first; d < own.end; ++d) {
      if (options_.sums_by_library && d != c) continue;
      Holder const& other = cells_[d];
      if (own.groups != 0 &&
          (other.reduced != own.groups || !state_.knows(other.reducer, other.reduced_at)))
        state_.refuse("finishes before all gradients of stage ", state_.program.cells[c].stage,
                      " are added up");
      if (own.groups == 0 && c == own.first && d != c &&
          !knows_end(rank_of(d), ranks_[rank_of(d)].handed_in))
        state_.refuse("finishes before rank ", rank_of(d), " has handed in its gradients");
    }
    if (options_.chain_squares && own.groups != 0 && c != own.first &&
        !knows_end(rank_of(c - 1), ranks_[rank_of(c - 1)].finished))
      state_.refuse("finishes before the squares of rank ", rank_of(c - 1), " are there");
  }

  CheckState const& state_;
  LayOutOptions const& options_;
  FixedArray<Holder> cells_;
  FixedArray<RankEnd> ranks_;
  List<std::uint32_t> parts_at_;  // [cells][groups] instructions ended after that part
};

}  // namespace stagger::detail
