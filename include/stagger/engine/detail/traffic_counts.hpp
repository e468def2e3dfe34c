// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The traffic between ranks: messages are counted once for each program, and bytes when a
///         step has ended.

#include <cstddef>
#include <cstdint>
#include <utility>

#include <stagger/core/fixed_array.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/list.hpp>
#include <stagger/engine/detail/model_state.hpp>
#include <stagger/engine/detail/rank.hpp>
#include <stagger/engine/replica_run.hpp>
#include <stagger/engine/slots.hpp>
#include <stagger/program/program.hpp>
#include <stagger/program/traffic.hpp>

namespace stagger::detail {

/// Values stay in their slots until later ones overwrite them. So if all microbatches of a step
/// have one size, bytes can be counted after the step, and no action pays for it; otherwise each
/// value is counted when it is made. A back end whose ranks are in several processes counts what it
/// sends itself.
class TrafficCounts {
 public:
  /// From now on only calls of `add` count.
  void by_back_end() noexcept { by_back_end_ = true; }

  /// Finds the messages of a program.
  [[gnu::cold]] void load(Program const& program, FixedArray<StageRun> const& cells,
                          ModelState const& model) {
    measure_step();
    program_ = &program;
    grouped_ = model.grouped;
    if (total_.ranks() == 0) total_ = step_ = Traffic(static_cast<std::size_t>(program.computing));
    values_.clear();
    rows_.clear();
    if (by_back_end_) return;
    for (std::size_t c = 0; c < cells.size(); ++c)
      for (bool const forward : {true, false}) find_values(cells[c], c, forward);
    if (program.training) find_sums(program, model);
  }

  /// Finds the messages of cells whose neighbours divide microbatches differently, after `load`.
  /// Only the part for replicas calls it, so that other pipelines do not compile it and `add_rows`.
  [[gnu::cold]] void find_rows(Program const& program, FixedArray<StageRun> const& cells,
                               ReplicaRun const& replicas) {
    replicas_ = &replicas;
    if (by_back_end_) return;
    add_rows_ = &TrafficCounts::add_rows;
    for (auto const& rank : program.ranks)
      for (Instruction const& in : rank.code) {
        if (!gathers_values(in.op)) continue;
        bool const forward = is_forward(in.op);
        int const to = program.cells[in.cell].rank;
        for (RowSource const& source : replicas_->sources(forward))
          if (source.cell == in.cell && program.cells[source.maker].rank != to)
            rows_.push_back({source.maker, in.cell, forward, in.microbatch,
                             &cells[in.cell].taken(forward), source.from[forward ? in.y : in.dx]});
      }
  }

  /// Adds what a rank has sent, or for pulls, received; in a step, only the rank's thread calls it.
  void add(int rank, TrafficKind kind, TrafficCount const& count) noexcept {
    total_.add(rank, kind, count);
  }

  /// @param device  whether values are in the memory of a device, which carries out the steps
  void begin_step(StepArguments const& step, ModelState const& model, bool device) {
    uneven_ = false;
    SlotType const& type = *model.layers[0].ops().input;
    if (type.payload == nullptr || step.inputs.first == nullptr || by_back_end_ || device) return;
    auto const count = static_cast<std::size_t>(program_->microbatches);
    for (std::size_t m = 1; m < count && !uneven_; ++m)
      uneven_ = type.payload(step.inputs[m]) != type.payload(step.inputs[0]);
  }
  /// Whether microbatches of the step differ in size.
  [[nodiscard]] bool uneven() const noexcept { return uneven_; }
  /// If `uneven()`, called after each instruction of a rank: counts the value that it has made for a
  /// neighbouring stage.
  [[gnu::cold]] void made(RankState const& rank, Instruction const& in) {
    bool const forward = gives_output(in.op);
    if (!gives(in, forward)) return;
    StageRun const& run = rank.cells[in.cell];
    SlotType const& type = run.made(forward);
    Places const& places = places_of(run, forward);
    std::size_t const slot = forward ? in.y : in.dx;
    auto const& cells = program_->cells;
    int const own = cells[in.cell].rank;
    if (taker_of(in.cell, forward) != Cell::none && type.payload != nullptr)
      total_.add(own, kind_of(forward), {1, type.payload(places[slot])});
    for (RowEdge const& edge : program_->row_edges)
      if (edge.maker(forward) == in.cell && edge.use(forward).used &&
          cells[edge.taker(forward)].rank != own)
        (this->*add_rows_)(in.cell, edge.taker(forward), forward, in.microbatch, type,
                           places[slot]);
  }

