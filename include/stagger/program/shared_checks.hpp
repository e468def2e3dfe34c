// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Checks for programs with replicas or groups of ranks: cells take rows of values, and
///         gradients are added up in groups while backward runs.

#include <cstddef>
#include <cstdint>
#include <memory>

#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/program/detail/check_gradients.hpp>
#include <stagger/program/detail/check_slots.hpp>
#include <stagger/program/detail/check_state.hpp>
#include <stagger/program/detail/lay_out_options.hpp>
#include <stagger/program/group_gradients.hpp>
#include <stagger/program/program.hpp>

namespace stagger::detail {

/// Also plays the reads of rows.
class RowCheck final : public SlotCheck {
 public:
  [[gnu::cold]] RowCheck(CheckState const& state, bool recompute)
      : SlotCheck(state, recompute), row_edges_(state.program.cells.size()) {
    auto const& cells = state.program.cells;
    std::size_t taken = 0;
    for (std::size_t k = 0; k < state.program.row_edges.size(); ++k) {
      RowEdge const& edge = state.program.row_edges[k];
      for (bool const forward : {true, false}) {
        if (!edge.use(forward).used) continue;
        row_edges_[edge.maker(forward)].sent[forward ? 1 : 0].push_back(k);
        row_edges_[edge.taker(forward)].taken[forward ? 1 : 0].push_back(k);
      }
      first_taken_.push_back(taken);
      first_taken_.push_back(taken += cells[edge.to].dx_slots);
      taken += cells[edge.from].y_slots;
    }
    taken_.resize(taken);
  }

 private:
  /// The row edges over which a cell's values are sent, and those over which it takes values.
  struct CellRowEdges {
    List<std::size_t> sent[2], taken[2];  // backward, forward
  };

  void write_for_rows(Space space, int c, std::size_t number, bool forward, bool whole) override {
    static_cast<void>(slot_at(space, c, number));
    for (std::size_t const k : row_edges_[c].sent[forward ? 1 : 0]) {
      int const taker = state_.program.row_edges[k].taker(forward);
      if (!state_.knows(cell(taker).rank, taken_at(k, forward, number)))
        state_.refuse("overwrites slot ", number, " of ", name_of(space), " of cell ", c,
                      " while rows of it may be taken");
    }
    write(space, c, number, state_.rank, count_message(c, forward, whole));
  }
  void read_rows(int c, std::size_t number, bool forward) override {
    auto const& edges = row_edges_[c].taken[forward ? 1 : 0];
    if (edges.empty()) state_.refuse("gathers rows, although no rank sends it any");
    for (std::size_t const k : edges) {
      int const from = state_.program.row_edges[k].maker(forward);
      Space const space = forward ? space_y : space_dx;
      Slot const& slot = slot_at(space, from, number);
      require_value(slot, space, number);
      if (cell(from).rank != state_.rank)
        require_message(slot, state_.program.cells.size() + k,
                        forward ? EdgeSignal::forward_full : EdgeSignal::backward_full);
      taken_at(k, forward, number) = state_.now();
    }
  }
  void require_rows_given(int c, bool forward, std::uint32_t messages) const override {
    for (std::size_t const k : row_edges_[c].sent[forward ? 1 : 0]) {
      RowEdge const& edge = state_.program.row_edges[k];
      if (cell(edge.from).rank != cell(edge.to).rank)
        require_given(state_.program.cells.size() + k, forward, messages);
    }
  }
  [[nodiscard]] std::uint32_t& taken_at(std::size_t edge, bool forward, std::size_t slot) {
    return taken_[first_taken_[2 * edge + (forward ? 1 : 0)] + slot];
  }

  FixedArray<CellRowEdges> row_edges_;  // [cells]
  List<std::size_t> first_taken_;       // [row edges][backward, forward] into:
  List<std::uint32_t> taken_;           // instructions that the receiver of rows has ended by then
};

/// Also requires that the parts of a last backward follow each other, and that each group of
/// gradients is added up when all holders of the stage have it.
class GroupCheck final : public GradientCheck {
 public:
  [[gnu::cold]] GroupCheck(CheckState const& state, LayOutOptions const& options)
      : GradientCheck(state, options),
        parts_at_(state.program.cells.size() * state.program.groups.size()),
        sums_at_(parts_at_.size()) {
    auto const& cells = state.program.cells;
    auto const& groups = state.program.groups;
    for (std::size_t c = 0; c < cells.size(); ++c)
      for (std::size_t g = groups.size(); g-- > 0;)
        if (groups[g].stage == cells[c].stage) cells_[c].group = g, ++cells_[c].groups;
  }

