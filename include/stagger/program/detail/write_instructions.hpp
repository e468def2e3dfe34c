// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The pass that writes the instructions, with operands, signals, and only the waits that
///         are needed.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/program/dataflow.hpp>
#include <stagger/program/detail/messages.hpp>
#include <stagger/program/detail/slots.hpp>
#include <stagger/program/program.hpp>
#include <stagger/program/versions.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger::detail {

/// Adds the cells with their numbers of slots.
[[gnu::cold]] inline void add_cells(Program& program, Dataflow const& flow, SlotPlan const& plan,
                                    FixedArray<Versions> const& versions, bool recompute) {
  program.cells = flow.cells;
  for (std::size_t c = 0; c < flow.cells.size(); ++c) {
    Cell& cell = program.cells[c];
    cell.x_slots = plan.x[c].slots;
    cell.kept_slots = plan.kept[c].slots + (recompute ? 1 : 0);
    cell.dy_slots = plan.dy[c].slots;
    cell.inner_slots = plan.inner[c].slots;
    if (versions.size() != 0) cell.versions = versions[c].slots;
    cell.alone = program.flushes && updates_alone(versions, c);
    cell.y_slots = plan.y[c].slots;
    if (cell.gathers_input) cell.dx_slots = std::max(1U, plan.dx[c].slots);
  }
}

/// Sets the sender and the receiver of each signal.
/// @throws Error  bad_schedule for more signals than a program can number
[[gnu::cold]] inline void name_signals(Program& program, Dataflow const& flow) {
  std::size_t const outside = program.exchanges() ? flow.cells.size() : 0;
  resize_signals(program, program.handed_in(2 * program.computing) + outside);
  for (auto const& edges : flow.sent)
    for (DirectedEdge const& e : edges) {
      Cell const& sender = flow.cells[e.sender];
      Cell const& receiver = flow.cells[e.receiver];
      program.signals[full_signal(e)] = {sender.rank, receiver.rank,
                                         std::min(sender.depth, receiver.depth)};
      program.signals[free_signal(e)] = {receiver.rank, sender.rank};
    }
  for (int r = 0; r < program.computing; ++r)
    program.signals[program.handed_in(r)] =
        program.signals[program.finished(r)] = {r, SignalEnds::everyone};
  for (std::size_t c = 0; c < outside; ++c)
    program.signals[program.outside_signal(c)] = {SignalEnds::outside, flow.cells[c].rank};
}

/// Writes the instructions of all ranks, one row of the table at a time.
class InstructionWriter {
 public:
  /// @param versions   [cells] of their weights; none: all stages update together, at the end
  /// @param recompute  whether F runs again before its backward; it then keeps nothing at first
  /// @param staleness  what is pushed to a parameter server, if there is one
  InstructionWriter(schedule::Table const& table, Dataflow const& flow, SlotPlan const& plan,
                    FixedArray<Versions> const& versions, bool recompute,
                    StalenessModel const& staleness = {})
      : table_(table),
        flow_(flow),
        plan_(plan),
        versions_(versions),
        recompute_(recompute),
        staleness_(staleness) {}

  /// @throws Error  bad_schedule for more signals than a program can number
  [[nodiscard]] [[gnu::cold]] Program write() {
    program_.stages = flow_.stages;
    program_.microbatches = static_cast<int>(flow_.units);
    program_.training = flow_.training;
    program_.flushes = versions_.size() == 0 || staleness_.in_step();
    program_.computing = flow_.ranks();
    program_.row_edges = flow_.row_edges;
    if (staleness_.passes != nullptr)
      updates_ = staleness_.passes->writer(program_, flow_, versions_, staleness_);
    add_cells(program_, flow_, plan_, versions_, recompute_);
    name_signals(program_, flow_);
    if (updates_ != nullptr) updates_->name_signals();
    awaited_.assign(program_.signals.size(), 0);
    for (int r = 0; r < flow_.ranks(); ++r) add_rank(r);
    return std::move(program_);
  }

