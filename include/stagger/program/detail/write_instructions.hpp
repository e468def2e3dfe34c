// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The pass that writes the instructions: operands, waits and signals, no wait too many.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/program/dataflow.hpp>
#include <stagger/program/detail/append.hpp>
#include <stagger/program/detail/messages.hpp>
#include <stagger/program/detail/slots.hpp>
#include <stagger/program/program.hpp>
#include <stagger/program/versions.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger::detail {

/// Writes the instructions of all ranks, one row of the table at a time.
class InstructionWriter {
 public:
  /// @param versions   [cells] of their weights; none: all stages update together, at the end
  /// @param recompute  whether F runs again before its backward; it then keeps nothing at first
  InstructionWriter(schedule::Table const& table, Dataflow const& flow, SlotPlan const& slots,
                    FixedArray<Versions> const& versions, bool recompute)
      : table_(table), flow_(flow), slots_(slots), versions_(versions), recompute_(recompute) {}

  /// @throws Error  bad_schedule for more signals than a program can number
  [[nodiscard]] [[gnu::cold]] Program write() {
    Program program;
    program.stages = flow_.stages;
    program.microbatches = static_cast<int>(flow_.units);
    program.training = flow_.training;
    program.flushes = flushes();
    if (!flushes()) program.updates = static_cast<int>(versions_[0].updates.size());
    program.computing = flow_.ranks();
    program.cuts = flow_.cuts;
    add_cells(program);
    name_signals(program);
    awaited_.assign(program.signals.size(), 0);
    updates_made_.assign(flow_.cells.size(), 0);
    for (int r = 0; r < flow_.ranks(); ++r) add_rank(program, r);
    return program;
  }

 private:
  using enum EdgeSignal;
  [[nodiscard]] bool flushes() const { return versions_.size() == 0; }
  [[nodiscard]] bool crosses(std::size_t c, std::size_t d) const {
    return flow_.cells[c].rank != flow_.cells[d].rank;
  }
  [[nodiscard]] std::uint32_t signal_of_cut(std::size_t cut, EdgeSignal which) const {
    return signal_of(flow_.cells.size() + cut, which);
  }

  void add_cells(Program& program) const {
    program.cells = flow_.cells;
    for (std::size_t c = 0; c < flow_.cells.size(); ++c) {
      Cell& cell = program.cells[c];
      cell.x_slots = slots_.x[c].slots;
      cell.kept_slots = slots_.kept[c].slots + (recompute_ ? 1 : 0);
      cell.dy_slots = slots_.dy[c].slots;
      cell.inner_slots = slots_.inner[c].slots;
      if (!flushes()) cell.versions = versions_[c].slots;
      if (cell.gathers_gradient) cell.y_slots = slots_.y[c].slots;
      if (cell.gathers_input)  // at the first stage nobody takes a gradient
        cell.dx_slots = std::max(1U, slots_.dx.size() == 0 ? 0 : slots_.dx[c].slots);
    }
  }

  [[gnu::cold]] void name_signals(Program& program) {
    std::size_t const ranks = flow_.parts.size();
    handed_in_ = signal_of_cut(flow_.cuts.size(), forward_full);
    done_ = handed_in_ + static_cast<std::uint32_t>(ranks);
    if (done_ + ranks > 65535)
      raise(Errc::bad_schedule, flow_.cells.size(), " stages on ", ranks,
            " ranks need more signals than a program can number");
    program.signals.resize(done_ + ranks);
    auto const name_edge = [&](std::size_t edge, std::size_t c, std::size_t d) {
      int const here = flow_.cells[c].rank;
      int const there = flow_.cells[d].rank;
      int const stage = flow_.cells[c].stage;
      program.signals[signal_of(edge, forward_full)] = {here, there, stage};
      program.signals[signal_of(edge, forward_free)] = {there, here};
      program.signals[signal_of(edge, backward_full)] = {there, here, stage};
      program.signals[signal_of(edge, backward_free)] = {here, there};
    };
    for (std::size_t c = 0; c < flow_.cells.size(); ++c)
      if (flow_.cells[c].after != Cell::none)
        name_edge(c, c, static_cast<std::size_t>(flow_.cells[c].after));
    for (std::size_t k = 0; k < flow_.cuts.size(); ++k)
      name_edge(flow_.cells.size() + k, flow_.cuts[k].from, flow_.cuts[k].to);
    for (int r = 0; r < flow_.ranks(); ++r)
      program.signals[handed_in_ + static_cast<std::uint32_t>(r)] =
          program.signals[done_ + static_cast<std::uint32_t>(r)] = {r, SignalEnds::everyone};
  }

