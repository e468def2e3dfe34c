// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The check that every program passes before its first run.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/program/detail/check_slots.hpp>
#include <stagger/program/detail/lay_out_options.hpp>
#include <stagger/program/play.hpp>
#include <stagger/program/program.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger {
namespace detail {

/// Plays a program once, and holds what it does against its table, the slots, the gradients that
/// are added up and the versions of the weights.
class ProgramCheck : SlotCheck {
 public:
  ProgramCheck(Program const& program, schedule::Table const& table, LayOutOptions const& options)
      : SlotCheck(program),
        table_(table),
        options_(options),
        computing_(static_cast<std::size_t>(program.computing)) {}

  /// @throws Error  bad_schedule, see require_sound
  [[gnu::cold]] void run() {
    require_numbers();
    prepare_slots();
    prepare();
    auto const stuck = play(program_, [this](std::size_t rank, std::size_t index,
                                             Instruction const& in, std::span<Wait const> waits) {
      rank_ = rank;
      index_ = index;
      in_ = &in;
      see(waits);
      carry_out(in);
      note_gives(in);
      note_sums(in);
    });
    if (!stuck.empty()) {
      at(static_cast<std::size_t>(stuck[0].rank), stuck[0].instruction);
      refuse("waits for ever for signal ", stuck[0].wait.signal, " to be given ",
             stuck[0].wait.count, " times");
    }
    require_all();
  }

 private:
  enum Done : std::uint8_t { forward_done = 1, gradient_done = 2, all_done = 4 };

  /// What a cell has done so far.
  struct CellWork {
    std::uint32_t made = 0;   // updates without a flush
    std::uint32_t ended = 0;  // B, W and parts of them
    std::uint32_t to_end = 0;
    std::uint32_t last_end = 0;         // instructions ended with the last of them
    std::uint32_t reduced = 0;          // groups, by the rank that adds them up beside the cell's
    std::uint32_t reduced_at = 0;       // instructions of that rank ended with the last
    Instruction const* part = nullptr;  // the last
    std::uint32_t adder = nothing;      // that rank
    std::size_t group = 0;              // of the stage, the first
    std::uint32_t groups = 0;
    std::size_t holders = 0;  // the stage's first cell
    std::size_t holders_end = 0;
  };
  struct RankWork {
    std::span<schedule::Action const> left;                  // of the table's row
    std::uint32_t target = nothing;                          // whose rows of the target are at hand
    std::uint32_t handed_in = 0, finished = 0, updated = 0;  // instructions ended with it
  };
  [[nodiscard]] bool shared(std::size_t c) const {
    return cells_[c].holders_end - cells_[c].holders > 1;
  }

  [[gnu::cold]] void prepare() {
    auto const& cells = program_.cells;
    cells_ = FixedArray<CellWork>(cells.size());
    first_version_.push_back(0);
    for (std::size_t c = 0; c < cells.size(); ++c) {
      CellWork& own = cells_[c];
      own.holders = c == 0 || cell(c - 1).stage != cell(c).stage ? c : cells_[c - 1].holders;
      for (std::size_t d = own.holders; d <= c; ++d) cells_[d].holders_end = c + 1;
      for (std::size_t g = program_.groups.size(); g-- > 0;)
        if (program_.groups[g].stage == cell(c).stage) own.group = g, ++own.groups;
      first_version_.push_back(first_version_[c] + cell(c).versions);
    }
    versions_.assign(first_version_[cells.size()], nothing);
    for (std::size_t c = 0; c < cells.size(); ++c) versions_[first_version_[c]] = 0;
    done_.resize(cells.size() * units_);
    if (alone()) seen_version_.resize(done_.size());
    parts_at_.resize(cells.size() * program_.groups.size());
    ranks_ = FixedArray<RankWork>(program_.ranks.size());
    for (std::size_t r = 0; r < program_.ranks.size(); ++r) {
      if (r < computing_) ranks_[r].left = table_.row(position(r));
      for (Instruction const& in : program_.ranks[r].code) {
        again_ = again_ || in.op == Op::recompute;
        if (gives_weight_gradient(in.op)) ++cells_[in.cell].to_end;
      }
    }
  }

  /// Whether stages update alone.
  [[nodiscard]] bool alone() const { return program_.training && !program_.flushes; }
  [[nodiscard]] int position(std::size_t rank) const {
    return options_.replicas == nullptr || options_.replicas->empty()
               ? static_cast<int>(rank)
               : options_.replicas->parts()[rank].position;
  }
  [[nodiscard]] bool cuts_target(std::size_t rank) const {
    return options_.replicas != nullptr && !options_.replicas->empty() &&
           options_.replicas->parts()[rank].replicas > 1;
  }