  // For a back end that counts what it sends itself and replays steps:

  /// From now on `add_to_step` is given what every step sends.
  void measure_step() noexcept {
    add_steps(total_);
    steps_ = 0;
    step_.clear();
  }
  void add_to_step(std::size_t rank, TrafficKind kind, TrafficCount const& count) noexcept {
    step_.add(rank, kind, count);
  }

  /// Called after a step. @param under_way  it is only enqueued, and values may still change
  void end_step(bool under_way) {
    ++steps_;
    if (uneven_) return;
    ++unmeasured_;
    if (!under_way) measure();
  }
  /// Counts the bytes of values in the slots. No step may be in flight, as for `total`.
  [[gnu::cold]] void measure() {
    for (; unmeasured_ != 0; --unmeasured_) {
      for (Values const& of : values_)
        total_.add(of.rank, of.kind, {of.messages, of.messages * of.type->payload(of.value)});
      for (RowsOf const& of : rows_)
        (this->*add_rows_)(of.from, of.to, of.forward, of.microbatch, *of.type, of.value);
    }
  }
  [[nodiscard]] Traffic total() {
    measure();
    Traffic sum = total_;
    add_steps(sum);
    return sum;
  }

 private:
  /// The values that pass through one slot in a step.
  struct Values {
    int rank = 0;  // the rank that makes them
    TrafficKind kind = TrafficKind::activations;
    std::uint64_t messages = 0;
    SlotType const* type = nullptr;
    void const* value = nullptr;
  };
  /// Rows of one value that a cell takes from another.
  struct RowsOf {
    std::size_t from = 0;
    std::size_t to = 0;
    bool forward = true;
    std::uint32_t microbatch = 0;
    SlotType const* type = nullptr;
    void const* value = nullptr;
  };

  void add_steps(Traffic& to) const noexcept {
    for (int r = 0; r < step_.ranks(); ++r)
      for (std::size_t k = 0; k < traffic_kinds; ++k) {
        auto const kind = static_cast<TrafficKind>(k);
        TrafficCount const& one = step_.of(r, kind);
        to.add(r, kind, {one.messages * steps_, one.bytes * steps_});
      }
  }
  [[nodiscard]] static TrafficKind kind_of(bool forward) noexcept {
    return forward ? TrafficKind::activations : TrafficKind::gradients;
  }
  /// Whether an instruction completes a value for the next stage, or for the one before.
  [[nodiscard]] bool gives(Instruction const& in, bool forward) const noexcept {
    if (forward) return gives_output(in.op);
    return gives_input_gradient(in.op) &&
           (!computes_part(in.op) || program_->groups[in.group].lowest == 0);
  }
  [[nodiscard]] static Places const& places_of(StageRun const& run, bool forward) noexcept {
    return forward ? run.back->y : run.dx;
  }
  /// The cell on another rank that gets whole values of a cell; Cell::none if there is none.
  [[nodiscard]] int taker_of(std::size_t c, bool forward) const noexcept {
    Cell const& cell = program_->cells[c];
    int const to = forward ? cell.after : cell.before;
    return to == Cell::none || program_->cells[to].rank == cell.rank ? Cell::none : to;
  }

