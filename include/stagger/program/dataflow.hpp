// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The first pass of lowering: the cells of a table, and the edges over which they pass
///         values.
/// @source for row edges: S. Fan et al., "DAPPLE: A Pipelined Data Parallel Approach for Training
///         Large Models", PPoPP 2021, section 5.2: microbatches split and concatenated between
///         stages. Here the receiver fetches, and uneven shares are allowed.

#include <cstddef>
#include <cstdint>

#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/program/detail/messages.hpp>
#include <stagger/program/program.hpp>
#include <stagger/program/replica_counts.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger::detail {

/// When the table uses one cell. Indices count the compute actions of the cell's row.
struct CellUse {
  RowIndices forward;   // F
  RowIndices gradient;  // B or I
  RowIndices end;       // B or W; F if the table has no backward
};

/// One direction of an edge between two cells: the sender's outputs, or its input gradients, one
/// value for each microbatch.
struct DirectedEdge {
  std::size_t number = 0;  // number of the edge, as for `signal_of`
  std::size_t sender = 0;
  std::size_t receiver = 0;
  bool forward = true;
  bool by_rows = false;  // the receiver takes only some rows of each value
};

/// The signal that a value has been written.
[[nodiscard]] inline std::uint32_t full_signal(DirectedEdge const& e) {
  return signal_of(e.number, e.forward ? EdgeSignal::forward_full : EdgeSignal::backward_full);
}
/// The signal that its slot is free.
[[nodiscard]] inline std::uint32_t free_signal(DirectedEdge const& e) {
  return signal_of(e.number, e.forward ? EdgeSignal::forward_free : EdgeSignal::backward_free);
}

/// The cells of a table, and the edges between them.
struct Dataflow {
  int stages = 0;
  int depths = 0;  // length of the chain of stages
  std::size_t slices = 1;
  std::size_t units = 0;  // microbatches, or their slices
  bool training = false;
  List<Replicas::Part> parts;  // [ranks] position in the table, and share of a microbatch
  List<int> rows;              // [ranks] of the table
  List<Cell> cells;            // sorted by stage, then by rank; slots are not known yet
  List<RowEdge> row_edges;     // their signals follow those of the cells
  FixedArray<List<DirectedEdge>> sent, received;  // [cells] forward edges, then backward edges
  FixedArray<CellUse> uses;                       // [cells]
  List<std::size_t> first_cell;                   // [stages + 1]
  List<std::uint32_t> length;                     // [ranks] compute actions
  List<std::size_t> alike;  // [cells] the first cell with the same slot numbers; empty:
                            // the first replica

  [[nodiscard]] int ranks() const noexcept { return static_cast<int>(parts.size()); }
  [[nodiscard]] std::size_t unit(schedule::Action const& action) const {
    return static_cast<std::size_t>(action.microbatch) * slices +
           static_cast<std::size_t>(action.slice);
  }
  [[nodiscard]] std::size_t cell_at(int stage, int rank) const {
    std::size_t c = first_cell[stage];
    while (cells[c].rank != rank) ++c;
    return c;
  }
  [[nodiscard]] std::uint32_t length_at(std::size_t cell) const { return length[cells[cell].rank]; }
  /// Whether the ends of an edge are on different ranks.
  [[nodiscard]] bool crosses(DirectedEdge const& e) const {
    return cells[e.sender].rank != cells[e.receiver].rank;
  }
  /// The indices in the sender's row at which the values are made.
  [[nodiscard]] RowIndices const& made(DirectedEdge const& e) const {
    return e.forward ? uses[e.sender].forward : uses[e.sender].gradient;
  }
  /// The indices in the receiver's row at which they are first used.
  [[nodiscard]] RowIndices const& used(DirectedEdge const& e) const {
    return e.forward ? uses[e.receiver].forward : uses[e.receiver].gradient;
  }
};

/// @param fault  what the table does wrong with an action of this stage and microbatch
[[noreturn]] [[gnu::cold]] inline void refuse_action(schedule::Action const& action,
                                                     char const* fault) {
  raise(Errc::bad_schedule, "the table ", fault, " an action of stage ", action.stage,
        ", microbatch ", action.microbatch, "; schedule::verify says which");
}

