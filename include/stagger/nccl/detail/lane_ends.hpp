// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Where the values of a lane lie, at either end.

#include <cstddef>
#include <cstdint>

#include <stagger/core/fixed_array.hpp>
#include <stagger/engine/distributed_state.hpp>
#include <stagger/nccl/detail/routes.hpp>
#include <stagger/nccl/error.hpp>
#include <stagger/nccl/wire.hpp>

namespace stagger::nccl::detail {

/// What travels how, between layers.
struct Wires {
  WireType const* table = nullptr;
  std::size_t count = 0;
  bool shapes_change = false;  // from step to step
};

/// Slots of both ends of each lane.
class LaneEnds {
 public:
  LaneEnds(stagger::detail::Machine& machine, Wires const& wires)
      : distributed_{machine}, wires_(wires) {}

  /// Makes them. @throws Error  bad_configuration for a value that cannot travel
  [[gnu::cold]] void load(Routes const& routes) {
    auto const& program = distributed_.program();
    if (own_slots_.size() < program.cells.size())
      own_slots_ = FixedArray<stagger::detail::DistributedState::OwnSlots>(program.cells.size());
    if (own_rows_.size() < routes.lanes().size())
      own_rows_ = FixedArray<stagger::detail::DistributedState::OwnRows>(routes.lanes().size());
    for (std::size_t n = 0; n < routes.lanes().size(); ++n) {
      Lane const& lane = routes.lanes()[n];
      if (lane.cut != Lane::whole) {
        static_cast<void>(wire(lane.cell));
        distributed_.part(program.cuts[lane.cut], lane.forward, own_rows_[n]);
      } else if (lane.forward) {
        static_cast<void>(wire(lane.cell));
        distributed_.part(lane.cell, own_slots_[lane.cell]);
      }
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
          "that returns a std::tie of such, or specialise stagger::nccl::Wire for it");
  }
  [[nodiscard]] bool shapes_change() const noexcept { return wires_.shapes_change; }

  /// Slot of a lane that an instruction gives or takes.
  [[nodiscard]] static std::size_t slot(Lane const& lane, Instruction const& in) noexcept {
    return lane.forward ? in.y : in.dx;
  }
  /// Whether no row of the microbatch goes over a lane.
  [[nodiscard]] bool empty(Lane const& lane, Instruction const& in) const noexcept {
    return lane.cut != Lane::whole &&
           distributed_.rows_across(distributed_.program().cuts[lane.cut], in.microbatch) == 0;
  }
  /// The value that goes over lane `number`; or rows of it, whose copy is enqueued.
  [[nodiscard]] void* given(Lane const& lane, std::size_t number, Instruction const& in) const {
    if (lane.cut == Lane::whole) return distributed_.given(lane.cell, lane.forward, slot(lane, in));
    return distributed_.given(distributed_.program().cuts[lane.cut], lane.forward, slot(lane, in),
                              in.microbatch, own_rows_[number]);
  }
  [[nodiscard]] void* taken(Lane const& lane, std::size_t number, Instruction const& in) const {
    return lane.cut == Lane::whole ? distributed_.taken(lane.cell, lane.forward, slot(lane, in))
                                   : own_rows_[number].taken[slot(lane, in)];
  }
  /// Whether an instruction gathers what has come over a lane.
  [[nodiscard]] bool gathers(Lane const& lane, Instruction const& in) const noexcept {
    if (lane.cut == Lane::whole || in.op != (lane.forward ? Op::gather_input : Op::gather_gradient))
      return false;
    Cut const cut = distributed_.program().cuts[lane.cut];
    return (lane.forward ? cut.to : cut.from) == in.cell;
  }

 private:
  stagger::detail::DistributedState distributed_;
  Wires wires_;
  FixedArray<stagger::detail::DistributedState::OwnSlots> own_slots_;  // [cells]
  FixedArray<stagger::detail::DistributedState::OwnRows> own_rows_;    // [lanes] of those over cuts
};

}  // namespace stagger::nccl::detail
