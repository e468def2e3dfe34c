// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The stages of a table, divided where members of a group exchange what they have.
///
/// A section is a run of layers of one stage of the table between two exchanges. To the passes
/// after this one it is a stage of its own; where members of groups have parts of it, the part of
/// each member is one, held by as many ranks as there are groups. So an action of the table becomes
/// an action for each section of its stage, and an exchange the gathering of rows or columns
/// between two of them.

#include <cstddef>
#include <cstdint>
#include <utility>

#include <stagger/core/error.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/list.hpp>
#include <stagger/model/split.hpp>
#include <stagger/partition/split_plan.hpp>
#include <stagger/program/dataflow.hpp>
#include <stagger/program/replica_counts.hpp>
#include <stagger/schedule/action.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger {

/// A run of layers between two exchanges.
struct Section {
  int table_stage = 0;
  int stage = 0;         ///< of the program: of member 0, those of the others follow
  bool grouped = false;  ///< members of a group have a part each, or a copy
  bool opens = true;     ///< its stage of the table
  partition::Held takes = partition::Held::rows;
  partition::Held gives = partition::Held::rows;
  bool partial = false;      ///< its gradients of the input are terms
  std::size_t features = 0;  ///< of a row of its output, of all members; 0: not known
  /// Between two others: each member adds up its own columns of what goes forward or backward, and
  /// the next section collects them from all. What is not added up passes.
  bool adds_forward = false;
  bool adds_backward = false;  ///< likewise
  [[nodiscard]] constexpr bool adds() const noexcept { return adds_forward || adds_backward; }
};

/// The sections of a model, in order.
struct Sections {
  int members = 1;  ///< of a group
  int stages = 0;   ///< of the program
  List<Section> chain;
};

namespace detail {

/// The table with sections in place of stages, and a row for each rank.
[[nodiscard]] [[gnu::cold]] inline schedule::Table table_of_sections(schedule::Table const& table,
                                                                     Replicas const& replicas,
                                                                     Sections const& sections) {
  schedule::Table made;
  made.stages = sections.stages;
  made.microbatches = table.microbatches;
  made.slices = table.slices;
  for (auto const& part : parts_of(&replicas, table.ranks())) {
    made.begin_row();
    int const member = part.replica % sections.members;
    for (auto action : table.row(part.position)) {
      if (schedule::travels(action.kind)) continue;
      bool const forward = action.kind == schedule::Kind::forward;
      int const stage = action.stage;
      std::size_t const count = sections.chain.size();
      for (std::size_t i = 0; i < count; ++i) {
        Section const& section = sections.chain[forward ? i : count - 1 - i];
        if (section.table_stage != stage) continue;
        action.stage = section.stage + (section.grouped ? member : 0);
        made.add(action);
      }
    }
  }
  return made;
}

/// Links the cells of sections.
class SectionLinks {
 public:
  SectionLinks(Dataflow& flow, Sections const& sections) : flow_(flow), sections_(sections) {}

  [[gnu::cold]] void make() {
    flow_.depths = static_cast<int>(sections_.chain.size());
    flow_.alike.resize(flow_.cells.size());
    for (int depth = 0; depth < flow_.depths; ++depth)
      for (std::size_t const c : cells_at(depth)) describe(c, depth);
    for (int depth = 0; depth + 1 < flow_.depths; ++depth)
      for (std::size_t const c : cells_at(depth)) link(c, cells_at(depth + 1));
    for (Cell& cell : flow_.cells) {
      cell.gathers_input = cell.gathers_input || (cell.depth == 0 && !cell.rows.whole());
      cell.gathers_target = cell.depth + 1 == flow_.depths && !cell.rows.whole();
    }
  }

 private:
  [[nodiscard]] Section const& section(int depth) const { return sections_.chain[depth]; }
  [[nodiscard]] int members(int depth) const {
    return section(depth).grouped ? sections_.members : 1;
  }
  [[nodiscard]] IndexRange cells_at(int depth) const {
    int const first = section(depth).stage;
    return {flow_.first_cell[first], flow_.first_cell[first + members(depth)]};
  }
  [[nodiscard]] Replicas::Part const& part(std::size_t c) const {
    return flow_.parts[flow_.cells[c].rank];
  }

  [[gnu::cold]] void describe(std::size_t c, int depth) {
    Section const& own = section(depth);
    Cell& cell = flow_.cells[c];
    int const count = members(depth);
    cell.depth = depth;
    cell.opens = own.opens;
    cell.member = part(c).replica % count;
    cell.replica = part(c).replica / count;
    cell.features = own.features;
    if (own.gives == partition::Held::columns || own.adds())
      cell.columns = features_of(cell.member, count, own.features);
    // The rows of its group: from the first row of member 0 to the last one of the last member.
    int const rank = cell.rank - cell.member;
    auto const& first = flow_.parts[rank];
    auto const& last = flow_.parts[rank + count - 1];
    cell.rows = {first.before, last.before + last.own - first.before, first.total};
    std::size_t like = cells_at(depth).first;
    while (flow_.cells[like].position != cell.position) ++like;
    flow_.alike[c] = like;
  }

  [[gnu::cold]] void link(std::size_t c, IndexRange next) {
    int const depth = flow_.cells[c].depth;
    Section const& given = section(depth);
    Section const& taken = section(depth + 1);
    using partition::GroupExchange;
    using partition::Held;
    bool const plain = !given.adds() && !taken.adds() &&
                       partition::exchange_between(given.gives, taken.takes, taken.partial) ==
                           GroupExchange::none &&
                       members(depth) == members(depth + 1);
    int neighbour = -1;  // position
    for (std::size_t const d : next) {
      Cell const& from = flow_.cells[c];
      Cell const& to = flow_.cells[d];
      if (!have_common_unit(flow_, c, d)) continue;
      if (neighbour >= 0 && neighbour != to.position) refuse_owners(from);
      neighbour = to.position;
      if (plain && same_shares(flow_.parts, from.position, to.position)) {
        if (part(c).replica != part(d).replica) continue;
        add_edge(flow_, c, d);
        continue;
      }
      if (!shares_overlap(from.rows, to.rows)) continue;
      bool const same = from.member == to.member || members(depth) == 1;
      RowEdge edge{static_cast<std::uint16_t>(c), static_cast<std::uint16_t>(d)};
      if (given.adds() || taken.adds()) {
        Section const& between = given.adds() ? given : taken;
        auto const use = [&](bool adds_up, bool adds) -> RowUse {
          if (!adds_up) return {.used = same};
          return {.part = TakenPart::kept, .adds = adds};
        };
        edge.forward = use(between.adds_forward, taken.adds() && from.member != 0);
        edge.backward = use(between.adds_backward, given.adds() && to.member != 0);
      } else {
        bool const collects = given.gives == Held::columns && taken.takes == Held::whole;
        edge.forward = {.used = same || collects || given.gives == Held::terms,
                        .part = collects ? TakenPart::put : TakenPart::all,
                        .adds = given.gives == Held::terms && from.member != 0};
        edge.backward = {.used = same || taken.partial,
                         .part = collects ? TakenPart::columns : TakenPart::all,
                         .adds = taken.partial && to.member != 0};
      }
      if (edge.forward.used || edge.backward.used) add_row_edge(flow_, edge);
    }
  }

  Dataflow& flow_;
  Sections const& sections_;
};

[[gnu::cold]] inline void connect_sections(Dataflow& flow, Sections const& sections) {
  SectionLinks(flow, sections).make();
}

}  // namespace detail
}  // namespace stagger