/// Adds a cell for each stage of each rank, also for one that a rank only holds (REDUCE_GRAD).
[[gnu::cold]] inline void add_cells(Dataflow& flow, schedule::Table const& table) {
  List<int> last_owner(static_cast<std::size_t>(flow.stages), -1);
  List<Cell> by_rank;
  flow.first_cell.resize(last_owner.size() + 1);
  for (int r = 0; r < flow.ranks(); ++r)
    for (auto const& action : table.row(flow.rows[r])) {
      if (!in_range(table, action))
        raise(Errc::bad_schedule, "the table has an action of stage ", action.stage,
              ", microbatch ", action.microbatch, ", slice ", action.slice, " beyond its ",
              counted(table.stages, "stage"), ", ", counted(table.microbatches, "microbatch"),
              " and ", counted(table.slices, "slice"), "; raise its counts, or remove the action");
      if (last_owner[action.stage] == r) continue;
      last_owner[action.stage] = r;
      Cell cell;
      cell.stage = action.stage;
      cell.rank = r;
      auto const& part = flow.parts[r];
      cell.position = part.position;
      cell.replica = part.replica;
      cell.depth = cell.stage;
      cell.rows = {part.before, part.own, part.total};
      cell.gathers_target = part.replicas > 1 && cell.stage + 1 == flow.stages;
      by_rank.push_back(cell);
      ++flow.first_cell[action.stage + 1];
    }
  for (int s = 0; s < flow.stages; ++s) flow.first_cell[s + 1] += flow.first_cell[s];
  flow.cells.resize(by_rank.size());
  List<std::size_t> next = flow.first_cell;
  for (Cell const& cell : by_rank) flow.cells[next[cell.stage]++] = cell;
}

/// Requires all parts of each unit of each stage, on one position: what the passes after this one
/// take for granted when they use an index of one cell for another.
/// @throws Error  bad_schedule
[[gnu::cold]] inline void require_complete(Dataflow const& flow) {
  for (int stage = 0; stage < flow.stages; ++stage)
    for (std::size_t u = 0; u < flow.units; ++u) {
      schedule::Action const part{.stage = stage, .microbatch = static_cast<int>(u / flow.slices)};
      int owner = -1;  // position
      for (std::size_t c = flow.first_cell[stage]; c < flow.first_cell[stage + 1]; ++c) {
        CellUse const& use = flow.uses[c];
        bool const there = use.forward[u] != nowhere;
        if (there != (use.gradient[u] != nowhere) || there != (use.end[u] != nowhere))
          refuse_action(part, "lacks");
        if (!there) continue;
        int const position = flow.cells[c].position;
        if (owner >= 0 && owner != position) refuse_action(part, "repeats");
        owner = position;
      }
      if (owner < 0) refuse_action(part, "lacks");
    }
}

/// Records when each cell is used.
/// @throws Error  bad_schedule for an action that is there twice, or not at all
[[gnu::cold]] inline void add_uses(Dataflow& flow, schedule::Table const& table) {
  RowIndices const empty(flow.units, nowhere);
  flow.uses = FixedArray<CellUse>(flow.cells.size());
  for (CellUse& use : flow.uses) use.forward = use.gradient = use.end = empty;
  for (int r = 0; r < flow.ranks(); ++r) {
    std::uint32_t at = 0;
    for (auto const& action : table.row(flow.rows[r])) {
      if (!schedule::is_compute(action.kind)) continue;
      CellUse& use = flow.uses[flow.cell_at(action.stage, r)];
      auto const note = [&](bool holds, RowIndices& indices) {
        if (!holds) return;
        std::uint32_t& index = indices[flow.unit(action)];
        if (index != nowhere) refuse_action(action, "repeats");
        index = at;
      };
      note(action.kind == schedule::Kind::forward, use.forward);
      note(schedule::gives_input_gradient(action.kind), use.gradient);
      note(schedule::ends_flight(action.kind), use.end);
      flow.training = flow.training || schedule::is_backward(action.kind);
      ++at;
    }
    flow.length.push_back(at);
  }
  if (!flow.training)
    for (CellUse& use : flow.uses) use.gradient = use.end = use.forward;
  require_complete(flow);
}

/// The ranks of a table's rows. @param replicas  null or empty: one each
[[nodiscard]] [[gnu::cold]] inline List<Replicas::Part> parts_of(Replicas const* replicas,
                                                                 int rows) {
  List<Replicas::Part> parts;
  if (replicas != nullptr) parts = replicas->parts();
  if (parts.empty())
    for (int r = 0; r < rows; ++r) parts.push_back({.position = r});
  return parts;
}

/// The cells of a table, without edges.
/// @param replicas  of each row; null or empty: one each
/// @param by_rank   whether the table already has a row for each rank
/// @throws Error    bad_schedule for a table that lacks actions, repeats them, has some beyond its
///                  counts, or has too many to number them
[[nodiscard]] [[gnu::cold]] inline Dataflow read_table(schedule::Table const& table,
                                                       Replicas const* replicas,
                                                       bool by_rank = false) {
  Dataflow flow;
  flow.stages = flow.depths = table.stages;
  flow.slices = static_cast<std::size_t>(table.slices);
  flow.units = static_cast<std::size_t>(table.microbatches) * flow.slices;
  if (table.stages < 1 || table.microbatches < 1 || table.slices < 1)
    raise(Errc::bad_schedule, "a table of ", table.stages, " stages, ", table.microbatches,
          " microbatches and ", table.slices, " slices cannot be run; give at least 1 of each");
  if (table.stages > 10000 || flow.units > 65535)
    raise(Errc::bad_schedule, table.stages, " stages and ", flow.units,
          " microbatches are more than a program can number; use at most 10000 and 65535");
  // Before memory is taken for each of them.
  if (table.actions.size() / flow.units < static_cast<std::size_t>(table.stages))
    raise(Errc::bad_schedule, "the table has ", table.actions.size(), " actions, too few for ",
          table.stages, " stages of ", flow.units,
          " microbatches; schedule::verify says what is missing");
  flow.parts = parts_of(replicas, table.ranks());
  for (int r = 0; r < flow.ranks(); ++r) flow.rows.push_back(by_rank ? r : flow.parts[r].position);
  add_cells(flow, table);
  add_uses(flow, table);
  flow.sent = FixedArray<List<DirectedEdge>>(flow.cells.size());
  flow.received = FixedArray<List<DirectedEdge>>(flow.cells.size());
  return flow;
}

