// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What a program depends on beside its table.

#include <cstdint>
#include <optional>

#include <stagger/core/list.hpp>
#include <stagger/program/program.hpp>
#include <stagger/program/replica_counts.hpp>
#include <stagger/program/versions.hpp>

namespace stagger {

struct Sections;
namespace detail {
struct Dataflow;
}

/// How a table becomes a program.
struct LayOutOptions {
  bool recompute = false;  ///< keep only stage inputs from F on; run F again before B or I
  std::optional<std::uint32_t> spare_slots{};  ///< see Options
  StalenessModel staleness{};                  ///< of a run without a flush
  Replicas const* replicas = nullptr;          ///< of each row of the table; null: one each
  Sections const* sections = nullptr;          ///< of a table with a row for each rank; null: none
  /// `detail::connect_sections`, where there are any: by address, so that a pipeline without groups
  /// of ranks is compiled without it.
  void (*connect_sections)(detail::Dataflow&, Sections const&) = nullptr;
  List<GradientGroup> const* groups = nullptr;  ///< to add up during backward; null: after it
  /// `stagger::group_gradients`, where there are groups: by address, so that a pipeline without
  /// replicas is compiled without it.
  Program (*group_gradients)(Program const&, List<GradientGroup> const&, bool chain_squares,
                             bool sums_by_library) = nullptr;
  bool chain_squares = false;    ///< squares of a parameter's gradient go from replica to replica
  bool sums_by_library = false;  ///< a library has the replicas wait for each other, not signals

  /// The row of the table that a rank carries out.
  [[nodiscard]] int row_of(int rank) const noexcept {
    if (sections != nullptr || replicas == nullptr || replicas->empty()) return rank;
    return replicas->parts()[rank].position;
  }
};

}  // namespace stagger
