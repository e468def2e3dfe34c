// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Where the values of a route lie, at either end.

#include <cstddef>
#include <cstdint>

#include <stagger/core/fixed_array.hpp>
#include <stagger/cuda/detail/options.hpp>
#include <stagger/cuda/detail/routes.hpp>
#include <stagger/engine/distributed_state.hpp>

namespace stagger::cuda::detail {

/// Slots of both ends of each route. Each end has its own, so that a value can be sent while the
/// last one is still being read.
class RouteValues {
 public:
  RouteValues(stagger::detail::Machine& machine, Wires const& wires)
      : distributed_{machine}, wires_(wires) {}

  /// Makes the slots. @throws Error  bad_configuration for a value that cannot travel
  [[gnu::cold]] void load(Routes const& routes) {
    auto const& program = distributed_.program();
    if (slots_.size() < program.cells.size())
      slots_ = FixedArray<stagger::detail::DistributedState::OwnSlots>(program.cells.size());
    if (rows_.size() < routes.all().size())
      rows_ = FixedArray<stagger::detail::DistributedState::OwnRows>(routes.all().size());
    for (std::size_t n = 0; n < routes.all().size(); ++n) {
      Route const& route = routes.all()[n];
      static_cast<void>(wire(route.cell));
      if (route.cut != Route::whole)
        distributed_.part(program.cuts[route.cut], route.forward, rows_[n]);
      else if (route.forward)
        distributed_.part(route.cell, slots_[route.cell]);
    }
  }

  /// How the values behind a cell travel.
  [[nodiscard]] WireType const& wire(std::size_t cell) const {
    auto const& type = distributed_.type_behind(cell);
    for (std::size_t i = 0; i < wires_.count; ++i)
      if (wires_.table[i].type == &type && wires_.table[i].write != nullptr) return wires_.table[i];
    int const stage = distributed_.program().cells[cell].stage;
    raise(Errc::bad_configuration, "the value between the stages ", stage, " and ", stage + 1,
          " cannot go to another GPU; make it a cuda::Tensor, give its type a member fields() "
          "that returns a std::tie of such, or specialise stagger::cuda::Wire for it");
  }
  [[nodiscard]] bool shapes_change() const noexcept { return wires_.shapes_change; }

  /// Number, over all routes, of the slot that an instruction gives or takes.
  [[nodiscard]] static std::size_t slot(Route const& route, Instruction const& in) noexcept {
    return route.first_slot + slot_of_route(route, in);
  }
  /// Whether no row of the microbatch takes a route.
  [[nodiscard]] bool empty(Route const& route, Instruction const& in) const noexcept {
    return route.cut != Route::whole && distributed_.rows_across(cut_of(route), in.microbatch) == 0;
  }
  /// The value that is sent over route `number`; or rows of it, whose copy is enqueued.
  [[nodiscard]] void* given(Route const& route, std::size_t number, Instruction const& in) const {
    std::size_t const slot = slot_of_route(route, in);
    if (route.cut == Route::whole) return distributed_.given(route.cell, route.forward, slot);
    return distributed_.given(cut_of(route), route.forward, slot, in.microbatch, rows_[number]);
  }
  /// Where it is received.
  [[nodiscard]] void* taken(Route const& route, std::size_t number, Instruction const& in) const {
    std::size_t const slot = slot_of_route(route, in);
    return route.cut == Route::whole ? distributed_.taken(route.cell, route.forward, slot)
                                     : rows_[number].taken[slot];
  }
  /// Whether an instruction gathers what has come over a route.
  [[nodiscard]] bool gathers(Route const& route, Instruction const& in) const noexcept {
    if (route.cut == Route::whole ||
        in.op != (route.forward ? Op::gather_input : Op::gather_gradient))
      return false;
    return (route.forward ? cut_of(route).to : cut_of(route).from) == in.cell;
  }

 private:
  [[nodiscard]] static std::size_t slot_of_route(Route const& route,
                                                 Instruction const& in) noexcept {
    return route.forward ? in.y : in.dx;
  }
  [[nodiscard]] Cut cut_of(Route const& route) const noexcept {
    return distributed_.program().cuts[route.cut];
  }

  stagger::detail::DistributedState distributed_;
  Wires wires_;
  FixedArray<stagger::detail::DistributedState::OwnSlots> slots_;  // [cells]
  FixedArray<stagger::detail::DistributedState::OwnRows> rows_;    // [routes], of those over cuts
};

}  // namespace stagger::cuda::detail
