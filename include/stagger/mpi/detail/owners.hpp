// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The processes that have the parameters of each layer, if each process holds those of its
///         own stages.

#include <algorithm>
#include <array>
#include <cstddef>
#include <exception>
#include <span>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/engine/session.hpp>
#include <stagger/mpi/detail/exchange.hpp>
#include <stagger/mpi/detail/held_parameters.hpp>
#include <stagger/mpi/detail/placement.hpp>

namespace stagger::mpi::detail {

class Owners {
 public:
  /// Allocates what `move` needs, so that a process without memory for it reports that before the
  /// others wait.
  void allocate(HeldParameters const& held, Placement const& placement) const {
    if (holders_.empty() || has_places(held, placement)) return;
    for (std::size_t l = 0; l < holders_.size(); ++l) held.machine.parameters()[l].hold();
  }

  /// Called for each further program. Before the first one all processes have all values; if a
  /// later one assigns stages to other processes, these receive them. All processes call it.
  void move(Exchange& world, HeldParameters const& held, Placement const& placement) {
    if (has_places(held, placement)) return;
    held.machine.model.put_back_wholes();
    bring_layers(world, held, -1, gathering);
    cells_.clear();
    for (Cell const& cell : held.program().cells)
      cells_.push_back({cell.stage, placement.process_of(cell.rank)});
    holders_.clear();
    for (std::size_t l = 0; l < held.machine.parameters().size(); ++l)
      holders_.push_back(placement.process_of(held.owner_of(l)));
  }

  /// Sends the values and the optimizer state of every layer from the process that updates it, one
  /// parameter after the other. All processes call it.
  /// @param to  the process that gets them; -1, or with sharded optimizer state: every process
  void gather(Exchange& world, HeldParameters const& held, Placement const& placement,
              int to) const {
    auto& machine = held.machine;
    require(world, to, -1);
    if (!machine.shards()) {
      machine.model.put_back_wholes();
      return bring_layers(world, held, to, gathering);
    }
    if (holders_.empty()) return;  // all processes have the first values
    constexpr char const* to_all = "bring parameters and optimizer state to all";
    machine.model.show_layers();
    bring_layers(world, held, -1, to_all);
    held.each_shard([&](int rank, std::size_t l, ByteRange part) {
      for (std::size_t s = 0; s < 2 && part.first < part.last; ++s)
        if (auto const bytes = machine.parameters()[l].shown_state(s, part); !bytes.empty())
          world.broadcast(bytes, placement.process_of(rank), to_all, machine.options().deadline_s);
    });
  }

  /// Shows each parameter in process `to`, which needs memory for one parameter of other processes
  /// at a time. All processes call it.
  /// @return whether this is `to`
  bool visit(Exchange& world, HeldParameters const& held, Placement const& placement, int to,
             stagger::detail::ParameterVisit const& visit) const {
    require(world, to);
    int const here = world.rank();
    auto& machine = held.machine;
    std::exception_ptr failure;  // of `visit`; the others still expect to send the rest
    auto const show = [&](ParameterState const& state) {
      try {
        if (!failure) visit.call(visit.self, state);
      } catch (...) {
        failure = std::current_exception();
      }
    };
    machine.take_back_shown();
    if (holders_.empty()) {  // all processes have the first values
      std::vector<ParameterState> states;
      if (here == to) machine.append_states(states);
      for (auto const& state : states) show(state);
    }
    Blocks memory;
    Blocks whole;
    auto const* const grouped = machine.model.grouped;
    std::size_t const layers = grouped != nullptr ? grouped->wholes.size() : holders_.size();
    for (std::size_t n = 0; n < layers && !holders_.empty(); ++n) {
      auto const of = grouped != nullptr ? grouped->wholes[n] : Whole{.first = n};
      for (std::size_t p = 0; p < machine.parameters()[of.first].count(); ++p) {
        auto state = parameter(world, held, placement, to, of.first, p, memory);
        for (int m = 0; of.split && m < of.members; ++m) {
          if (m != 0) state = parameter(world, held, placement, to, of.of(m), p, memory);
          if (here == to) put_together(machine.parameters()[of.of(m)], p, state, whole);
        }
        if (here == to) show(state);
      }
    }
    if (failure) std::rethrow_exception(failure);
    return here == to;
  }

 private:
  using Whole = stagger::detail::Grouped::Whole;
  using Blocks = std::array<std::vector<std::byte>, 3>;  // values, then states
  struct Place {
    int stage = 0;
    int process = 0;
  };

  static constexpr char const* gathering = "bring parameters to where they are asked for";