  void note_sums(Instruction const& in) const {
    for (std::size_t g = 0; g < in.gives; ++g) {
      SignalEnds const& ends = program_.signals[in.give[g]];
      if (ends.gradients < 0 && ends.sums < 0) continue;
      std::size_t const c = index_of(ends.gradients >= 0 ? ends.gradients : ends.sums);
      std::uint32_t const number = times_given(in.give[g]) - 1;
      require(in.cell == c && number < cells_[c].groups && in.group == cells_[c].group + number,
              "announces the wrong gradients");
    }
  }

  // --- instructions

  void carry_out(Instruction const& in) {
    if (computes(in.op) || computes_part(in.op)) return compute(in);
    switch (in.op) {
      case Op::gather_input:
        if (in.stage != 0) read_from_cuts(in.cell, in.y, true);
        return write_own(space_x, in.cell, in.x);
      case Op::gather_gradient:
        read_from_cuts(in.cell, in.dx, false);
        return write_own(space_dy, in.cell, in.dy);
      case Op::gather_target:
        ranks_[rank_].target = in.microbatch;
        return;
      case Op::reduce:
        return reduce(in);
      case Op::apply:
        return apply(in);
      case Op::hand_in:
      case Op::finish:
      case Op::update:
        return end_step(in.op);
      default:  // pass
        return;
    }
  }

  void compute(Instruction const& in) {
    std::size_t const c = in.cell;
    auto& done = done_[c * units_ + in.microbatch];
    bool const part = computes_part(in.op);
    bool const next_part = part && parts_done(c) != 0;
    if (in.op != Op::recompute && !next_part) take_action(in);
    require(ranks_[rank_].finished == 0, "computes after its last gradient");
    bool const forward = in.op == Op::forward || in.op == Op::recompute;
    if (!cell(c).first()) {
      read(space_x, c, in.x);
      if (crosses(cell(c).before))
        require_message(slot_at(space_x, c, in.x), index_of(cell(c).before),
                        EdgeSignal::forward_full);
    }
    if (forward) {
      if (in.op == Op::recompute) {
        require(done == forward_done, "runs again what has not run, or needs no more");
        write_own(space_kept, c, in.kept);
      } else {
        require(done == 0, "runs a second time");
        done = forward_done;
        run_forward(in);
      }
      if (!program_.training) require_target(in);
      return require_version(in);
    }
    backward(in, done, next_part);
    require_version(in);
    if (part) note_part(in);
  }

  void run_forward(Instruction const& in) {
    std::size_t const c = in.cell;
    write_own(space_kept, c, in.kept);
    if (again_) slot_at(space_kept, c, in.kept).unit = nothing;
    if (cell(c).after != Cell::none) {
      auto const d = index_of(cell(c).after);
      write(space_x, d, in.y, rank_of(d), count_message(c, true, true));
    } else if (cell(c).gathers_gradient) {
      write_for_cuts(space_y, c, in.y, true, true);
    }
  }

  void backward(Instruction const& in, std::uint8_t& done, bool next_part) {
    std::size_t const c = in.cell;
    read(space_kept, c, in.kept);
    if (gives_input_gradient(in.op)) {
      require(next_part || done == forward_done, "runs before its F, or a second time");
      done |= gradient_done;
      if (cell(c).last()) write_own(space_dy, c, in.dy);
      write_own(space_inner, c, in.inner);
      require_target(in);
      give_gradient(in);
    }
    read(space_dy, c, in.dy);
    if (crosses(cell(c).after))
      require_message(slot_at(space_dy, c, in.dy), c, EdgeSignal::backward_full);
    read(space_inner, c, in.inner);
    if (!gives_weight_gradient(in.op)) return;
    require(done == (forward_done | gradient_done) || next_part, "runs before its I, or twice");
    require(parts_done(c) == 0 || next_part, "adds to gradients that were announced");
    done |= all_done;
    ++cells_[c].ended;
    cells_[c].last_end = now();
    if (alone())
      require(in.microbatch / per_update() == cells_[c].made,
              "adds to the gradients of another minibatch");
  }

  void give_gradient(Instruction const& in) {
    std::size_t const c = in.cell;
    bool const whole = !computes_part(in.op) || parts_done(c) + 1 == cells_[c].groups;
    if (cell(c).before != Cell::none)
      write(space_dy, index_of(cell(c).before), in.dx, rank_of(index_of(cell(c).before)),
            count_message(c, false, whole));
    else if (cell(c).gathers_input && in.stage != 0)
      write_for_cuts(space_dx, c, in.dx, false, whole);
  }

  void require_target(Instruction const& in) const {
    if (!cell(in.cell).last() || !cuts_target(rank_)) return;
    require(ranks_[rank_].target == in.microbatch, "has not gathered its rows of the target");
  }

