// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A model with layers that groups of ranks share (tensor parallelism), as the engine holds
///         it.

#include <cstddef>
#include <vector>

#include <stagger/core/list.hpp>
#include <stagger/parameters/parameter_memory.hpp>

namespace stagger::detail {

/// A parameter whose pieces are with the members of a group, put together for the caller.
struct ShownWhole {
  std::size_t layer = 0;      // the engine's number of member 0's layer
  std::size_t parameter = 0;  // number in that layer
  ParameterBlock blocks[3];   // values, then states
};

struct GroupOps;
struct ModelState;

/// The layers of such a model: for each of the user's layers, one for each member's part or copy of
/// it.
struct Grouped {
  struct Entry {
    int number = 0;                // of the user's layer
    bool split = false;            // whether it is a part, not a copy
    bool counted = true;           // false for further copies of a layer that is not split
    std::size_t first_column = 0;  // at which its input begins
    double work = 1;               // share of the work of the user's layer; 0 if there is none
  };
  GroupOps const* ops = nullptr;
  /// Shows every parameter to the caller.
  void (*append_states)(ModelState&, std::vector<ParameterState>&) = nullptr;
  List<Entry> layers;
  std::vector<int> cuts;  // [stages - 1] first layer of each stage of programs after the first
  List<int> table_stage;  // [stages of programs] stage of the table
  List<int> stage_at;     // [depths] stage of the table
  int table_stages = 0;
  std::size_t model_layers = 0;
};

}  // namespace stagger::detail