  /// Sends the values of every layer, and its optimizer state unless that is sharded, to process
  /// `to` or to all.
  void bring_layers(Exchange& world, HeldParameters const& held, int to, char const* what) const {
    double const deadline_s = held.machine.options().deadline_s;
    int const here = world.rank();
    for (std::size_t l = 0; l < holders_.size(); ++l) {
      if (to >= 0 && (to == holders_[l] || (here != to && here != holders_[l]))) continue;
      std::vector<ParameterState> states;
      held.machine.parameters()[l].hold();
      held.machine.parameters()[l].append_states(states, !held.machine.shards());
      for (auto& state : states)
        for (auto const bytes : {state.value, state.state[0], state.state[1]}) {
          if (bytes.empty()) continue;
          if (to < 0)
            world.broadcast(bytes, holders_[l], what, deadline_s);
          else if (here == to)
            world.receive(bytes, holders_[l], what, deadline_s);
          else
            world.send(bytes, to, what, deadline_s);
        }
    }
  }

  /// Whether stages lie where they lay in the program before.
  [[nodiscard]] bool has_places(HeldParameters const& held, Placement const& placement) const {
    auto const& cells = held.program().cells;
    return std::equal(cells.begin(), cells.end(), cells_.begin(), cells_.end(),
                      [&](Cell const& cell, Place const& before) {
                        return cell.stage == before.stage &&
                               placement.process_of(cell.rank) == before.process;
                      });
  }

  /// For a parameter of which members of a group have pieces: puts one into the whole, which
  /// `state` then shows.
  static void put_together(stagger::detail::LayerParameters const& part, std::size_t p,
                           ParameterState& state, Blocks& whole) {
    auto const& declaration = part.declaration(p);
    std::size_t const bytes = declaration.piece.whole * element_bytes(declaration.type);
    for (std::size_t b = 0; b < whole.size(); ++b) {
      auto& place = b == 0 ? state.value : state.state[b - 1];
      if (b > static_cast<std::size_t>(part.shape(p).states)) break;
      whole[b].resize(std::max(whole[b].size(), bytes));
      part.copy_piece(p, place.data(), whole[b].data(), false);
      place = {whole[b].data(), bytes};
    }
  }

  static void require(Exchange const& world, int process, int lowest = 0) {
    if (process < lowest || process >= world.size())
      raise(Errc::bad_configuration, "parameters cannot be gathered in process ", process,
            "; there are processes 0 to ", world.size() - 1);
  }

  /// Sends a parameter to process `to`.
  /// @param memory  for its value and states there, unless it holds all of them itself
  ParameterState parameter(Exchange& world, HeldParameters const& held, Placement const& placement,
                           int to, std::size_t l, std::size_t p, Blocks& memory) const {
    double const deadline_s = held.machine.options().deadline_s;
    int const here = world.rank();
    auto& layer = held.machine.parameters()[l];
    ParameterShape const shape = layer.shape(p);
    ByteRange const whole = layer.range(p);
    ParameterState shown{shape.name, shape.type, {}, {}};
    // What process `from` has of block b.
    auto const bring = [&](std::size_t b, int from, ByteRange part) {
      part = {std::max(part.first, whole.first), std::min(part.last, whole.last)};
      if (part.first >= part.last || (here != from && here != to)) return;
      std::span<std::byte> own;
      if (here == from) own = b == 0 ? layer.value_bytes_of(part) : layer.held_state(b - 1, part);
      if (here != to) return world.send(own, to, gathering, deadline_s);
      auto& place = b == 0 ? shown.value : shown.state[b - 1];
      if (own.size() == shape.bytes) {
        place = own;
        return;
      }
      memory[b].resize(std::max(memory[b].size(), shape.bytes));
      place = {memory[b].data(), shape.bytes};
      auto const at = place.subspan(part.first - whole.first, part.size());
      if (here == from)
        std::copy(own.begin(), own.end(), at.begin());
      else
        world.receive(at, from, gathering, deadline_s);
    };
    for (unsigned b = 0; b <= static_cast<unsigned>(shape.states); ++b)
      if (b == 0 || !held.machine.shards())
        bring(b, holders_[l], whole);
      else
        held.each_shard([&](int rank, std::size_t of, ByteRange part) {
          if (of == l) bring(b, placement.process_of(rank), part);
        });
    return shown;
  }

  std::vector<Place> cells_{};  // of the program before
  std::vector<int> holders_{};  // [layers] a process that has them; none before the first program
};

}  // namespace stagger::mpi::detail