  [[gnu::cold]] void add_rank(Program& program, int self) {
    known_.assign(flow_.parts.size(), 0);
    RankProgram rank;
    int in_flight = 0;
    int peak = 0;
    std::uint32_t at = 0;
    for (auto const& action : table_.row(flow_.parts[self].position)) {
      if (!schedule::is_compute(action.kind)) continue;
      std::size_t const c = flow_.cell_at(action.stage, self);
      add_action(rank, action, c);
      if (!flushes()) add_update(rank, c, at);
      ++at;
      if (action.kind == schedule::Kind::forward) peak = std::max(peak, ++in_flight);
      if (schedule::ends_flight(action.kind) || !flow_.training) --in_flight;
    }
    if (flow_.training && flushes()) add_end(rank, self);
    program.ranks.push_back(std::move(rank));
    program.peak_in_flight.push_back(peak);
  }

  // A rank counts two parts of each position of another: what is gathered for the action, and the
  // action. It knows how far another has come: as far as the giver of the last signal it waited
  // for. Signals are given in program order, so a slot that was freed before that needs no wait.

  /// Waits for the message of a unit, which `giver` writes at `position`. It may still be on its
  /// way when its sender is known to have gone on: only a later message over the same edge replaces
  /// it.
  void await_message(RankProgram& rank, Instruction& in, std::uint32_t full,
                     Messages const& messages, std::size_t giver, std::uint32_t position) {
    auto& known = known_[flow_.cells[giver].rank];
    known = std::max(known, 2 * position + 2);
    std::uint32_t const number = messages.number[in.microbatch];
    if (awaited_[full] > number) return;
    awaited_[full] = number + 1;
    add_wait(rank, in, full, number + 1);
  }

  /// Waits until `taker` has freed the slot that the message of a unit goes to.
  void await_slot(RankProgram& rank, Instruction& in, std::uint32_t free, Messages const& messages,
                  std::size_t taker, std::uint32_t part = 1) {
    std::uint32_t const needed = messages.releases_needed[in.microbatch];
    if (needed == 0) return;
    auto& known = known_[flow_.cells[taker].rank];
    std::uint32_t const position = 2 * messages.release[needed - 1] + part;
    if (known > position) return;
    known = position + 1;
    add_wait(rank, in, free, needed);
  }

  /// The instruction of an action, with the slots that it works on.
  [[nodiscard]] Instruction operands(schedule::Action const& action, std::size_t c) const {
    Cell const& cell = flow_.cells[c];
    std::size_t const u = flow_.unit(action);
    Instruction in;
    in.op = op_of(action.kind);
    in.stage = static_cast<std::uint16_t>(action.stage);
    in.cell = static_cast<std::uint16_t>(c);
    in.microbatch = static_cast<std::uint32_t>(u);
    in.kept = slots_.kept[c].slot[u];
    if (recompute_) {
      ++in.kept;  // slot 0 is for F, which keeps nothing
      if (action.kind == schedule::Kind::forward) in.kept = 0;
    }
    if (!flushes()) in.version = versions_[c].seen[u];
    if (!cell.first()) in.x = slots_.x[c].slot[u];
    if (cell.after != Cell::none) in.y = slots_.x[cell.after].slot[u];
    if (!flow_.training) return in;
    in.dy = slots_.dy[c].slot[u];
    in.inner = slots_.inner[c].slot[u];
    if (cell.before != Cell::none) in.dx = slots_.dy[cell.before].slot[u];
    return in;
  }

