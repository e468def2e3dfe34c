// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   From a table to a program: slots for every value in flight, signals for every message,
/// no wait too many.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/program/detail/lay_out_options.hpp>
#include <stagger/program/detail/messages.hpp>
#include <stagger/program/detail/room.hpp>
#include <stagger/program/play.hpp>
#include <stagger/program/program.hpp>
#include <stagger/program/replica_ops.hpp>
#include <stagger/program/versions.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger {

namespace detail {

class Layout {
 public:
  Layout(schedule::Table const& table, LayOutOptions const& options)
      : table_(table),
        options_(options),
        units_(static_cast<std::size_t>(table.microbatches) *
               static_cast<std::size_t>(table.slices)) {
    read_table();
    link_cells();
    fix_versions();
    spare_.assign(cells_.size() * 2, options.spare_slots.value_or(1));
    least_.assign(cells_.size() * 2, 0);
  }

  [[gnu::cold]] Program make() {
    if (!options_.spare_slots) least_ = room_used(attempt(), uses_);
    for (;;) {  // more room where the ranks would wait for each other: enough at last, since the
                // table itself does not
      Program program = attempt();
      auto const stuck = play(program);
      if (stuck.empty()) return program;
      bool more = false;
      for (Blocked const& blocked : stuck) more = make_room(blocked.wait.signal) || more;
      if (!more)
        raise(Errc::bad_schedule,
              "the table's ranks wait for each other for ever; schedule::verify names the first");
    }
  }

  [[nodiscard]] ReplicaOps const* replica_ops() const noexcept {
    return options_.replicas == nullptr ? nullptr : options_.replicas->ops();
  }

  // What the layout of replicas works on, too: see ReplicaOps.

  using enum EdgeSignal;
  [[nodiscard]] static std::size_t index(int cell) { return static_cast<std::size_t>(cell); }
  [[nodiscard]] int ranks() const {
    return replica_ops() == nullptr ? table_.ranks()
                                    : static_cast<int>(options_.replicas->parts().size());
  }
  [[nodiscard]] int position(int rank) const {
    return replica_ops() == nullptr ? rank : options_.replicas->parts()[index(rank)].position;
  }
  [[nodiscard]] bool last(std::size_t cell) const {
    return cells_[cell].stage + 1 == table_.stages;
  }
  [[nodiscard]] std::size_t row_length(std::size_t cell) const {
    return row_length_[index(cells_[cell].rank)];
  }
  [[nodiscard]] bool crosses(std::size_t edge) const {
    return cells_[edge].rank != cells_[index(cells_[edge].after)].rank;
  }
  [[nodiscard]] std::size_t unit(schedule::Action const& action) const {
    return static_cast<std::size_t>(action.microbatch) * static_cast<std::size_t>(table_.slices) +
           static_cast<std::size_t>(action.slice);
  }

  [[nodiscard]] std::size_t cell_at(int stage, int rank) const {
    for (std::size_t c = first_cell_[index(stage)]; c < first_cell_[index(stage) + 1]; ++c)
      if (cells_[c].rank == rank) return c;
    return cells_.size();
  }

  [[gnu::cold]] void read_table() {
    auto const stages = static_cast<std::size_t>(table_.stages);
    if (stages > 10000 || units_ > 65535)
      raise(Errc::bad_schedule, stages, " stages and ", units_,
            " microbatches are more than a program can number; use at most 10000 and 65535");
    List<int> last_owner(stages, -1);
    List<Cell> found;  // by rank
    first_cell_.resize(stages + 1);
    for (int r = 0; r < ranks(); ++r)
      for (auto const& action : table_.row(position(r))) {
        if (index(action.stage) >= stages || unit(action) >= units_) refuse_action(action);
        if (last_owner[index(action.stage)] == r) continue;
        last_owner[index(action.stage)] = r;
        Cell cell;
        cell.stage = action.stage;
        cell.rank = r;
        cell.position = position(r);
        if (replica_ops() != nullptr) cell.replica = options_.replicas->parts()[index(r)].replica;
        found.push_back(cell);
        ++first_cell_[index(action.stage) + 1];
      }
    for (std::size_t s = 0; s < stages; ++s) first_cell_[s + 1] += first_cell_[s];
    cells_.resize(found.size());
    List<std::size_t> next = first_cell_;
    for (Cell const& cell : found) cells_[next[index(cell.stage)]++] = cell;
    Positions const empty(units_, nowhere);
    uses_ = FixedArray<CellUse>(cells_.size());
    for (auto& use : uses_) use.forward = use.gradient = use.end = empty;
    for (int r = 0; r < ranks(); ++r) {
      std::uint32_t at = 0;
      for (auto const& action : table_.row(position(r))) {
        if (!schedule::is_compute(action.kind)) continue;
        auto& use = uses_[cell_at(action.stage, r)];
        std::size_t const u = unit(action);
        if (action.kind == schedule::Kind::forward) use.forward[u] = at;
        if (schedule::gives_input_gradient(action.kind)) use.gradient[u] = at;
        if (schedule::ends_flight(action.kind)) use.end[u] = at;
        training_ = training_ || action.kind != schedule::Kind::forward;
        ++at;
      }
      row_length_.push_back(at);
    }
    for (std::size_t c = 0; c < cells_.size(); ++c) {
      auto& use = uses_[c];
      if (!training_) use.gradient = use.end = use.forward;
      for (std::size_t u = 0; u < units_; ++u)
        if ((use.forward[u] == nowhere) != (use.gradient[u] == nowhere) ||
            (use.forward[u] == nowhere) != (use.end[u] == nowhere))
          refuse_action({schedule::Kind::forward, cells_[c].stage, static_cast<int>(u)});
    }
  }

