// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The passes over programs whose stages update alone, or exchange parameters with a
///         server.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <stagger/core/combinations.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/list.hpp>
#include <stagger/program/dataflow.hpp>
#include <stagger/program/detail/check_versions.hpp>
#include <stagger/program/program.hpp>
#include <stagger/program/versions.hpp>

namespace stagger::detail {

/// The pass that fixes which weights each microbatch sees.
[[nodiscard]] [[gnu::cold]] inline FixedArray<Versions> versions_of(Dataflow const& flow,
                                                                    StalenessModel const& staleness,
                                                                    bool sums) {
  if (!flow.training) return {};
  bool const exchanges = staleness.exchanges();
  for (std::size_t c = 1; c < flow.cells.size(); ++c) {
    bool const alone = staleness && staleness.alone(flow.cells[c].depth);
    if (is_first_holder(flow.cells, c)) continue;
    if (flow.cells[c].position == flow.cells[c - 1].position) continue;
    Features const owners = feature::two_owners.with(feature::asynchronous, alone)
                                .with(feature::server, exchanges)
                                .with(feature::replicas, sums);
    std::string const stage = text("stage ", flow.cells[c].stage);
    require_rule(Rule::owners_alone, owners, stage, Errc::bad_schedule);
    require_rule(Rule::owners_of_a_worker, owners, stage, Errc::bad_schedule);
  }
  if (!staleness) return {};
  if (staleness.microbatches < 1 || flow.units % static_cast<unsigned>(staleness.microbatches) != 0)
    raise(Errc::bad_schedule, flow.units, " microbatches are no whole number of minibatches of ",
          staleness.microbatches, "; give a multiple of it");
  FixedArray<Versions> versions(flow.cells.size());
  for (std::size_t c = 0; c < flow.cells.size(); ++c)
    if (staleness.alone(flow.cells[c].depth) && !is_first_holder(flow.cells, c))
      versions[c] = versions[c - 1];  // replicas, whose rows of the table are the same
    else if (staleness.alone(flow.cells[c].depth))
      versions[c] = staleness.fix(staleness, {flow.cells[c].stage, flow.uses[c].forward,
                                              flow.uses[c].end, flow.length_at(c)});
  return versions;
}

/// Writes, for each cell, the instructions before and after an action that change its weights:
/// updates of stages that update alone, and the exchange with a parameter server. A template for
/// the same reason as HeldVersionCheck.
/// @tparam Model  StalenessModel
template <class Model> class LoneUpdateWriter final : public UpdateWriter {
 public:
  /// @param program    says whether it flushes
  /// @param versions   [cells] of their weights; none: all stages update together, at the end
  /// @param staleness  what is pushed to a parameter server, if there is one
  [[gnu::cold]] LoneUpdateWriter(Program& program, Dataflow const& flow,
                                 FixedArray<Versions> const& versions, Model const& staleness)
      : program_(program),
        flow_(flow),
        versions_(versions),
        immediate_(staleness.immediate),
        updates_made_(flow.cells.size()),
        pulls_made_(flow.cells.size()),
        awaited_(flow.cells.size()) {
    if (!program.flushes) program.updates = static_cast<int>(versions[0].updates.size());
    if (!flow.training) return;
    program.push_minibatches = staleness.push_minibatches;
    program.late = staleness.late != nullptr;
  }

  [[gnu::cold]] void name_signals() override {
    bool shared = false;
    for (std::size_t c = 0; c < flow_.cells.size(); ++c)
      shared = shared || (updates_alone(versions_, c) && holders_of(c).size() > 1);
    if (!shared) return;
    std::size_t const outside = program_.exchanges() ? flow_.cells.size() : 0;
    std::size_t const added = 2 * flow_.cells.size();
    shared_signals_ = program_.signals.size() - outside;
    resize_signals(program_, program_.signals.size() + added);
    for (std::size_t s = shared_signals_ + outside; s-- > shared_signals_;)  // those stay the last
      program_.signals[s + added] = std::exchange(program_.signals[s], SignalEnds{});
    for (std::size_t c = 0; c < flow_.cells.size(); ++c)
      for (std::uint32_t const kind : {has_gradients, has_updated})
        program_.signals[shared_signal(c, kind)] = {flow_.cells[c].rank, SignalEnds::everyone};
  }
  [[gnu::cold]] void before_forward(RankProgram& rank, std::size_t c, std::uint32_t unit) override {
    if (program_.flushes)
      add_correction(rank, c);
    else
      add_pulls(rank, c, unit);
  }
  [[gnu::cold]] void after_action(RankProgram& rank, std::size_t c, std::uint32_t index) override {
    if (updates_alone(versions_, c)) add_update(rank, c, index);
    if (corrected_ == 0) return;
    // The pull takes what has arrived when the forward may begin, not when the rank is free.
    Instruction& pull = rank.code[corrected_ - 1];
    pull.waits = std::exchange(rank.code[corrected_].waits, std::uint16_t{0});
    corrected_ = 0;
  }
  [[gnu::cold]] void end_rank(RankProgram& rank, int self) override {
    if (program_.flushes && program_.exchanges()) add_exchange(rank, self);
    for (std::size_t c = 0; c < versions_.size(); ++c)
      if (flow_.cells[c].rank == self) add_pulls(rank, c, static_cast<std::uint32_t>(flow_.units));
  }

 private:
  /// The update that follows the action at `index`, if there is one.
  void add_update(RankProgram& rank, std::size_t c, std::uint32_t index) {
    auto const& updates = versions_[c].updates;
    std::uint32_t const next = updates_made_[c];
    if (next == updates.size() || updates[next].index != index) return;
    ++updates_made_[c];
    Instruction apply = instruction_on(flow_.cells, c, Op::apply);
    apply.set_update(next);
    apply.version = updates[next].from;
    apply.next_version = updates[next].to;
    IndexRange const holders = holders_of(c);
    if (holders.size() > 1) return add_shared_update(rank, apply, holders);
    rank.code.push_back(apply);
    if (!program_.exchanges() || program_.flushes) return;  // in a step it is pushed at the end
    auto const per_push = static_cast<std::uint32_t>(program_.push_minibatches);
    if ((next + 1) % per_push != 0 && next + 1 != updates.size()) return;
    Instruction push = apply;
    push.op = Op::push;
    push.set_round(next / per_push);
    rank.code.push_back(push);
  }

  /// Appends the update of a stage that several ranks hold: each of them adds up and updates its
  /// part once all have their gradients, and goes on once all have updated theirs.
  void add_shared_update(RankProgram& rank, Instruction apply, IndexRange holders) {
    std::size_t const c = apply.cell;
    std::uint32_t const count = apply.update() + 1;
    auto const await_others = [&](Instruction& in, std::uint32_t kind) {
      for (std::size_t const d : holders)
        if (d != c) rank.add_wait(in, shared_signal(d, kind), count);
    };
    if (rank.code.back().signal_count == rank.code.back().signal.size())
      rank.code.push_back(instruction_on(flow_.cells, c, Op::pass));
    rank.code.back().add_signal(shared_signal(c, has_gradients));
    apply.set_part(static_cast<std::uint16_t>(c - holders.first),
                   static_cast<std::uint16_t>(holders.size()));
    await_others(apply, has_gradients);
    apply.add_signal(shared_signal(c, has_updated));
    rank.code.push_back(apply);
    Instruction go_on = instruction_on(flow_.cells, c, Op::pass);
    await_others(go_on, has_updated);
    rank.code.push_back(go_on);
  }
  /// Two signals of each cell, after those of ranks and before those of a server.
  [[nodiscard]] std::uint32_t shared_signal(std::size_t c, std::uint32_t kind) const {
    return static_cast<std::uint32_t>(shared_signals_ + 2 * c) + kind;
  }
  /// The cells of a cell's stage.
  [[nodiscard]] IndexRange holders_of(std::size_t c) const {
    IndexRange holders{c, c + 1};
    while (!is_first_holder(flow_.cells, holders.first)) --holders.first;
    while (holders.last < flow_.cells.size() && !is_first_holder(flow_.cells, holders.last))
      ++holders.last;
    return holders;
  }

  /// Adds the pulls that make the weights which the forward of a unit is the first to see.
  void add_pulls(RankProgram& rank, std::size_t c, std::uint32_t unit) {
    auto const& pulls = versions_[c].pulls;
    for (; pulls_made_[c] < pulls.size() && pulls[pulls_made_[c]].microbatch == unit;
         ++pulls_made_[c]) {
      StagePull const& made = pulls[pulls_made_[c]];
      Instruction pull = instruction_on(flow_.cells, c, Op::pull);
      pull.version = made.from;
      pull.next_version = made.to;
      if (made.snapshot) pull.set_snapshot(made.rounds, made.waves, unit == flow_.units);
      add_awaiting(rank, pull);
    }
  }

  /// Adds a pull before the first forward of a step, for late values that have arrived.
  void add_correction(RankProgram& rank, std::size_t c) {
    if (!program_.late || !immediate_ || pulls_made_[c]++ != 0) return;
    rank.code.push_back(instruction_on(flow_.cells, c, Op::pull));
    corrected_ = rank.code.size();
  }

  /// Adds a push and a pull after the update of a step, for each stage whose first holder it is.
  void add_exchange(RankProgram& rank, int self) {
    for (Op const op : {Op::push, Op::pull})
      for (std::size_t c = 0; c < flow_.cells.size(); ++c) {
        if (flow_.cells[c].rank != self || !is_first_holder(flow_.cells, c)) continue;
        Instruction in = instruction_on(flow_.cells, c, op);
        if (op == Op::pull) in.set_snapshot(0, 0, false);
        add_awaiting(rank, in);
      }
  }

  /// Appends an instruction, which waits for what it needs of the server, unless one before it did.
  void add_awaiting(RankProgram& rank, Instruction in) {
    std::uint32_t const count = program_.answers_for(in);
    if (count > awaited_[in.cell])
      rank.add_wait(in, program_.outside_signal(in.cell), awaited_[in.cell] = count);
    rank.code.push_back(in);
  }

  static constexpr std::uint32_t has_gradients = 0, has_updated = 1;

  Program& program_;
  Dataflow const& flow_;
  FixedArray<Versions> const& versions_;
  bool immediate_;
  std::size_t shared_signals_ = 0;    // the first
  std::size_t corrected_ = 0;         // forward behind a pull of late values; 0: none
  List<std::uint32_t> updates_made_;  // [cells] in the instructions written so far
  List<std::uint32_t> pulls_made_;    // likewise
  List<std::uint32_t> awaited_;       // [cells] rounds of the last wait for the server
};

template <class Model> VersionPasses const* version_passes() noexcept {
  static constexpr VersionPasses passes{
      &versions_of,
      [](Program& program, Dataflow const& flow, FixedArray<Versions> const& versions,
         Model const& model) -> std::unique_ptr<UpdateWriter> {
        return std::make_unique<LoneUpdateWriter<Model>>(program, flow, versions, model);
      },
      [](CheckState const& state, Model const& model) -> std::unique_ptr<VersionCheck> {
        return std::make_unique<HeldVersionCheck<Model>>(state, model);
      }};
  return &passes;
}

/// Makes the program that only waits for the late answers of a step. `require_ends` checks it: it
/// has no action of a table, and no slot.
[[nodiscard]] [[gnu::cold]] inline Program only_answers(Program program) {
  program.training = false;
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    RankProgram rank;
    for (std::size_t c = 0; c < program.cells.size(); ++c) {
      if (program.cells[c].rank != static_cast<int>(r)) continue;
      Instruction pull = instruction_on(program.cells, c, Op::pull);
      rank.add_wait(pull, program.outside_signal(c), 1);
      rank.code.push_back(pull);
    }
    program.ranks[r] = std::move(rank);
  }
  return program;
}

}  // namespace stagger::detail