  [[gnu::cold]] void add_action(RankProgram& rank, schedule::Action const& action, std::size_t c) {
    Cell const& cell = flow_.cells[c];
    Instruction in = operands(action, c);
    std::size_t const u = in.microbatch;
    bool const forward = action.kind == schedule::Kind::forward;
    bool const gradient = schedule::gives_input_gradient(action.kind);
    std::size_t const before =
        cell.before == Cell::none ? c : static_cast<std::size_t>(cell.before);
    std::size_t const after = cell.after == Cell::none ? c : static_cast<std::size_t>(cell.after);
    if (gradient && recompute_) {
      Instruction again = in;
      again.op = Op::recompute;
      rank.code.push_back(again);
    }
    if (forward || gradient) {
      add_gathers(rank, in, forward);
      await_cut_slots(rank, in, forward);
    }
    if (forward && crosses(before, c))
      await_message(rank, in, signal_of(before, forward_full), slots_.x[c], before,
                    flow_.uses[before].forward[u]);
    if (forward && crosses(c, after))
      await_slot(rank, in, signal_of(c, forward_free), slots_.x[after], after);
    if (gradient && crosses(c, after))
      await_message(rank, in, signal_of(c, backward_full), slots_.dy[c], after,
                    flow_.uses[after].gradient[u]);
    if (gradient && crosses(before, c))
      await_slot(rank, in, signal_of(before, backward_free), slots_.dy[before], before);
    // What is free first: who then sees the message knows of that as well.
    if (flow_.training ? schedule::ends_flight(action.kind) : forward) {
      if (crosses(before, c)) add_give(in, signal_of(before, forward_free));
      if (crosses(c, after) && flow_.training) add_give(in, signal_of(c, backward_free));
    }
    if (forward && crosses(c, after)) add_give(in, signal_of(c, forward_full));
    if (gradient && crosses(before, c)) add_give(in, signal_of(before, backward_full));
    if (flow_.cuts.empty()) return rank.code.push_back(in);
    if (flow_.training && cell.gathers_input && cell.stage != 0) in.dx = slots_.dx[c].slot[u];
    List<std::uint16_t> gives;
    for (unsigned g = 0; g < in.gives; ++g) gives.push_back(in.give[g]);
    for (std::size_t k = 0; k < flow_.cuts.size(); ++k) {
      if (forward && flow_.cuts[k].from == c)
        gives.push_back(static_cast<std::uint16_t>(signal_of_cut(k, forward_full)));
      if (gradient && flow_.cuts[k].to == c)
        gives.push_back(static_cast<std::uint16_t>(signal_of_cut(k, backward_full)));
    }
    append(rank, in, gives);
  }

  /// Before F: rows of the input. Before B or I: rows of the gradient, and of the target.
  [[gnu::cold]] void add_gathers(RankProgram& rank, Instruction const& in, bool forward) {
    std::size_t const c = in.cell;
    Cell const& cell = flow_.cells[c];
    Instruction gather = in;
    if (forward ? cell.gathers_input : cell.gathers_gradient) {
      gather.op = forward ? Op::gather_input : Op::gather_gradient;
      List<std::uint16_t> gives;
      for (std::size_t k = 0; k < flow_.cuts.size(); ++k) {
        Cut const cut = flow_.cuts[k];
        if ((forward ? cut.to : cut.from) != c) continue;
        std::size_t const from = forward ? cut.from : cut.to;
        Messages const& messages = forward ? slots_.y[from] : slots_.dx[from];
        CellUse const& use = flow_.uses[from];
        (forward ? gather.y : gather.dx) = messages.slot[in.microbatch];
        await_message(rank, gather, signal_of_cut(k, forward ? forward_full : backward_full),
                      messages, from, (forward ? use.forward : use.gradient)[in.microbatch]);
        gives.push_back(
            static_cast<std::uint16_t>(signal_of_cut(k, forward ? forward_free : backward_free)));
      }
      append(rank, gather, gives);
    }
    if (flow_.last_stage(c) && flow_.parts[cell.rank].replicas > 1 && forward != flow_.training) {
      gather.op = Op::gather_target;
      gather.waits = 0;
      append(rank, gather, {});
    }
  }