  [[noreturn]] [[gnu::cold]] static void refuse_action(schedule::Action const& action) {
    raise(Errc::bad_schedule, "the table lacks a part of stage ", action.stage, ", microbatch ",
          action.microbatch, ", or has none such; schedule::verify says what is wrong with it");
  }

  [[nodiscard]] bool meets(std::size_t c, std::size_t d) const {
    for (std::size_t u = 0; u < units_; ++u)
      if (uses_[c].forward[u] != nowhere && uses_[d].forward[u] != nowhere) return true;
    return false;
  }

  [[gnu::cold]] void link_cells() {
    if (replica_ops() != nullptr) return replica_ops()->link(*this);
    for (std::size_t c = 0; c < cells_.size(); ++c) {
      if (last(c)) continue;
      for (std::size_t d = first_cell_[index(cells_[c].stage) + 1];
           d < first_cell_[index(cells_[c].stage) + 2]; ++d) {
        if (!meets(c, d)) continue;
        if (cells_[c].after != Cell::none || cells_[d].before != Cell::none) refuse_owners(c);
        cells_[c].after = static_cast<int>(d);
        cells_[d].before = static_cast<int>(c);
      }
    }
  }

  [[noreturn]] [[gnu::cold]] void refuse_owners(std::size_t c) const {
    raise(Errc::bad_schedule, "stage ", cells_[c].stage, " on rank ", cells_[c].rank,
          " meets more than one owner of its neighbour; the engine needs every owner of a "
          "stage to pass its microbatches on to one owner of the next");
  }

  /// Whether stages update alone, as soon as they can.
  [[nodiscard]] bool flushless() const {
    return training_ && static_cast<bool>(options_.staleness);
  }

  void fix_versions() {
    versions_ = FixedArray<Versions>(cells_.size());
    if (!flushless()) return;
    auto const per_update = static_cast<std::size_t>(options_.staleness.microbatches);
    if (options_.staleness.microbatches < 1 || units_ % per_update != 0)
      raise(Errc::bad_schedule, units_, " microbatches are no whole number of minibatches of ",
            options_.staleness.microbatches, "; give a multiple of it");
    for (std::size_t c = 0; c < cells_.size(); ++c) {
      if (first_cell_[index(cells_[c].stage)] != c)
        raise(Errc::bad_schedule, "stage ", cells_[c].stage,
              " has several owners, which must update together; use a schedule that flushes");
      versions_[c] = options_.staleness.fix(
          options_.staleness, {cells_[c].stage, uses_[c].forward, uses_[c].end, row_length(c)});
    }
  }

  [[gnu::cold]] void assign_slots() {
    for (auto* messages : {&x_, &dy_, &kept_, &inner_})
      *messages = FixedArray<Messages>(cells_.size());
    for (std::size_t c = 0; c < cells_.size(); ++c) {
      auto const& use = uses_[c];
      auto const length = row_length(c);
      auto const pool = [&](Positions const& from) {
        return Messages(from, length, use.end, length, most_alive(from, use.end, length));
      };
      auto const edge = [&](std::size_t producer, Positions const& written, Positions const& read,
                            std::size_t spare) {
        if (cells_[producer].rank == cells_[c].rank) return pool(written);
        auto const wanted = most_alive(read, use.end, length) + spare_[spare];
        return Messages(written, row_length(producer), use.end, length,
                        std::max(wanted, least_[spare]));
      };
      if (!cells_[c].first() && cells_[c].before == Cell::none) {
        x_[c] = pool(use.forward);
      } else if (!cells_[c].first()) {
        std::size_t const before = index(cells_[c].before);
        x_[c] = edge(before, uses_[before].forward, use.forward, 2 * c);
      }
      kept_[c] = pool(again() ? use.gradient : use.forward);
      if (!training_) continue;
      inner_[c] = pool(use.gradient);
      if (cells_[c].after == Cell::none) {
        dy_[c] = pool(use.gradient);
      } else {
        std::size_t const after = index(cells_[c].after);
        dy_[c] = edge(after, uses_[after].gradient, use.gradient, 2 * c + 1);
      }
    }
    if (replica_ops() != nullptr) replica_ops()->assign_slots(*this);
  }