  /// The next action of the table.
  void take_action(Instruction const& in) {
    auto& left = ranks_[rank_].left;
    while (!left.empty() && !schedule::is_compute(left.front().kind)) left = left.subspan(1);
    require(!left.empty(), "does more than the table says");
    schedule::Action const& action = left.front();
    auto const unit =
        static_cast<std::size_t>(action.microbatch) * static_cast<std::size_t>(table_.slices) +
        static_cast<std::size_t>(action.slice);
    require(action.kind == kind_of(in.op) && action.stage == in.stage && unit == in.microbatch,
            "comes to what is not next in the table, which is ", action.stage,
            schedule::name(action.kind), unit);
    left = left.subspan(1);
  }

  // --- gradients

  [[nodiscard]] std::uint32_t parts_done(std::size_t c) const {
    std::uint32_t done = 0;
    std::size_t const first = c * program_.groups.size() + cells_[c].group;
    while (done < cells_[c].groups && parts_at_[first + done] != 0) ++done;
    return done;
  }
  void note_part(Instruction const& in) {
    std::size_t const c = in.cell;
    std::uint32_t const number = parts_done(c);
    Instruction const*& last = cells_[c].part;
    require(last == nullptr || (in.op == last->op && in.microbatch == last->microbatch &&
                                in.kept == last->kept && in.dy == last->dy && in.dx == last->dx &&
                                in.inner == last->inner && in.x == last->x),
            "does not go on with the part before it");
    last = &in;
    require(in.group == cells_[c].group + number, "computes gradient group ", in.group,
            " instead of ", cells_[c].group + number);
    parts_at_[c * program_.groups.size() + in.group] = now();
  }

  void reduce(Instruction const& in) {
    CellWork& own = cells_[in.cell];
    require(program_.training && in.group == own.group + own.reduced,
            "adds up another gradient group than the next");
    require(in.part() == in.cell - own.holders && in.parts() == own.holders_end - own.holders,
            "adds up part ", in.part(), " of ", in.parts(), ", which is not its own");
    for (std::size_t d = own.holders; d < own.holders_end; ++d) {
      if (options_.sums_by_library && d != in.cell) continue;
      CellWork const& holder = cells_[d];
      std::uint32_t const ready = own.groups > 1 ? parts_at_[d * program_.groups.size() + in.group]
                                  : holder.ended == holder.to_end ? holder.last_end
                                                                  : nothing;
      require((ready != 0 || holder.to_end == 0) && knows(rank_of(d), ready),
              "adds up gradients that rank ", rank_of(d), " may not have yet");
    }
    ++own.reduced;
    own.reduced_at = now();
    own.adder = static_cast<std::uint32_t>(rank_);
  }

  void end_step(Op op) {
    RankWork& own = ranks_[rank_];
    require(program_.training && program_.flushes && rank_ < computing_, "has no such end");
    while (!own.left.empty() && !schedule::is_compute(own.left.front().kind))
      own.left = own.left.subspan(1);
    require(own.left.empty(), "ends before all that the table says is done");
    if (op == Op::hand_in) {
      require(own.handed_in == 0 && own.finished == 0, "hands in twice, or too late");
      own.handed_in = now();
    } else if (op == Op::finish) {
      require(own.finished == 0, "finishes twice");
      own.finished = now();
      for (std::size_t c = 0; c < cells_.size(); ++c)
        if (rank_of(c) == rank_ && shared(c)) require_sums(c);
    } else {
      require(own.updated == 0, "updates twice");
      own.updated = now();
      for (std::size_t r = 0; r < computing_; ++r)
        require(ranks_[r].finished != 0 && knows(r, ranks_[r].finished),
                "updates before it knows that rank ", r, " has finished");
    }
  }

  /// What a holder of a shared stage must know before it has finished.
  void require_sums(std::size_t c) const {
    CellWork const& own = cells_[c];
    bool const first = c == own.holders;
    for (std::size_t d = own.holders; d < own.holders_end; ++d) {
      if (options_.sums_by_library && d != c) continue;
      CellWork const& holder = cells_[d];
      if (own.groups != 0)
        require(holder.reduced == own.groups && knows(holder.adder, holder.reduced_at),
                "finishes before all gradients of stage ", cell(c).stage, " are added up");
      else if (first && d != c)
        require(
            ranks_[rank_of(d)].handed_in != 0 && knows(rank_of(d), ranks_[rank_of(d)].handed_in),
            "finishes before rank ", rank_of(d), " has handed in its gradients");
    }
    if (options_.chain_squares && own.groups != 0 && !first)
      require(ranks_[rank_of(c - 1)].finished != 0 &&
                  knows(rank_of(c - 1), ranks_[rank_of(c - 1)].finished),
              "finishes before the squares of rank ", rank_of(c - 1), " are there");
  }