  /// Waits until all who take rows of what the instruction makes have freed its slot. They do so
  /// before their action.
  [[gnu::cold]] void await_cut_slots(RankProgram& rank, Instruction& in, bool forward) {
    constexpr std::uint32_t gathered = 0;
    for (std::size_t k = 0; k < flow_.cuts.size(); ++k) {
      Cut const cut = flow_.cuts[k];
      if (forward && cut.from == in.cell) {
        in.y = slots_.y[in.cell].slot[in.microbatch];
        await_slot(rank, in, signal_of_cut(k, forward_free), slots_.y[in.cell], cut.to, gathered);
      }
      if (!forward && cut.to == in.cell)
        await_slot(rank, in, signal_of_cut(k, backward_free), slots_.dx[in.cell], cut.from,
                   gathered);
    }
  }

  /// The update that follows the action at `position`, if there is one.
  void add_update(RankProgram& rank, std::size_t c, std::uint32_t position) {
    auto const& updates = versions_[c].updates;
    std::uint32_t const next = updates_made_[c];
    if (next == updates.size() || updates[next].position != position) return;
    ++updates_made_[c];
    Instruction apply;
    apply.op = Op::apply;
    apply.stage = static_cast<std::uint16_t>(flow_.cells[c].stage);
    apply.cell = static_cast<std::uint16_t>(c);
    apply.set_update(next);
    apply.version = updates[next].from;
    apply.next_version = updates[next].to;
    rank.code.push_back(apply);
  }

  /// The end of a training step on one rank. Of several owners of a stage, the lowest rank adds up.
  [[gnu::cold]] void add_end(RankProgram& rank, int self) {
    auto const of_rank = [](std::uint32_t first_signal, int r) {
      return first_signal + static_cast<std::uint32_t>(r);
    };
    Instruction hand_in;
    hand_in.op = Op::hand_in;
    Instruction finish;
    finish.op = Op::finish;
    for (std::size_t c = 0, lowest = 0; c < flow_.cells.size(); ++c) {
      if (flow_.cells[c].stage != flow_.cells[lowest].stage) lowest = c;
      if (c == lowest) continue;
      if (flow_.cells[c].rank == self && hand_in.gives == 0)
        add_give(hand_in, of_rank(handed_in_, self));
      if (flow_.cells[lowest].rank == self)
        add_wait(rank, finish, of_rank(handed_in_, flow_.cells[c].rank), 1);
    }
    if (hand_in.gives != 0) rank.code.push_back(hand_in);
    add_give(finish, of_rank(done_, self));
    rank.code.push_back(finish);
    Instruction update;
    update.op = Op::update;
    for (int other = 0; other < flow_.ranks(); ++other)
      if (other != self) add_wait(rank, update, of_rank(done_, other), 1);
    rank.code.push_back(update);
  }

  schedule::Table const& table_;
  Dataflow const& flow_;
  SlotPlan const& slots_;
  FixedArray<Versions> const& versions_;
  bool recompute_;
  std::uint32_t handed_in_ = 0;       // first of the signals that each rank gives
  std::uint32_t done_ = 0;            // likewise
  List<std::uint32_t> updates_made_;  // [cells] by the code written so far
  List<std::uint32_t> known_;    // [ranks] parts of positions that the rank at hand knows are done
  List<std::uint32_t> awaited_;  // [signals] the highest count that anybody waits for
};

}  // namespace stagger::detail