  /// Whether F is run again before backward; F itself then keeps nothing and has slot 0.
  [[nodiscard]] bool again() const { return options_.recompute && training_; }

  void await(RankProgram& rank, Instruction& instruction, std::uint32_t which,
             std::uint32_t count) {
    rank.waits.push_back({which, count});
    ++instruction.waits;
    awaited_[which] = std::max(awaited_[which], count);
  }

  static void give(Instruction& instruction, std::uint32_t which) {
    instruction.give[instruction.gives++] = static_cast<std::uint16_t>(which);
  }

  // A rank counts two parts of each position of another: what is gathered for the action, and the
  // action. It knows how far another has come: as far as the giver of the last signal it waited
  // for. Signals are given in program order, so room made before that needs no wait.

  /// Waits for the message of a unit, which `giver` writes at `position`. It may still be on its
  /// way when its sender is known to have gone on: only a later message over the same edge replaces
  /// it.
  void await_message(RankProgram& rank, Instruction& in, std::uint32_t full,
                     Messages const& messages, std::size_t u, std::size_t giver,
                     std::uint32_t position) {
    auto& known = known_[index(cells_[giver].rank)];
    known = std::max(known, 2 * position + 2);
    if (awaited_[full] <= messages.number[u]) await(rank, in, full, messages.number[u] + 1);
  }

  /// Waits until `taker` has made room for the message of a unit.
  void await_room(RankProgram& rank, Instruction& in, std::uint32_t free, Messages const& messages,
                  std::size_t u, std::size_t taker, std::uint32_t part = 1) {
    if (messages.room[u] == 0) return;
    auto& known = known_[index(cells_[taker].rank)];
    std::uint32_t const position = 2 * messages.released[messages.room[u] - 1] + part;
    if (known > position) return;
    known = position + 1;
    await(rank, in, free, messages.room[u]);
  }

  [[gnu::cold]] void emit(RankProgram& rank, schedule::Action const& action, int owner) {
    using schedule::Kind;
    std::size_t const c = cell_at(action.stage, owner);
    std::size_t const u = unit(action);
    Instruction in;
    in.op = op_of(action.kind);
    in.stage = static_cast<std::uint16_t>(action.stage);
    in.cell = static_cast<std::uint16_t>(c);
    in.microbatch = static_cast<std::uint32_t>(u);
    bool const forward = action.kind == Kind::forward;
    bool const has_before = cells_[c].before != Cell::none;
    bool const has_after = cells_[c].after != Cell::none;
    std::size_t const before = has_before ? index(cells_[c].before) : c;
    std::size_t const after = has_after ? index(cells_[c].after) : c;
    in.kept =
        again() ? static_cast<std::uint16_t>(forward ? 0 : kept_[c].slot[u] + 1) : kept_[c].slot[u];
    if (flushless()) in.version = versions_[c].seen[u];
    if (!cells_[c].first()) in.x = x_[c].slot[u];
    if (has_after) in.y = x_[after].slot[u];
    if (training_) {
      in.dy = dy_[c].slot[u];
      in.inner = inner_[c].slot[u];
      if (has_before) in.dx = dy_[before].slot[u];
    }
    bool const from_before = has_before && crosses(before);
    bool const from_after = has_after && crosses(c);
    if (forward) {
      if (replica_ops() != nullptr) replica_ops()->emit_before(*this, rank, in);
      if (from_before)
        await_message(rank, in, signal_of(before, forward_full), x_[c], u, before,
                      uses_[before].forward[u]);
      if (from_after) await_room(rank, in, signal_of(c, forward_free), x_[after], u, after);
    }
    if (schedule::gives_input_gradient(action.kind)) {
      if (again()) {
        Instruction repeated = in;
        repeated.op = Op::recompute;
        rank.code.push_back(repeated);
      }
      if (replica_ops() != nullptr) replica_ops()->emit_before(*this, rank, in);
      if (from_after)
        await_message(rank, in, signal_of(c, backward_full), dy_[c], u, after,
                      uses_[after].gradient[u]);
      if (from_before)
        await_room(rank, in, signal_of(before, backward_free), dy_[before], u, before);
    }
    // Room first: who then sees the message knows of the room as well.
    if (training_ ? schedule::ends_flight(action.kind) : forward) {
      if (from_before) give(in, signal_of(before, forward_free));
      if (from_after && training_) give(in, signal_of(c, backward_free));
    }
    if (forward && from_after) give(in, signal_of(c, forward_full));
    if (schedule::gives_input_gradient(action.kind) && from_before)
      give(in, signal_of(before, backward_full));
    if (replica_ops() != nullptr) return replica_ops()->emit(*this, rank, in);
    rank.code.push_back(in);
  }

