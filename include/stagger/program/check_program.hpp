// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The check that every program passes before its first run.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/list.hpp>
#include <stagger/program/detail/check_gradients.hpp>
#include <stagger/program/detail/check_slots.hpp>
#include <stagger/program/detail/check_state.hpp>
#include <stagger/program/detail/lay_out_options.hpp>
#include <stagger/program/play.hpp>
#include <stagger/program/program.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger {
namespace detail {

/// Refuses indices out of range, so that the rest of the check need not look for them, and counts
/// what the rest must know beforehand.
[[gnu::cold]] inline void check_numbers(CheckState& state, GradientCheck& gradients) {
  Program const& program = state.program;
  int const ranks = static_cast<int>(program.ranks.size());
  for (int self = 0; self < ranks; ++self) {
    auto const& rank = program.ranks[self];
    int const own = rank.reducer_for < 0 ? self : rank.reducer_for;
    std::size_t waits = 0;
    for (std::size_t i = 0; i < rank.code.size(); ++i) {
      Instruction const& in = rank.code[i];
      state.at(self, i);
      if (in.signal_count > in.signal.size()) state.refuse("gives too many signals");
      for (unsigned g = 0; g < in.signal_count; ++g)
        if (in.signal[g] >= program.signals.size() || program.signals[in.signal[g]].sender != self)
          state.refuse("gives signal ", in.signal[g], ", which is not its own");
      state.count_gives(in);
      waits += in.waits;
      if (waits > rank.waits.size()) state.refuse("has more waits than there are");
      for (std::size_t w = waits - in.waits; w < waits; ++w) {
        Wait const wait = rank.waits[w];
        if (wait.count == 0) state.refuse("waits for signal ", wait.signal, " to be given 0 times");
        if (wait.signal >= program.signals.size())
          state.refuse("waits for signal ", wait.signal, ", which does not exist");
        int const receiver = program.signals[wait.signal].receiver;
        if (receiver != SignalEnds::everyone && receiver != self)
          state.refuse("waits for signal ", wait.signal, ", which is another's");
      }
      if (ends_step(in.op)) continue;
      if (in.cell >= program.cells.size() || program.cells[in.cell].rank != own ||
          program.cells[in.cell].stage != in.stage)
        state.refuse("works on cell ", in.cell, " of stage ", in.stage, ", which it does not hold");
      bool const sum_pushed = pushes(in.op) && program.pushes_sums && rank.reducer_for >= 0;
      if (!sum_pushed && adds_up(in.op) != (rank.reducer_for >= 0))
        state.refuse("adds up gradients on a computing rank, or does not on a reducer");
      if (in.microbatch >= state.units && !exchanges(in.op))
        state.refuse("works on microbatch ", in.microbatch, " of ", state.units);
      if (has_group(in.op) &&
          (in.group >= program.groups.size() || program.groups[in.group].stage != in.stage))
        state.refuse("works on gradient group ", in.group, ", which its stage does not have");
      gradients.expect(in);
    }
    state.at(self, rank.code.size());
    if (waits != rank.waits.size())
      state.refuse("has ", rank.waits.size(), " waits, of which ", waits,
                   " belong to instructions");
  }
  state.place_gives();
}

/// Plays a program in an order in which its waits allow, and calls `note` for each instruction.
/// Refuses numbers out of range and waits that cannot end.
template <class Note>
[[gnu::cold]] void play_to_end(CheckState& state, GradientCheck& gradients, Note note) {
  check_numbers(state, gradients);
  Player player(state.program);
  while (player.next()) {
    state.at(player.rank(), player.index());
    note(player);
  }
  for (Blocked const& stuck : player.blocked()) {
    state.at(stuck.rank, stuck.instruction);
    state.refuse("waits for ever for signal ", stuck.wait.signal, " to be given ", stuck.wait.count,
                 " times");
  }
}

/// Plays a program once, and compares its effects with its table, the slots, the sums of gradients
/// and the versions of the weights.
class ProgramCheck {
 public:
  [[gnu::cold]] ProgramCheck(Program const& program, schedule::Table const& table,
                             LayOutOptions const& options)
      : program_(program),
        table_(table),
        state_(program),
        slots_(options.shared != nullptr
                   ? options.shared->slots(state_, options.recompute && program.training)
                   : std::make_unique<SlotCheck>(state_, options.recompute && program.training)),
        gradients_(options.shared != nullptr ? options.shared->gradients(state_, options)
                                             : std::make_unique<GradientCheck>(state_, options)),
        versions_(options.staleness.passes != nullptr
                      ? options.staleness.passes->check(state_, options.staleness)
                      : std::make_unique<VersionCheck>(state_)),
        ranks_(program.ranks.size()),
        done_(program.cells.size() * state_.units) {
    for (int r = 0; r < program.computing; ++r) ranks_[r].left = table.row(options.row_of(r));
  }

