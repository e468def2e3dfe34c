// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Where the values of messages between GPUs lie.

#include <cstddef>

#include <stagger/core/fixed_array.hpp>
#include <stagger/cuda/detail/routes.hpp>
#include <stagger/cuda/wire.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/engine/replica_run.hpp>

namespace stagger::cuda::detail {

/// The slots at both ends of each route. Each end has its own, so that a value can be sent while
/// the previous one is still being read.
class RouteValues {
 public:
  RouteValues(stagger::detail::Machine& machine, Wires const& wires)
      : machine_(machine), wires_(wires) {}

  /// Makes the slots. Allocates only what earlier programs did not need.
  /// @throws Error bad_configuration for a value that cannot be sent
  [[gnu::cold]] void load(Routes const& routes) {
    auto const& program = machine_.program();
    std::size_t const directions = 2 * (program.cells.size() + program.row_edges.size());
    if (own_.size() < directions) own_ = FixedArray<OwnSlots>(directions);
    for (Route const& route : routes.all) {
      static_cast<void>(wire(route.cell));
      part(route);
    }
  }

  /// The functions that send the values after a cell.
  [[nodiscard]] WireType const& wire(std::size_t cell) const {
    return wire_of(wires_, type_behind(cell), machine_.run.cells[cell].back->number);
  }

  /// The number, over all routes, of the slot that an instruction sends or receives.
  [[nodiscard]] static std::size_t slot(Route const& route, Instruction const& in) noexcept {
    return route.first_slot + slot_of_route(route, in);
  }
  /// Whether no row of the microbatch is sent over a route.
  [[nodiscard]] bool empty(Route const& route, Instruction const& in) const noexcept {
    if (route.row_edge == Route::whole) return false;
    auto const [sender, receiver] = ends_of(route);
    return rows_of(sender, in).common(rows_of(receiver, in)).count() == 0;
  }
  /// The value that is sent over a route; or rows of it, whose copy is enqueued.
  [[nodiscard]] void* given(Route const& route, Instruction const& in) const {
    std::size_t const slot = slot_of_route(route, in);
    void* const own = own_[number_of(route)].given[slot];
    if (route.row_edge == Route::whole) return own;
    auto const [sender, receiver] = ends_of(route);
    auto const& cell = machine_.run.cells[sender];
    void* const value = route.forward ? cell.back->y[slot] : cell.dx[slot];
    auto const rows = rows_of(sender, in);
    auto const both = rows.common(rows_of(receiver, in));
    auto const& type = type_behind(route.cell);
    std::size_t const each = rows_for_each(type, value, rows.count());
    stagger::detail::RowSource const& source = source_of(route);
    if (each != 0 && source.blocks != nullptr) {
      std::size_t const all = source.blocks->count(value);
      source.require_columns(all);
      IndexRange const columns = source.columns(all);
      stagger::Block const size{both.count() * each, columns.size()};
      if (size.columns != all) {
        source.blocks->resize(own, value, size);
        source.blocks->copy(own, {}, value, {(both.first - rows.first) * each, columns.first},
                            size);
        return own;
      }
    }
    if (both.count() == rows.count() || each == 0) return value;
    take_rows(type, own, value, rows, both, each);
    return own;
  }
  /// The place where it is received.
  [[nodiscard]] void* taken(Route const& route, Instruction const& in) const {
    std::size_t const slot = slot_of_route(route, in);
    if (route.row_edge != Route::whole) return own_[number_of(route)].taken[slot];
    auto const& cells = machine_.run.cells;
    return route.forward ? cells[machine_.program().cells[route.cell].after].x[slot]
                         : cells[route.cell].layers.back().dy[slot];
  }
  /// Whether an instruction gathers what has arrived over a route.
  [[nodiscard]] bool gathers(Route const& route, Instruction const& in) const noexcept {
    return route.row_edge != Route::whole && gathers_values(in.op) &&
           is_forward(in.op) == route.forward && ends_of(route).receiver == in.cell;
  }

 private:
  /// Slots of one direction of an edge that only one end has.
  struct OwnSlots {
    stagger::detail::Slots given;  // of a row edge: if the sender sends only some rows of a value
    stagger::detail::Slots taken;  // of a row edge
  };
  /// The cells at the ends of a row edge.
  struct Ends {
    std::size_t sender;
    std::size_t receiver;
  };

  [[nodiscard]] static std::size_t slot_of_route(Route const& route,
                                                 Instruction const& in) noexcept {
    return route.forward ? in.y : in.dx;
  }
  [[nodiscard]] std::size_t number_of(Route const& route) const noexcept {
    bool const whole = route.row_edge == Route::whole;
    std::size_t const edge = whole ? route.cell : machine_.program().cells.size() + route.row_edge;
    return 2 * edge + (route.forward ? 0 : 1);
  }
  [[nodiscard]] Ends ends_of(Route const& route) const noexcept {
    RowEdge const edge = machine_.program().row_edges[route.row_edge];
    return route.forward ? Ends{edge.from, edge.to} : Ends{edge.to, edge.from};
  }
  [[nodiscard]] stagger::detail::RowRange rows_of(std::size_t cell,
                                                  Instruction const& in) const noexcept {
    return machine_.run.replica_run->cells[cell].rows[in.microbatch];
  }
  [[nodiscard]] stagger::detail::SlotType const& type_behind(std::size_t cell) const noexcept {
    return *machine_.run.cells[cell].layers.back().ops->output;
  }

  /// The source that takes what arrives over a route of rows.
  [[nodiscard]] stagger::detail::RowSource& source_of(Route const& route) const {
    auto const [sender, receiver] = ends_of(route);
    auto& sources = machine_.run.replica_run->sources(route.forward);
    std::size_t s = 0;
    while (sources[s].cell != receiver || sources[s].maker != sender) ++s;
    return sources[s];
  }
  /// Gives each end of a route slots of its own.
  [[gnu::cold]] void part(Route const& route) {
    auto& run = machine_.run;
    auto const& type = type_behind(route.cell);
    OwnSlots& own = own_[number_of(route)];
    own.given.provide(type, route.slots);
    if (route.row_edge == Route::whole) {
      auto& given = route.forward ? run.cells[route.cell].layers.back().y
                                  : run.cells[machine_.program().cells[route.cell].after].dx;
      given = places(own.given, type);
      return;
    }
    own.taken.provide(type, route.slots);
    stagger::detail::RowSource& source = source_of(route);
    source.whole = source.from;
    source.from = places(own.taken, type);
    source.only_common = true;
  }

  stagger::detail::Machine& machine_;
  Wires wires_;
  FixedArray<OwnSlots> own_;  // [cells and row edges][directions]
};

}  // namespace stagger::cuda::detail
