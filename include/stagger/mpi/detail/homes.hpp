// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Which process has the parameters of a layer, where each holds those of its own stages.

#include <cstddef>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/engine/cargo.hpp>
#include <stagger/mpi/communicator.hpp>

namespace stagger::mpi::detail {

class Homes {
 public:
  /// Another program. Before the first one all processes have all values; where a later one puts
  /// stages into other processes, they get them. All processes call it.
  /// @param process_of  [ranks]
  void move(Communicator& world, stagger::detail::Cargo const& cargo,
            std::vector<int> const& process_of) {
    auto const process = [&](int rank) { return process_of[static_cast<std::size_t>(rank)]; };
    std::vector<int> cells;
    for (Cell const& cell : cargo.program().cells) {
      cells.push_back(cell.stage);
      cells.push_back(process(cell.rank));
    }
    if (cells == cells_) return;
    gather(world, cargo, -1);
    cells_ = std::move(cells);
    home_.clear();
    for (std::size_t l = 0; l < cargo.machine.parameters().size(); ++l)
      home_.push_back(process(cargo.owner_of(l)));
  }

  /// Brings values and optimizer state of every layer from the process that updates it, one
  /// parameter after the other. All processes call it.
  /// @param to  the process that gets them; -1: every process
  void gather(Communicator& world, stagger::detail::Cargo const& cargo, int to) const {
    double const deadline_s = cargo.machine.options().deadline_s;
    int const here = world.rank();
    if (to >= world.size())
      raise(Errc::bad_configuration, "parameters cannot be gathered in process ", to,
            "; there are processes 0 to ", world.size() - 1);
    for (std::size_t l = 0; l < home_.size(); ++l) {
      if (to >= 0 && (to == home_[l] || (here != to && here != home_[l]))) continue;
      std::vector<ParameterState> states;
      cargo.machine.parameters()[l].hold();
      cargo.machine.parameters()[l].append_states(states, !cargo.machine.shards());
      for (auto& state : states)
        for (auto const bytes : {state.value, state.state[0], state.state[1]}) {
          if (bytes.empty()) continue;
          if (to < 0)
            world.broadcast(bytes, home_[l]).wait(deadline_s);
          else if (here == to)
            world.receive(world.group(), bytes, home_[l]).wait(deadline_s);
          else
            world.send(world.group(), bytes, to).wait(deadline_s);
        }
    }
  }

 private:
  std::vector<int> cells_{};  // stage and process of each
  std::vector<int> home_{};   // [layers] a process that has them; none before the first program
};

}  // namespace stagger::mpi::detail