 private:
  [[gnu::cold]] void add_rank(int self) {
    known_.assign(flow_.parts.size(), 0);
    lasts_.assign(flow_.cells.size(), {});
    RankProgram rank;
    int in_flight = 0;
    int peak = 0;
    std::uint32_t at = 0;
    for (auto const& action : table_.row(flow_.rows[self])) {
      if (!schedule::is_compute(action.kind)) continue;
      std::size_t const c = flow_.cell_at(action.stage, self);
      if (updates_ != nullptr && action.kind == schedule::Kind::forward)
        updates_->before_forward(rank, c, static_cast<std::uint32_t>(flow_.unit(action)));
      add_action(rank, action, c);
      if (updates_ != nullptr) updates_->after_action(rank, c, at);
      ++at;
      if (!flow_.cells[c].opens) continue;
      if (action.kind == schedule::Kind::forward) peak = std::max(peak, ++in_flight);
      if (schedule::ends_flight(action.kind) || !flow_.training) --in_flight;
    }
    if (flow_.training && program_.flushes) {
      for (Last const& last : lasts_) {
        if (last.input != none) rank.code[last.input].next_version |= Instruction::ends_inputs;
        if (last.weight != none) rank.code[last.weight].next_version |= Instruction::ends_weights;
      }
      add_end(rank, self);
    }
    if (updates_ != nullptr) updates_->end_rank(rank, self);
    program_.ranks.push_back(std::move(rank));
    program_.peak_in_flight.push_back(peak);
  }

  // A rank counts two parts of each action of another: what is gathered for the action, and the
  // action. It knows how far another has come: as far as the sender of the last signal it waited
  // for. Signals are given in program order, so a slot that was freed before that needs no wait.

  /// Waits for the message of a unit. It may still be in transit when its sender is known to have
  /// gone on, so only the wait for a later message over the same edge implies it.
  [[gnu::cold]] void await_message(RankProgram& rank, Instruction& in, DirectedEdge const& e) {
    auto& known = known_[flow_.cells[e.sender].rank];
    known = std::max(known, 2 * flow_.made(e)[in.microbatch] + 2);
    std::uint32_t const number = plan_.of(e).number[in.microbatch];
    if (awaited_[full_signal(e)] > number) return;
    awaited_[full_signal(e)] = number + 1;
    rank.add_wait(in, full_signal(e), number + 1);
  }

  /// Waits until the receivers of the instruction's result have freed its slot. Receivers that
  /// gather rows do so before their action.
  [[gnu::cold]] void await_slots(RankProgram& rank, Instruction& in, bool forward, bool by_rows) {
    for (DirectedEdge const& e : flow_.sent[in.cell]) {
      if (e.forward != forward || e.by_rows != by_rows || !flow_.crosses(e)) continue;
      Messages const& messages = plan_.of(e);
      std::uint32_t const needed = messages.releases_needed[in.microbatch];
      if (needed == 0) continue;
      auto& known = known_[flow_.cells[e.receiver].rank];
      std::uint32_t const index = 2 * messages.release[needed - 1] + (by_rows ? 0 : 1);
      if (known > index) continue;
      known = index + 1;
      rank.add_wait(in, free_signal(e), needed);
    }
  }

  /// The instruction of an action, with the slots that it works on.
  [[nodiscard]] Instruction operands(schedule::Action const& action, std::size_t c) const {
    Cell const& cell = flow_.cells[c];
    std::size_t const u = flow_.unit(action);
    Instruction in = instruction_on(flow_.cells, c, op_of(action.kind));
    in.microbatch = static_cast<std::uint32_t>(u);
    in.kept = plan_.kept[c].slot[u];
    if (recompute_) {
      ++in.kept;  // slot 0 is for F, which keeps nothing
      if (action.kind == schedule::Kind::forward) in.kept = 0;
    }
    if (updates_alone(versions_, c)) in.version = versions_[c].seen[u];
    if (!cell.first()) in.x = plan_.x[c].slot[u];
    if (cell.after != Cell::none) in.y = plan_.x[cell.after].slot[u];
    if (!flow_.training) return in;
    in.dy = plan_.dy[c].slot[u];
    in.inner = plan_.inner[c].slot[u];
    if (cell.before != Cell::none) in.dx = plan_.dy[cell.before].slot[u];
    return in;
  }