  /// @throws Error  bad_schedule, see require_sound
  [[gnu::cold]] void run() {
    play_to_end(state_, *gradients_, [this](Player const& player) {
      state_.note_waits(player.waits());
      carry_out(*state_.in);
      note_gives(*state_.in);
    });
    require_all();
  }

 private:
  enum Done : std::uint8_t { forward_done = 1, gradient_done = 2, all_done = 4 };
  struct RankWork {
    std::span<schedule::Action const> left;  // actions of the table's row that have not run yet
    std::uint32_t target = 0xffffffff;       // whose rows of the target were gathered last
  };

  [[gnu::cold]] void note_gives(Instruction const& in) {
    for (unsigned g = 0; g < in.signal_count; ++g) {
      std::size_t const signal = in.signal[g];
      SignalEnds const& ends = program_.signals[signal];
      state_.note_give(signal);
      if (ends.edge >= 0) slots_->require_announced(signal);
      if (ends.of_group()) gradients_->require_announced(ends, state_.given(signal) - 1);
    }
  }

  [[gnu::cold]] void carry_out(Instruction const& in) {
    if (runs_layers(in.op)) {
      is_forward(in.op) ? run_forward(in) : run_backward(in);
    } else if (gathers_values(in.op)) {
      slots_->gather(in);
    } else if (gathers(in.op)) {
      ranks_[state_.rank].target = in.microbatch;
    } else if (exchanges(in.op)) {
      if (program_.flushes && in.reaches_server())
        pushes(in.op) ? gradients_->push(in) : gradients_->pull(in);
      pushes(in.op) ? versions_->push(in) : versions_->pull(in);
    } else if (ends_step(in.op)) {
      if (!program_.training || !program_.flushes || program_.ranks[state_.rank].reducer_for >= 0)
        state_.refuse("has no such end");
      gradients_->end_step(in.op);
    } else if (updates(in.op)) {
      versions_->apply(in, gradients_->ended(in.cell));
    } else if (adds_up(in.op)) {
      gradients_->reduce(in);
    }
  }

  [[gnu::cold]] void begin_action(Instruction const& in) {
    if (gradients_->has_ended(state_.rank)) state_.refuse("computes after its last gradient");
    slots_->read_input(in);
    versions_->read(in);
  }

  [[gnu::cold]] void run_forward(Instruction const& in) {
    auto& done = done_[in.cell * state_.units + in.microbatch];
    bool const again = repeats(in.op);
    if (!again) take_action(in);
    begin_action(in);
    if (done != (again ? forward_done : 0))
      state_.refuse(
          again ? "recomputes a forward that has not run, or whose values are no longer needed"
                : "runs twice");
    done = forward_done;
    slots_->keep(in);
    if (!again) slots_->write_output(in);
    if (!program_.training) require_target(in);
  }

  [[gnu::cold]] void run_backward(Instruction const& in) {
    auto& done = done_[in.cell * state_.units + in.microbatch];
    bool const later_part = computes_part(in.op) && gradients_->begun_last(in.cell);
    if (!later_part) take_action(in);
    begin_action(in);
    slots_->read_kept(in);
    if (gives_input_gradient(in.op)) {
      if (done != forward_done && !later_part) state_.refuse("runs before its F, or a second time");
      done |= gradient_done;
      require_target(in);
      slots_->write_gradients(in, gradients_->is_last_part(in));
    }
    slots_->read_gradients(in);
    if (!gives_weight_gradient(in.op)) return;
    if (done != (forward_done | gradient_done) && !later_part)
      state_.refuse("runs before its I, or twice");
    done |= all_done;
    gradients_->add(in);
    versions_->add(in);
    if (computes_part(in.op)) gradients_->add_part(in);
  }

