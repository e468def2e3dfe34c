// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What the engine keeps for replicated stages, and a table of the functions that it calls
///         for them, so that a pipeline without replicas compiles none of these functions.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <stagger/collective/policy.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/list.hpp>
#include <stagger/engine/detail/grouped.hpp>
#include <stagger/engine/detail/request.hpp>
#include <stagger/engine/row_splitter.hpp>
#include <stagger/engine/slots.hpp>
#include <stagger/model/context.hpp>
#include <stagger/model/parameter.hpp>
#include <stagger/program/program.hpp>
#include <stagger/program/replica_counts.hpp>
#include <stagger/schedule/table.hpp>
#include <stagger/schedule/timeline.hpp>

namespace stagger {
struct Sections;
}

namespace stagger::detail {

class Machine;
class Layer;
struct ModelState;
struct ColumnOps;
struct Dataflow;
struct RankState;
struct Setup;
struct Clock;

/// How much of a stage a gradient group is.
struct GroupExtent {
  std::size_t first_layer = 0;  // of the stage, in the model
  std::size_t layers = 0;       // of the stage
  std::size_t lowest = 0;       // of the group, in the stage
  std::size_t end = 0;          // after its highest
  std::uint64_t bytes = 0;      // of its parameters
  std::uint64_t stage_bytes = 0;
};

/// A collective policy, its type erased.
struct GroupingChoice {
  using Groups = std::vector<collective::LayerGroup> (*)(void const* policy,
                                                         collective::Backward const&,
                                                         collective::CostLine);
  void const* policy = nullptr;
  Groups groups = nullptr;       // null: collective::grouping::Optimal
  int measured_steps = 5;        // whose medians it is given, after one that warms up
  std::int64_t renew_every = 0;  // steps after which all is measured again; 0: never
  bool shard_optimizer = false;  // replicas in several processes have a part of its state each
  collective::By by = collective::By::slices;
};

template <class Collective, class Line = collective::CostLine> struct AskForGroups {
  static std::vector<collective::LayerGroup> of(void const* policy,
                                                collective::Backward const& backward, Line line) {
    return static_cast<Collective const*>(policy)->groups(backward, line);
  }
};

/// @throws Error  bad_configuration for counts below 0
template <SumPolicy Collective>
[[nodiscard]] [[gnu::cold]] GroupingChoice grouping_of(Collective const& collective) {
  if (collective.measured_steps < 0 || collective.renew_every < 0)
    raise(Errc::bad_configuration, "gradients cannot be grouped after ", collective.measured_steps,
          " steps and again after ", collective.renew_every, "; use counts of at least 0");
  return {&collective,
          &AskForGroups<Collective>::of,
          collective.measured_steps,
          collective.renew_every,
          collective.shard_optimizer,
          collective.by};
}

/// How processes that share a pipeline come to the same groups of gradients. Null in one process.
struct GroupingPeers {
  void* self = nullptr;
  /// Gives to every process what was measured where the first holder of each group runs, [groups];
  /// elsewhere there are zeros. Sums that cross processes get what the line of their link says.
  void (*share)(void* self, double* backward_s, double* sum_s) = nullptr;
  /// Lets one process choose the groups, and all have them. None: each does, from the same times.
  void (*choose)(void* self, void (*choose)(Machine&), List<GradientGroup>& groups) = nullptr;
};

/// Where a cell takes rows from.
struct RowSource {
  std::size_t cell = 0;      // of the taker
  std::size_t maker = 0;     // its cell
  Places from;               // the maker's slots
  bool only_common = false;  // whether the slots hold only the rows that both ranks have
  // Where members of a group have columns, or terms to add:
  ColumnOps const* blocks = nullptr;  // null: rows alone are taken
  bool adds = false;                  // to what was taken before
  IndexRange of{};                    // columns of the maker's value
  IndexRange at{};                    // columns of the taker's
  std::size_t has = 0;                // columns that the maker's must have
  std::size_t gets = 0;               // and the taker's
};

/// The rows and memory of a rank that is one of several replicas.
struct ReplicaRank {
  List<Context::LayerShare> layer_shares;  // [layers] where groups share some
  StepArguments arguments;                 // of a replica of the last stage
  Slots target;                            // its rows of the current target
  Slots outputs;                           // [microbatches] where the caller wants them
  std::size_t last_cell = 0;               // its cell of the last stage
  bool takes_target_rows = false;
  bool counts = true;      // else another member of its group has the same losses and outputs
  List<double> uncounted;  // [microbatches] such losses
};

/// The rows of a cell.
struct CellRows {
  List<RowRange> rows;           // [microbatches]
  List<std::size_t> first_rows;  // [microbatches]
};

/// How gradients are grouped, and what that is decided from.
struct SumRun {
  enum class Phase : std::uint8_t {
    layers,   // every layer is a group, to measure its backward and its sum
    whole,    // every stage is one, to measure sums of another size
    decided,  // groups are those of the policy
  };
  List<GradientGroup> groups;  // of the next program
  Phase phase = Phase::decided;
  bool taking = false;                  // whether the current step is measured
  bool warmed_up = false;               // by a first step of this phase, which is not measured
  std::size_t steps = 0;                // measured in this phase
  std::int64_t decided_at = 0;          // step
  List<double> backward_s;              // [steps][groups] on the first of those that hold the stage
  List<double> sum_s;                   // likewise
  List<double> layer_s;                 // [layers] medians
  List<double> sample_bytes, sample_s;  // of sums
};

/// The machine's part of replication, of the loaded program.
struct ReplicaRun {
  FixedArray<ReplicaRank> ranks;
  FixedArray<CellRows> cells;
  List<RowSource> inputs, gradients;  // by taker, makers in order
  SumRun sums;
};

struct ReplicaOps {
  // of programs
  Program (*group_gradients)(Program const&, List<GradientGroup> const&, bool chain_squares,
                             bool sums_by_library);
  // of the machine
  void (*load)(Machine&);
  void (*begin_step)(Machine&);
  void (*end_step)(Machine&);
  void (*join_outputs)(Machine&);  // back ends with a memory of their own call it after all work
  void (*gather)(Machine&, RankState&, Instruction const&);
  void (*add_up)(Machine&, RankState&, Instruction const&, Clock);  // or a part of a backward
  /// For back ends without a clock: when a part of a last backward, or a sum, ran, in
  /// seconds since the step began.
  void (*note)(Machine&, RankState&, Instruction const&, double start_s, double end_s);
  bool (*measures)(ReplicaRun const&);
  List<GradientGroup> const* (*groups)(Machine&);
  GroupExtent (*extent)(Machine const&, Instruction const&);
  void (*destroy)(ReplicaRun*) noexcept;
  std::uint64_t (*bytes)(ReplicaRun const&);
  /// Refuses types of values that replicas would have to split, as far as a table shows.
  void (*require_rows)(Machine const&, schedule::Table const&, bool target_has_rows);
  /// Refuses replicas that do not fit the schedule.
  void (*require)(Replicas const&, int positions, bool synchronous);
};

/// What the engine does for groups, by address: a pipeline without any compiles none of it.
struct GroupOps {
  /// Divides the layers; null where none is worth it.
  std::shared_ptr<Grouped const> (*divide)(Setup const&, List<Layer>&);
  schedule::Table (*table)(Grouped const&, schedule::Table const&, Replicas const&);
  Sections const& (*sections)(Grouped const&);
  void (*connect)(Dataflow&, Sections const&);
  /// Refuses parts whose parameters are no pieces of a whole.
  void (*require_pieces)(ModelState const&);
  /// What is taken over an edge, beyond rows.
  void (*describe)(Machine const&, RowEdge const&, bool forward, RowSource&);
  /// Takes rows from one source.
  /// @param at         of the taker's value
  /// @param first_row  of the maker's
  /// @param rows       of the taker's in all, of the first source; else 0
  void (*take)(RowSource const&, void* to, void const* from, RowRange at, std::size_t first_row,
               std::size_t rows);
  /// Of a gathering whose values are there: what is taken from each other member of the group.
  void (*each_message)(Machine const&, Instruction const&, void* self,
                       void (*visit)(void* self, int rank, std::uint64_t bytes));
  void (*append_states)(ModelState&, std::vector<ParameterState>&);
  void (*take_back)(ModelState&);
  List<ParameterShape> (*shapes)(ModelState const&);
  /// Spans of sections as those of actions of the table.
  void (*join_spans)(Grouped const&, List<schedule::Span> const&, std::vector<schedule::Span>&);
};

/// Layers that a partitioner would have groups share; none without ops.
struct GroupChoice {
  GroupOps const* ops = nullptr;
  int members = 1;
  double threshold = 0;
  bool pairs = false;
};

}  // namespace stagger::detail
