// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What a run of a replicated pipeline keeps beside the machine's own.

#include <cstddef>
#include <cstdint>

#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/engine/cut_rows.hpp>
#include <stagger/engine/detail/request.hpp>
#include <stagger/engine/slots.hpp>

namespace stagger::detail {

/// Where a cell takes rows from.
struct RowSource {
  std::size_t cell = 0;  // of the taker
  std::size_t rank = 0;  // of the maker
  Places from;           // the maker's slots
  bool cut = false;      // or copies, of the rows that the taker has in common with the maker
};

/// What a rank has of its own as one of several replicas.
struct ReplicaRank {
  List<RowRange> rows;           // [microbatches]
  List<std::size_t> first_rows;  // [microbatches]
  StepArguments arguments;       // of a replica of the last stage
  Slots target;                  // its rows of the target at hand
  Slots outputs;                 // [microbatches] where the caller wants them
  std::size_t last_cell = 0;     // its cell of the last stage
  bool cuts_target = false;
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
  bool taking = false;                  // times in the step at hand
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
  List<RowSource> inputs, gradients;  // by taker, makers in order
  SumRun sums;
};

}  // namespace stagger::detail
