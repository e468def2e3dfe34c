// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A model of which groups of ranks share layers, as the engine holds it.

#include <cstddef>
#include <vector>

#include <stagger/core/list.hpp>
#include <stagger/parameters/parameter_memory.hpp>

namespace stagger::detail {

/// A parameter of which members of a group have pieces each, put together for the caller.
struct ShownWhole {
  std::size_t layer = 0;      // of member 0, in the engine
  std::size_t parameter = 0;  // of that layer
  ParameterBlock blocks[3];   // values, then states
};

struct GroupOps;
struct ModelState;

/// Layers that groups of ranks share, as the engine holds them: a layer for each member's part or
/// copy of one of the model.
struct Grouped {
  struct Entry {
    int number = 0;                // of the layer in the model
    bool split = false;            // it is a part, not a copy
    bool counted = true;           // else it is a further copy of one that is not split
    std::size_t first_column = 0;  // of its input
    double work = 1;               // of that of the layer of the model; 0 where there is none such
  };
  GroupOps const* ops = nullptr;
  /// Shows every parameter to the caller.
  void (*append_states)(ModelState&, std::vector<ParameterState>&) = nullptr;
  List<Entry> layers;
  std::vector<int> cuts;  // [stages - 1] first layer of each stage of programs after the first
  List<int> table_stage;  // [stages] of programs
  List<int> stage_at;     // [depths] of the table
  int table_stages = 0;
  std::size_t model_layers = 0;
};

}  // namespace stagger::detail