  // --- versions of the weights

  [[nodiscard]] std::uint32_t per_update() const {
    return static_cast<std::uint32_t>(std::max(1, options_.staleness.microbatches));
  }
  [[nodiscard]] std::uint32_t& version_at(std::size_t c, std::size_t slot) {
    require(slot < first_version_[c + 1] - first_version_[c], "uses version slot ", slot,
            ", which cell ", c, " does not have");
    return versions_[first_version_[c] + slot];
  }

  void require_version(Instruction const& in) {
    if (!program_.training || program_.flushes)
      return require(in.version == 0, "reads another version of its weights than the only one");
    std::uint32_t& wanted = seen_version_[in.cell * units_ + in.microbatch];
    if (in.op == Op::forward)
      wanted = static_cast<std::uint32_t>(options_.staleness.version(
          options_.staleness.policy, static_cast<int>(in.microbatch / per_update()),
          static_cast<int>(cells_[in.cell].made)));
    std::uint32_t const held = version_at(in.cell, in.version);
    require(held == wanted, "reads version ", static_cast<std::int64_t>(held) == nothing ? 0 : held,
            " of its weights, where the staleness model says ", wanted);
  }

  void apply(Instruction const& in) {
    CellWork& own = cells_[in.cell];
    require(alone(), "updates one stage alone in a run that flushes");
    require(in.update() == own.made && own.ended == (own.made + 1) * per_update(), "makes update ",
            in.update(), " after ", own.made, " of them and ", own.ended, " microbatches");
    require(version_at(in.cell, in.version) == own.made, "updates another version than the last");
    version_at(in.cell, in.next_version) = ++own.made;
  }

  // --- behind

  [[gnu::cold]] void require_all() {
    std::uint8_t const all =
        program_.training ? forward_done | gradient_done | all_done : forward_done;
    List<std::uint32_t> ran(index_of(program_.stages) * units_);
    for (std::size_t c = 0; c < cells_.size(); ++c) {
      at(rank_of(c), program_.ranks[rank_of(c)].code.size());
      for (std::size_t u = 0; u < units_; ++u) {
        auto const done = done_[c * units_ + u];
        require(done == 0 || done == all, "leaves microbatch ", u, " of stage ", cell(c).stage,
                " half done");
        if (done != 0 && cell(c).replica == 0) ++ran[index_of(cell(c).stage) * units_ + u];
      }
      if (alone()) {
        require(cells_[c].made == index_of(program_.updates), "makes ", cells_[c].made,
                " updates of ", program_.updates);
        require(versions_[first_version_[c]] == cells_[c].made,
                "leaves its weights in a slot that does not last");
      }
    }
    for (std::size_t k = 0; k < ran.size(); ++k)
      require(ran[k] == 1, "ends, when stage ", k / units_, " was done ", ran[k],
              " times for microbatch ", k % units_);
    for (std::size_t r = 0; r < computing_; ++r) {
      at(r, program_.ranks[r].code.size());
      auto const& left = ranks_[r].left;
      require(std::none_of(left.begin(), left.end(),
                           [](auto const& a) { return schedule::is_compute(a.kind); }),
              "ends before all that the table says is done");
      bool const ends = program_.training && program_.flushes;
      require(!ends || ranks_[r].updated != 0, "never updates its weights");
    }
    require_all_awaited();
  }

  schedule::Table const& table_;
  LayOutOptions const& options_;
  std::size_t computing_;
  bool again_ = false;  // F runs again before its backward
  FixedArray<CellWork> cells_;
  FixedArray<RankWork> ranks_;
  List<std::uint8_t> done_;           // [cells][microbatches]
  List<std::uint32_t> parts_at_;      // [cells][groups] instructions ended with that part
  List<std::uint32_t> seen_version_;  // [cells][microbatches]
  List<std::size_t> first_version_;   // [cells + 1] into:
  List<std::uint32_t> versions_;      // which version of its weights each slot holds
};

}  // namespace detail

/// Refuses a program that would not do what its table says, whatever actions take: each action once
/// and in its rank's order, every value written before and overwritten after all that read it, each
/// message sent once and received once, every update behind all gradients that it needs, weights of
/// the version that the staleness model says, and no wait that cannot end.
///
/// @param table    that the program was made from
/// @param options  likewise
/// @throws Error   bad_schedule, naming rank, instruction and what is wrong
/// @complexity     linear in the number of instructions, waits and gives
inline void require_sound(Program const& program, schedule::Table const& table,
                          LayOutOptions const& options = {}) {
  detail::ProgramCheck(program, table, options).run();
}
}  // namespace stagger
