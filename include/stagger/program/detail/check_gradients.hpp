// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The check of gradients: whether they are complete when they are added up, and all have
///         been added up when a step ends.

#include <cstddef>
#include <cstdint>

#include <stagger/core/fixed_array.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/list.hpp>
#include <stagger/program/detail/check_state.hpp>
#include <stagger/program/detail/lay_out_options.hpp>
#include <stagger/program/program.hpp>

namespace stagger::detail {

/// Requires that stages with several holders hand in whole gradients. Where groups of gradients are
/// added up, GroupCheck (shared_checks.hpp) replaces it.
class GradientCheck {
 public:
  [[gnu::cold]] GradientCheck(CheckState const& state, LayOutOptions const& options)
      : state_(state),
        options_(options),
        cells_(state.program.cells.size()),
        ranks_(state.program.ranks.size()) {
    each_stage(state.program, [&](int, IndexRange cells) {
      for (std::size_t const c : cells) cells_[c].first = cells.first, cells_[c].end = cells.last;
    });
  }
  GradientCheck(GradientCheck const&) = delete;
  GradientCheck& operator=(GradientCheck const&) = delete;
  virtual ~GradientCheck() = default;

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
  virtual void add_part(Instruction const&) { refuse_group(); }
  virtual void reduce(Instruction const&) { refuse_group(); }
  /// A push of a step to a parameter server.
  virtual void push(Instruction const&) { require_updated(); }
  /// A pull of a step from a parameter server.
  virtual void pull(Instruction const&) { require_updated(); }
  /// A signal that announces gradients, or their sums.
  virtual void require_announced(SignalEnds const&, [[maybe_unused]] std::uint32_t number) const {
    state_.refuse("announces the wrong gradients");
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
        if (rank_of(c) == state_.rank && cells_[c].end - cells_[c].first > 1 &&
            !state_.program.cells[c].alone)
          require_sums(c);
    } else {
      if (has_ended(state_.rank)) state_.refuse("hands in twice, or too late");
      own.handed_in = state_.now();
    }
  }

 protected:
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
    std::uint32_t pushed = 0;           // groups
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

  /// Requires that the step has ended on the rank.
  void require_updated() const {
    if (!has_updated(state_.rank)) state_.refuse("exchanges parameters before the step's end");
  }

  /// Requires what a holder of a shared stage must know before it has finished.
  [[gnu::cold]] virtual void require_sums(std::size_t c) const {
    Holder const& own = cells_[c];
    if (options_.grouping.by_library || c != own.first) return;
    for (std::size_t d = c + 1; d < own.end; ++d)
      if (!knows_end(rank_of(d), ranks_[rank_of(d)].handed_in))
        state_.refuse("finishes before rank ", rank_of(d), " has handed in its gradients");
  }

  CheckState const& state_;
  LayOutOptions const& options_;
  FixedArray<Holder> cells_;
  FixedArray<RankEnd> ranks_;

 private:
  [[noreturn]] [[gnu::cold]] void refuse_group() const {
    state_.refuse("works on a gradient group in a run without replicas");
  }
};

}  // namespace stagger::detail