  /// Adds the rows of a value that another cell takes, perhaps only some columns of them.
  void add_rows(std::size_t from, std::size_t to, bool forward, std::size_t microbatch,
                SlotType const& type, void const* value) {
    RowRange const theirs = replicas_->cells[from].rows[microbatch];
    RowRange const both = theirs.common(replicas_->cells[to].rows[microbatch]);
    if (both.count() == 0) return;
    std::uint64_t taken = type.message_bytes(value) * both.count() / theirs.count();
    for (RowSource const& source : replicas_->sources(forward)) {
      if (source.cell != to || source.maker != from || source.blocks == nullptr) continue;
      std::size_t const columns = source.blocks->count(value);
      if (columns != 0) taken = taken * source.columns(columns).size() / columns;
      break;
    }
    Cell const& taker = program_->cells[to];
    Cell const& maker = program_->cells[from];
    total_.add(maker.rank, Grouped::kind(grouped_, maker, taker, forward), {1, taken});
  }
  /// Finds the messages of a cell to that of the next stage or the one before, one for each value.
  [[gnu::cold]] void find_values(StageRun const& run, std::size_t c, bool forward) {
    int const to = taker_of(c, forward);
    if (to == Cell::none) return;
    Cell const& taker = program_->cells[to];
    int const own = program_->cells[c].rank;
    SlotType const& type = run.made(forward);
    std::size_t const first = values_.size();
    std::size_t const slots = type.payload == nullptr ? 0
                              : forward               ? taker.x_slots
                                                      : taker.dy_slots;
    for (std::size_t slot = 0; slot < slots; ++slot)
      values_.push_back({own, kind_of(forward), 0, &type, places_of(run, forward)[slot]});
    for (Instruction const& in : program_->ranks[own].code) {
      if (in.cell != c || !gives(in, forward)) continue;
      if (type.payload == nullptr)
        step_.add(own, kind_of(forward), {1, type.payload_bytes});
      else
        ++values_[first + (forward ? in.y : in.dx)].messages;
    }
  }

  /// Finds the messages with gradients of parameters, to the rank that adds them up.
  [[gnu::cold]] void find_sums(Program const& program, ModelState const& model) {
    each_stage(program, [&](int stage, IndexRange cells) {
      if (!program.groups.empty() || !program.flushes || program.cells[cells.first].alone) return;
      std::uint64_t const sum = model.bytes_of(model.layers_of(stage));
      int const to = program.cells[cells.first].rank;
      for (std::size_t const c : cells)
        if (int const rank = program.cells[c].rank; rank != to)
          step_.add(rank, TrafficKind::gradient_sums, {1, sum});
    });
    for (auto const& rank : program.ranks)
      for (Instruction const& in : rank.code) {
        if (!reduces(in.op) && !in.updates_part()) continue;
        std::uint64_t part = 0;
        for (std::size_t const l :
             reduces(in.op) ? model.layers_of(program.groups[in.group]) : model.layers_of(in.stage))
          part += model.parameters[l].part(in.part(), in.parts()).size();
        IndexRange const cells = cells_of(program, in.stage);
        for (std::size_t const c : cells)
          if (c - cells.first != in.part() && (part != 0 || reduces(in.op)))
            step_.add(program.cells[c].rank, TrafficKind::gradient_sums, {1, part});
      }
  }

  Traffic total_;  // without the steps of the loaded program that `step_` covers
  Traffic step_;   // what each step of the program sends, as far as that does not depend on values
  std::uint64_t steps_ = 0;
  std::uint64_t unmeasured_ = 0;  // steps whose bytes are not counted yet
  List<Values> values_;           // the part that depends on values
  List<RowsOf> rows_;
  Program const* program_ = nullptr;
  Grouped const* grouped_ = nullptr;
  ReplicaRun const* replicas_ = nullptr;
  /// `add_rows` if there are replicas.
  void (TrafficCounts::*add_rows_)(std::size_t from, std::size_t to, bool forward,
                                   std::size_t microbatch, SlotType const& type,
                                   void const* value) = nullptr;
  bool by_back_end_ = false;
  bool uneven_ = false;
};

}  // namespace stagger::detail