  void require_target(Instruction const& in) const {
    if (program_.cells[in.cell].gathers_target && ranks_[state_.rank].target != in.microbatch)
      state_.refuse("has not gathered its rows of the target");
  }

  /// The next action of the rank's row; null at its end.
  [[nodiscard]] [[gnu::cold]] schedule::Action const* next_action() {
    auto& left = ranks_[state_.rank].left;
    while (!left.empty() && !schedule::is_compute(left.front().kind)) left = left.subspan(1);
    return left.empty() ? nullptr : &left.front();
  }
  [[gnu::cold]] void take_action(Instruction const& in) {
    schedule::Action const* const action = next_action();
    if (action == nullptr) state_.refuse("does more than the table says");
    int const unit = action->microbatch * table_.slices + action->slice;
    if (action->kind != kind_of(in.op) || action->stage != in.stage ||
        unit != static_cast<int>(in.microbatch))
      state_.refuse("runs an action that is not the next of its row in the table, which is ",
                    action->stage, schedule::name(action->kind), unit);
    auto& left = ranks_[state_.rank].left;
    left = left.subspan(1);
  }

  [[gnu::cold]] void require_all() {
    int stages = 0;
    each_stage(program_, [&](int, IndexRange cells) {
      require_stage_done(cells);
      ++stages;
    });
    for (int r = 0; r < program_.computing; ++r) {
      state_.at(r, program_.ranks[r].code.size());
      if (next_action() != nullptr) state_.refuse("ends before all that the table says is done");
      if (program_.training && program_.flushes && !gradients_->has_updated(r))
        state_.refuse("never updates its weights");
    }
    if (stages != program_.stages)
      state_.refuse("ends, when ", stages, " stages of ", program_.stages, " were done");
    state_.require_all_awaited();
  }

  /// Requires that every microbatch has run once on one of a stage's cells, and on its replicas.
  [[gnu::cold]] void require_stage_done(IndexRange cells) {
    std::uint8_t const all =
        program_.training ? forward_done | gradient_done | all_done : forward_done;
    for (std::size_t const c : cells) {
      int const rank = program_.cells[c].rank;
      state_.at(rank, program_.ranks[rank].code.size());
      versions_->require_last(c);
    }
    for (std::size_t u = 0; u < state_.units; ++u) {
      int times = 0;
      for (std::size_t const c : cells) {
        std::uint8_t const done = done_[c * state_.units + u];
        if (done != 0 && done != all)
          state_.refuse("leaves microbatch ", u, " of stage ", program_.cells[c].stage,
                        " half done");
        if (done != 0 && program_.cells[c].replica == 0) ++times;
      }
      if (times != 1)
        state_.refuse("ends, when stage ", program_.cells[cells.first].stage, " was done ", times,
                      " times for microbatch ", u);
    }
  }

  Program const& program_;
  schedule::Table const& table_;
  CheckState state_;
  std::unique_ptr<SlotCheck> slots_;
  std::unique_ptr<GradientCheck> gradients_;
  std::unique_ptr<VersionCheck> versions_;
  FixedArray<RankWork> ranks_;
  FixedArray<std::uint8_t> done_;  // [cells][microbatches]
};

}  // namespace detail

/// Refuses a program that does not do what its table says, however long actions take: each action
/// once and in its rank's order, every value written before and overwritten after all that read it,
/// each message sent once and received once, every update after all gradients that it needs,
/// weights of the version that the staleness model says, and no wait that cannot end.
///
/// @param table    that the program was made from
/// @param options  that the program was made with
/// @throws Error   bad_schedule, naming rank, instruction and what is wrong
/// @complexity     linear in the number of instructions, waits and gives
[[gnu::cold]] inline void require_sound(Program const& program, schedule::Table const& table,
                                        LayOutOptions const& options = {}) {
  detail::ProgramCheck(program, table, options).run();
}

/// Refuses a program that no table describes, since it only waits for late answers of a parameter
/// server, if it names what it does not have or waits for what never comes.
/// @throws Error   bad_schedule, as above
[[gnu::cold]] inline void require_ends(Program const& program) {
  LayOutOptions const options;
  detail::CheckState state(program);
  detail::GradientCheck gradients(state, options);
  detail::play_to_end(state, gradients, [](auto const&) {});
}

}  // namespace stagger