  /// The update that follows the action at `position`, if there is one.
  void emit_update(RankProgram& rank, std::size_t c, std::uint32_t position) {
    auto const& updates = versions_[c].updates;
    std::size_t const next = updates_made_[c];
    if (next == updates.size() || updates[next].position != position) return;
    ++updates_made_[c];
    Instruction apply;
    apply.op = Op::apply;
    apply.stage = static_cast<std::uint16_t>(cells_[c].stage);
    apply.cell = static_cast<std::uint16_t>(c);
    apply.set_update(static_cast<std::uint32_t>(next));
    apply.version = updates[next].from;
    apply.next_version = updates[next].to;
    rank.code.push_back(apply);
  }

  /// The end of a training step on one rank. Of several owners of a stage, the lowest rank adds up.
  [[gnu::cold]] void emit_end(RankProgram& rank, int self, std::uint32_t handed_in,
                              std::uint32_t done) {
    auto const of_rank = [](std::uint32_t first_signal, int r) {
      return first_signal + static_cast<std::uint32_t>(r);
    };
    Instruction hand_in;
    hand_in.op = Op::hand_in;
    Instruction finish;
    finish.op = Op::finish;
    for (std::size_t s = 0; s + 1 < first_cell_.size(); ++s) {
      std::size_t const lowest = first_cell_[s];
      for (std::size_t c = lowest + 1; c < first_cell_[s + 1]; ++c) {
        if (cells_[c].rank == self && hand_in.gives == 0) give(hand_in, of_rank(handed_in, self));
        if (cells_[lowest].rank == self) await(rank, finish, of_rank(handed_in, cells_[c].rank), 1);
      }
    }
    if (hand_in.gives != 0) rank.code.push_back(hand_in);
    give(finish, of_rank(done, self));
    rank.code.push_back(finish);
    Instruction update;
    update.op = Op::update;
    for (int other = 0; other < ranks(); ++other)
      if (other != self) await(rank, update, of_rank(done, other), 1);
    rank.code.push_back(update);
  }

  [[gnu::cold]] Program attempt() {
    assign_slots();
    auto const ranks = static_cast<std::size_t>(this->ranks());
    Program program;
    program.stages = table_.stages;
    program.microbatches = static_cast<int>(units_);
    program.training = training_;
    program.flushes = !flushless();
    if (flushless()) program.updates = static_cast<int>(versions_[0].updates.size());
    auto const handed_in =
        static_cast<std::uint32_t>((cells_.size() + cuts_.size()) * signals_per_edge);
    auto const done = static_cast<std::uint32_t>(handed_in + ranks);  // one of each for every rank
    std::size_t const signals = done + ranks;
    awaited_.assign(signals, 0);
    updates_made_.assign(cells_.size(), 0);
    if (signals > 65535)
      raise(Errc::bad_schedule, cells_.size(), " stages on ", ranks,
            " ranks need more signals than a program can number");
    program.signals.resize(signals);
    program.computing = static_cast<int>(ranks);
    for (std::size_t c = 0; c < cells_.size(); ++c) {
      if (cells_[c].after == Cell::none) continue;
      int const here = cells_[c].rank;
      int const there = cells_[index(cells_[c].after)].rank;
      program.signals[signal_of(c, forward_full)] = {here, there, cells_[c].stage};
      program.signals[signal_of(c, forward_free)] = {there, here};
      program.signals[signal_of(c, backward_full)] = {there, here, cells_[c].stage};
      program.signals[signal_of(c, backward_free)] = {here, there};
    }
    if (replica_ops() != nullptr) replica_ops()->name_signals(*this, program);
    for (std::size_t r = 0; r < ranks; ++r) {
      int const self = static_cast<int>(r);
      program.signals[handed_in + r] = program.signals[done + r] = {self, SignalEnds::everyone};
      known_.assign(ranks, 0);
      RankProgram rank;
      int in_flight = 0, peak = 0;
      std::uint32_t at = 0;
      for (auto const& action : table_.row(position(self))) {
        if (!schedule::is_compute(action.kind)) continue;
        emit(rank, action, self);
        emit_update(rank, cell_at(action.stage, self), at++);
        if (action.kind == schedule::Kind::forward) peak = std::max(peak, ++in_flight);
        if (schedule::ends_flight(action.kind) || !training_) --in_flight;
      }
      if (training_ && !flushless()) emit_end(rank, self, handed_in, done);
      program.ranks.push_back(std::move(rank));
      program.peak_in_flight.push_back(peak);
    }
    program.cells = cells_;
    program.cuts = cuts_;
    for (std::size_t c = 0; c < cells_.size(); ++c) {
      program.cells[c].x_slots = x_[c].slots;
      program.cells[c].kept_slots = kept_[c].slots + (again() ? 1 : 0);
      program.cells[c].dy_slots = dy_[c].slots;
      program.cells[c].inner_slots = inner_[c].slots;
      program.cells[c].versions = versions_[c].slots;
      if (cells_[c].gathers_gradient) program.cells[c].y_slots = y_[c].slots;
      if (cells_[c].gathers_input) program.cells[c].dx_slots = std::max(1U, dx_[c].slots);
    }
    return program;
  }