[[nodiscard]] inline bool equal_shares(Replicas::Part const& a, Replicas::Part const& b) {
  return a.replica == b.replica && a.before * b.total == b.before * a.total &&
         a.own * b.total == b.own * a.total;
}
[[nodiscard]] inline bool shares_overlap(RowShare const& a, RowShare const& b) {
  return a.before * b.total < (b.before + b.own) * a.total &&
         b.before * a.total < (a.before + a.own) * b.total;
}

/// Whether the replicas of two positions divide microbatches alike.
[[nodiscard]] [[gnu::cold]] inline bool same_shares(List<Replicas::Part> const& parts, int a,
                                                    int b) {
  for (auto const& x : parts) {
    if (x.position != a) continue;
    for (auto const& y : parts)
      if (y.position == b &&
          (x.replicas != y.replicas || (x.replica == y.replica && !equal_shares(x, y))))
        return false;
  }
  return true;
}

/// Whether two cells have a microbatch in common.
[[nodiscard]] [[gnu::cold]] inline bool have_common_unit(Dataflow const& flow, std::size_t c,
                                                         std::size_t d) {
  for (std::size_t u = 0; u < flow.units; ++u)
    if (flow.uses[c].forward[u] != nowhere && flow.uses[d].forward[u] != nowhere) return true;
  return false;
}

[[gnu::cold]] inline void add_direction(Dataflow& flow, DirectedEdge const& e) {
  flow.sent[e.sender].push_back(e);
  flow.received[e.receiver].push_back(e);
}

/// Links a cell to the one that receives its values.
[[gnu::cold]] inline void add_edge(Dataflow& flow, std::size_t from, std::size_t to) {
  flow.cells[from].after = static_cast<int>(to);
  flow.cells[to].before = static_cast<int>(from);
  add_direction(flow, {from, from, to, true});
  add_direction(flow, {from, to, from, false});
}

/// Adds the directions of an edge over which the receiver takes a part of each value.
[[gnu::cold]] inline void add_row_edge(Dataflow& flow, RowEdge const& edge) {
  std::size_t const number = flow.cells.size() + flow.row_edges.size();
  flow.cells[edge.from].gathers_gradient = flow.cells[edge.to].gathers_input = true;
  if (edge.forward.used) add_direction(flow, {number, edge.from, edge.to, true, true});
  if (edge.backward.used) add_direction(flow, {number, edge.to, edge.from, false, true});
  flow.row_edges.push_back(edge);
}

[[noreturn]] [[gnu::cold]] inline void refuse_owners(Cell const& cell) {
  raise(Errc::bad_schedule, "stage ", cell.stage, " on rank ", cell.rank,
        " has more than one owner of a neighbouring stage to pass its microbatches to; the engine "
        "needs every owner of a stage to pass them on to one owner of the next");
}

/// Links each cell to the one that receives its values. Where the replicas of neighbouring stages
/// divide microbatches differently, it adds a row edge between each two cells whose shares overlap.
/// @throws Error  bad_schedule where a stage's owner has several neighbours
[[gnu::cold]] inline void connect(Dataflow& flow) {
  auto& cells = flow.cells;
  for (std::size_t c = 0; c < cells.size(); ++c) {
    auto const& own = flow.parts[cells[c].rank];
    if (cells[c].stage == 0) cells[c].gathers_input = own.replicas > 1;
    if (cells[c].stage + 1 == flow.stages) continue;
    int neighbour = -1;  // position
    bool same = false;
    std::size_t const* const first = &flow.first_cell[cells[c].stage];
    for (std::size_t d = first[1]; d < first[2]; ++d) {
      auto const& other = flow.parts[cells[d].rank];
      if (other.position != neighbour) {
        if (!have_common_unit(flow, c, d)) continue;
        if (neighbour >= 0) refuse_owners(cells[c]);
        neighbour = other.position;
        same = same_shares(flow.parts, own.position, neighbour);
      }
      if (same ? own.replica != other.replica : !shares_overlap(cells[c].rows, cells[d].rows))
        continue;
      for (std::size_t e = first[0]; e < c; ++e)
        if (cells[e].position != own.position && have_common_unit(flow, e, d))
          refuse_owners(cells[d]);
      if (same) {
        add_edge(flow, c, d);
      } else {
        add_row_edge(flow, {static_cast<std::uint16_t>(c), static_cast<std::uint16_t>(d)});
      }
    }
  }
}

}  // namespace stagger::detail
