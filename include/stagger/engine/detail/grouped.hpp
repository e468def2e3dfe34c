// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A model with layers that groups of ranks share (tensor parallelism), as the engine holds
///         it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <stagger/core/list.hpp>
#include <stagger/parameters/parameter_memory.hpp>
#include <stagger/program/program.hpp>
#include <stagger/program/traffic.hpp>

namespace stagger {

namespace schedule {
struct Span;
struct Table;
struct Timeline;
}  // namespace schedule
class Replicas;
struct Sections;
struct StalenessModel;

namespace detail {

class Layer;
class Machine;
struct Dataflow;
using ConnectSections = void(Dataflow&, Sections const&);
struct ModelState;
struct RowRange;
struct RowSource;
struct TakenBlocks;

/// The layers of such a model: for each of the user's layers, one for each member's part or copy of
/// it. Its functions are virtual, so that a pipeline without groups does not compile them.
struct Grouped {
  struct Entry {
    int number = 0;                // of the user's layer
    bool split = false;            // whether it is a part, not a copy
    bool counted = true;           // false for further copies of a layer that is not split
    std::size_t first_column = 0;  // at which its input begins
    double work = 1;               // share of the work of the user's layer; 0 if there is none
  };
  /// A layer of the model, or one of the two that it is divided into.
  struct Whole {
    std::size_t first = 0;   // member 0's part or copy of it, in the engine
    int members = 1;         // that have one
    std::size_t stride = 0;  // from a member's to that of the next one
    bool split = false;      // they are parts
    [[nodiscard]] std::size_t of(int member) const noexcept {
      return first + static_cast<std::size_t>(member) * stride;
    }
  };
  List<Entry> layers;
  List<Whole> wholes;     // in order
  std::vector<int> cuts;  // [stages - 1] first layer of each stage of programs after the first
  List<int> table_stage;  // [stages of programs] stage of the table
  List<int> stage_at;     // [depths] stage of the table
  int table_stages = 0;
  std::size_t model_layers = 0;
  std::string description;                  // which layers are shared, and how
  StalenessModel const* updates = nullptr;  // of those, if they are updated in each pass

  /// Calls `visit(copy)` for the copies of a layer of the engine that further members have.
  /// @param layer  of the first member
  template <class Visit> void each_copy(std::size_t layer, Visit visit) const {
    for (Whole const& whole : wholes)
      for (int m = 1; !whole.split && whole.first == layer && m < whole.members; ++m)
        visit(whole.of(m));
  }

  /// The kind of traffic for a value that one cell takes from another.
  /// @param grouped  null: no layer is shared
  [[nodiscard]] static TrafficKind kind(Grouped const* grouped, Cell const& maker,
                                        Cell const& taker, bool forward) noexcept {
    bool const shared =
        grouped != nullptr && grouped->stage_at[maker.depth] == grouped->stage_at[taker.depth];
    if (forward) return shared ? TrafficKind::shared_activations : TrafficKind::activations;
    return shared ? TrafficKind::shared_gradients : TrafficKind::gradients;
  }

  virtual ~Grouped() = default;
  /// The table with a row for each rank.
  /// @throws Error  bad_configuration for positions that cannot form groups
  [[nodiscard]] virtual schedule::Table table(schedule::Table const&, Replicas const&) const = 0;
  [[nodiscard]] virtual Sections const& sections() const noexcept = 0;
  /// For LayOutOptions.
  [[nodiscard]] virtual ConnectSections* connects() const noexcept = 0;
  /// Refuses parts whose parameters are not pieces of whole ones.
  virtual void require_pieces(ModelState const&) const = 0;
  /// Adds to a source which columns are taken over an edge, and whether they are added.
  virtual void describe(Machine const&, RowEdge const&, bool forward, RowSource&) const = 0;
  /// Has rows of one source taken, with those of other sources of the same rows.
  /// @param at         of the taker's value
  /// @param first_row  of the maker's
  /// @param rows       for the first source, all rows of the taker's value; otherwise 0
  virtual void take(RowSource const&, TakenBlocks&, void* to, void const* from, RowRange at,
                    std::size_t first_row, std::size_t rows) const = 0;
  /// Reports what a gathering instruction takes from each other member of the group.
  virtual void each_message(Machine const&, Instruction const&, void* self,
                            void (*visit)(void* self, int rank, std::uint64_t bytes)) const = 0;
  /// Shows every parameter to the caller; if `own`, only those of which this process has at least a
  /// piece.
  virtual void append_states(ModelState&, std::vector<ParameterState>&, bool own) const = 0;
  /// Passes the values that the caller may have written to the members in this process.
  virtual void put_back(ModelState&) const = 0;
  [[nodiscard]] virtual List<ParameterShape> shapes(ModelState const&) const = 0;
  /// Adds a row to which the spans of sections are joined: one for each of the table's actions.
  virtual void add_row(List<schedule::Span> const&, schedule::Timeline&) const = 0;
};

/// A parameter of which members of a group have pieces each, put together for the caller.
struct ShownWhole {
  Grouped::Whole of;
  std::size_t parameter = 0;  // of the layer
  ParameterBlock blocks[3];   // values, then states
};

/// The layers that a partitioner lets groups share.
struct GroupChoice {
  int members = 1;
  double threshold = 0;
  bool pairs = false;
  bool each_pass = false;  // members update after each microbatch
};

}  // namespace detail
}  // namespace stagger