  /// @return whether the signal says that there is room, and there can be more of it
  bool make_room(std::uint32_t which) {
    std::size_t const edge = which / signals_per_edge;
    if (edge >= cells_.size())
      return replica_ops() != nullptr && replica_ops()->make_room(*this, which);
    auto const kind = static_cast<EdgeSignal>(which % signals_per_edge);
    if (kind == forward_free) return ++spare_[2 * index(cells_[edge].after)] <= units_;
    if (kind == backward_free) return ++spare_[2 * edge + 1] <= units_;
    return false;
  }

  schedule::Table const& table_;
  LayOutOptions options_;
  std::size_t units_;  // what flows: microbatches, or their slices
  bool training_ = false;
  List<Cell> cells_;
  List<Cut> cuts_;                              // their signals follow those of the cells
  FixedArray<Messages> y_, dx_;                 // [cells] of those whose neighbours gather
  FixedArray<CellUse> uses_;                    // [cells]
  List<std::size_t> first_cell_;                // [stages + 1]
  List<std::uint32_t> row_length_;              // [ranks] compute actions
  List<std::uint32_t> spare_, least_;           // [2 * cell: x, 2 * cell + 1: dy]
  FixedArray<Messages> x_, dy_, kept_, inner_;  // [cells]
  List<std::size_t> updates_made_;              // [cells] by the code emitted so far
  FixedArray<Versions> versions_;
  List<std::uint32_t> known_;    // [ranks] positions that the rank at hand knows to be done
  List<std::uint32_t> awaited_;  // [signals] the highest count that anybody waits for
};

/// A signal is given as often as somebody waits for it, and no more.
[[gnu::cold]] inline void drop_unawaited(Program& program) {
  List<std::uint32_t> awaited(program.signals.size());
  for (auto const& rank : program.ranks)
    for (Wait const& wait : rank.waits)
      awaited[wait.signal] = std::max(awaited[wait.signal], wait.count);
  List<std::uint32_t> given(program.signals.size());
  for (auto& rank : program.ranks)
    for (auto& in : rank.code) {
      std::uint8_t kept = 0;
      for (std::uint8_t g = 0; g < in.gives; ++g)
        if (++given[in.give[g]] <= awaited[in.give[g]]) in.give[kept++] = in.give[g];
      in.gives = kept;
    }
}

}  // namespace detail

/// Lowers a verified table to a program that cannot deadlock, and says what it needs: slots,
/// signals, waits.
///
/// @param table  legal by `schedule::verify`
/// @throws Error      bad_schedule for a table that the engine cannot run
/// @complexity        linear in the number of actions
[[nodiscard]] inline Program lay_out(schedule::Table const& table,
                                     LayOutOptions const& options = {}) {
  detail::Layout layout(table, options);
  Program program = layout.make();
  if (layout.replica_ops() != nullptr && options.groups != nullptr)
    program = layout.replica_ops()->group_gradients(program, *options.groups, options.chain_squares,
                                                    options.sums_by_library);
  detail::drop_unawaited(program);
  return program;
}

}  // namespace stagger