  [[gnu::cold]] void add_action(RankProgram& rank, schedule::Action const& action, std::size_t c) {
    Cell const& cell = flow_.cells[c];
    Instruction in = operands(action, c);
    bool const forward = action.kind == schedule::Kind::forward;
    bool const gradient = schedule::gives_input_gradient(action.kind);
    if (gradient && recompute_) {
      Instruction again = in;
      again.op = Op::recompute;
      rank.code.push_back(again);
    }
    if (forward || gradient) {
      add_gathers(rank, in, forward);
      await_slots(rank, in, forward, true);
      for (DirectedEdge const& e : flow_.received[c])
        if (e.forward == forward && !e.by_rows && flow_.crosses(e)) await_message(rank, in, e);
      await_slots(rank, in, forward, false);
    }
    if (forward && cell.gathers_gradient) in.y = plan_.y[c].slot[in.microbatch];
    if (flow_.training && cell.gathers_input && cell.depth != 0)
      in.dx = plan_.dx[c].slot[in.microbatch];
    // Signals for free slots are given first, so that a rank which waits for the message also knows
    // about the slots.
    gives_.clear();
    if (flow_.training ? schedule::ends_flight(action.kind) : forward)
      for (DirectedEdge const& e : flow_.received[c])
        if (!e.by_rows && flow_.crosses(e) && (e.forward || flow_.training))
          gives_.push_back(static_cast<std::uint16_t>(free_signal(e)));
    for (DirectedEdge const& e : flow_.sent[c])
      if ((e.forward ? forward : gradient) && flow_.crosses(e))
        gives_.push_back(static_cast<std::uint16_t>(full_signal(e)));
    if (gradient) lasts_[c].input = rank.code.size();
    if (gives_weight_gradient(in.op)) lasts_[c].weight = rank.code.size();
    rank.append(in, gives_);
  }

  /// Before F: rows of the input. Before B or I: rows of the gradient, and of the target.
  [[gnu::cold]] void add_gathers(RankProgram& rank, Instruction const& in, bool forward) {
    Cell const& cell = flow_.cells[in.cell];
    Instruction gather = in;
    if (forward ? cell.gathers_input : cell.gathers_gradient) {
      gather.op = forward ? Op::gather_input : Op::gather_gradient;
      gives_.clear();
      for (DirectedEdge const& e : flow_.received[in.cell]) {
        if (!e.by_rows || e.forward != forward) continue;
        (forward ? gather.y : gather.dx) = plan_.of(e).slot[in.microbatch];
        if (!flow_.crosses(e)) continue;
        await_message(rank, gather, e);
        gives_.push_back(static_cast<std::uint16_t>(free_signal(e)));
      }
      rank.append(gather, gives_);
    }
    if (cell.gathers_target && forward != flow_.training) {
      gather.op = Op::gather_target;
      gather.waits = 0;
      rank.append(gather, {});
    }
  }

  /// The end of a training step on one rank. Of several owners of a stage, the lowest rank adds up.
  [[gnu::cold]] void add_end(RankProgram& rank, int self) {
    Instruction hand_in;
    hand_in.op = Op::hand_in;
    Instruction finish;
    finish.op = Op::finish;
    for (std::size_t c = 0, lowest = 0; c < flow_.cells.size(); ++c) {
      if (flow_.cells[c].stage != flow_.cells[lowest].stage) lowest = c;
      if (c == lowest) continue;
      if (flow_.cells[c].rank == self && hand_in.signal_count == 0)
        hand_in.add_signal(program_.handed_in(self));
      if (flow_.cells[lowest].rank == self)
        rank.add_wait(finish, program_.handed_in(flow_.cells[c].rank), 1);
    }
    if (hand_in.signal_count != 0) rank.code.push_back(hand_in);
    finish.add_signal(program_.finished(self));
    rank.code.push_back(finish);
    Instruction update;
    update.op = Op::update;
    for (int other = 0; other < flow_.ranks(); ++other)
      if (other != self) rank.add_wait(update, program_.finished(other), 1);
    rank.code.push_back(update);
  }

  static constexpr std::size_t none = ~std::size_t{};
  /// Where the rank's last backwards of a stage are in its code.
  struct Last {
    std::size_t input = none;
    std::size_t weight = none;
  };

  schedule::Table const& table_;
  Dataflow const& flow_;
  SlotPlan const& plan_;
  FixedArray<Versions> const& versions_;
  bool recompute_;
  StalenessModel const& staleness_;
  Program program_;
  std::unique_ptr<UpdateWriter> updates_;  // null: all stages update together, at the end
  List<std::uint32_t> known_;    // [ranks] parts of actions that the rank knows to be done
  List<std::uint32_t> awaited_;  // [signals] the highest count that any rank waits for
  List<std::uint16_t> gives_;    // signals of the current instruction
  List<Last> lasts_;             // [cells]
};

}  // namespace stagger::detail
