// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The options of a program, on which it depends apart from its table.

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
struct SharedChecks;
}  // namespace detail

/// How gradient groups are added up, or pushed to a parameter server.
struct GradientGroupingRules {
  bool chain_squares = false;  ///< sums of squares are passed from replica to replica
  bool by_library = false;     ///< a library synchronises the replicas instead of signals
  bool push = false;           ///< stages that one rank holds push each group by itself
};

/// The options for lowering a table to a program.
struct LayOutOptions {
  bool recompute = false;  ///< keep only stage inputs from F on; run F again before B or I
  std::optional<std::uint32_t> spare_slots{};  ///< see Options
  StalenessModel staleness{};                  ///< of a run without a flush
  Replicas const* replicas = nullptr;          ///< of each row of the table; null: one each
  Sections const* sections = nullptr;          ///< of a table with a row for each rank; null: none
  /// `detail::connect_sections` if there are sections, by address, so that a pipeline without
  /// groups of ranks does not compile it.
  void (*connect_sections)(detail::Dataflow&, Sections const&) = nullptr;
  List<GradientGroup> const* groups = nullptr;  ///< to add up during backward; null: after it
  /// `stagger::group_gradients` if there are gradient groups, by address, so that a pipeline
  /// without replicas does not compile it.
  Program (*group_gradients)(Program const&, List<GradientGroup> const&,
                             GradientGroupingRules const&) = nullptr;
  /// `detail::shared_checks` if there are replicas or gradient groups, for the same reason.
  detail::SharedChecks const* shared_checks = nullptr;
  GradientGroupingRules grouping{};

  /// The row of the table that a rank runs.
  [[nodiscard]] int row_of(int rank) const noexcept {
    if (sections != nullptr || replicas == nullptr || replicas->empty()) return rank;
    return replicas->parts()[rank].position;
  }
};

}  // namespace stagger