  void add_part(Instruction const& in) override {
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

  void require_announced(SignalEnds const& ends, std::uint32_t number) const override {
    Instruction const& in = *state_.in;
    int const c = ends.gradients >= 0 ? ends.gradients : ends.sums;
    if (in.cell != c || number >= cells_[c].groups || in.group != cells_[c].group + number)
      GradientCheck::require_announced(ends, number);
  }

  void push(Instruction const& in) override {
    Holder& own = cells_[in.cell];
    if (!pushes_groups(own)) return GradientCheck::push(in);
    bool computed = own.groups > 1 ? own.pushed < own.parts : own.ended == own.to_end;
    for (std::size_t d = own.first; is_shared(own) && d < own.end; ++d) {
      bool const summed = cells_[d].reduced > own.pushed;
      computed = summed && computed && state_.knows(cells_[d].reducer, sum_at(d, in.group));
    }
    if (own.pushed == own.groups || in.group != own.group + own.pushed || !computed)
      state_.refuse("pushes gradient group ", in.group, " before it is computed, or twice");
    ++own.pushed;
    if (is_shared(own)) own.reduced_at = state_.now();  // which its holders wait for
  }
  void pull(Instruction const& in) override {
    GradientCheck::pull(in);
    Holder const& own = cells_[in.cell];
    if (pushes_groups(own) && own.pushed != own.groups)
      state_.refuse("pulls weights after ", own.pushed, " of ", own.groups, " gradient groups");
  }

  void reduce(Instruction const& in) override {
    Holder& own = cells_[in.cell];
    if (!state_.program.training || in.group != own.group + own.reduced)
      state_.refuse("adds up another gradient group than the next");
    if (in.part() != in.cell - own.first || in.parts() != own.end - own.first)
      state_.refuse("adds up part ", in.part(), " of ", in.parts(), ", which is not its own");
    for (std::size_t d = own.first; d < own.end; ++d) {
      if (options_.grouping.by_library && d != in.cell) continue;
      Holder const& other = cells_[d];
      std::uint32_t ready = other.ended == other.to_end ? other.last_end : nothing;
      if (own.groups > 1) ready = parts_at_[d * state_.program.groups.size() + in.group];
      if ((ready == 0 && other.to_end != 0) || !state_.knows(rank_of(d), ready))
        state_.refuse("adds up gradients that rank ", rank_of(d), " may not have yet");
    }
    ++own.reduced;
    own.reduced_at = sum_at(in.cell, in.group) = state_.now();
    own.reducer = state_.rank;
  }

 private:
  static constexpr std::uint32_t nothing = 0xffffffff;

  [[nodiscard]] static bool is_shared(Holder const& own) { return own.end - own.first > 1; }
  /// Whether a stage pushes each of its groups by itself.
  [[nodiscard]] bool pushes_groups(Holder const& own) const {
    return is_shared(own) ? state_.program.pushes_sums : state_.program.pushes_groups;
  }
  /// Instructions that the reducer of a cell's rank has ended after its part of a group's sum.
  [[nodiscard]] std::uint32_t& sum_at(std::size_t c, std::size_t group) {
    return sums_at_[c * state_.program.groups.size() + group];
  }

  void require_sums(std::size_t c) const override {
    Holder const& own = cells_[c];
    if (own.groups == 0) return GradientCheck::require_sums(c);
    for (std::size_t d = own.first; d < own.end; ++d) {
      if (options_.grouping.by_library && d != c) continue;
      Holder const& other = cells_[d];
      bool const pushed = d != own.first || !pushes_groups(own) || other.pushed == own.groups;
      if (other.reduced != own.groups || !pushed || !state_.knows(other.reducer, other.reduced_at))
        state_.refuse("finishes before all gradients of stage ", state_.program.cells[c].stage,
                      " are added up, and pushed if groups are");
    }
    if (options_.grouping.chain_squares && c != own.first &&
        !knows_end(rank_of(c - 1), ranks_[rank_of(c - 1)].finished))
      state_.refuse("finishes before the squares of rank ", rank_of(c - 1), " are there");
  }

  List<std::uint32_t> parts_at_;  // [cells][groups] instructions ended after that part
  List<std::uint32_t> sums_at_;   // likewise of the reducer, after its part of the sum
};

inline constexpr SharedPasses shared_passes{
    &group_gradients,
    [](CheckState const& state, bool recompute) -> std::unique_ptr<SlotCheck> {
      return std::make_unique<RowCheck>(state, recompute);
    },
    [](CheckState const& state, LayOutOptions const& options) -> std::unique_ptr<GradientCheck> {
      return std::make_unique<GroupCheck>(state, options);
    }};

}  // namespace stagger::detail
