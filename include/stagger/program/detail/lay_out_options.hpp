// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The options of a program, on which it depends apart from its table.

#include <cstdint>
#include <memory>
#include <optional>

#include <stagger/core/list.hpp>
#include <stagger/program/program.hpp>
#include <stagger/program/replica_counts.hpp>
#include <stagger/program/versions.hpp>

namespace stagger {

struct LayOutOptions;
struct Sections;

/// How gradient groups are added up, or pushed to a parameter server.
struct GradientGroupingRules {
  bool chain_squares = false;  ///< sums of squares are passed from replica to replica
  bool by_library = false;     ///< a library synchronises the replicas instead of signals
  bool push = false;           ///< stages that one rank holds push each group by itself
  bool push_sums = false;      ///< with `push`: the others likewise, once it is added up
};

namespace detail {

class CheckState;
class GradientCheck;
class SlotCheck;
struct Dataflow;
using ConnectSections = void(Dataflow&, Sections const&);

/// What `lay_out` and `require_sound` do where there are replicas or gradient groups, by address, so
/// that other pipelines do not compile it.
struct SharedPasses {
  Program (*group_gradients)(Program const&, List<GradientGroup> const&,
                             GradientGroupingRules const&);
  std::unique_ptr<SlotCheck> (*slots)(CheckState const&, bool recompute);
  std::unique_ptr<GradientCheck> (*gradients)(CheckState const&, LayOutOptions const&);
};

}  // namespace detail

/// The options for lowering a table to a program.
struct LayOutOptions {
  bool recompute = false;  ///< keep only stage inputs from F on; run F again before B or I
  std::optional<std::uint32_t> spare_slots{};  ///< see Options
  StalenessModel staleness{};                  ///< of a run without a flush
  Replicas const* replicas = nullptr;          ///< of each row of the table; null: one each
  Sections const* sections = nullptr;          ///< of a table with a row for each rank; null: none
  /// `detail::connect_sections` if there are sections, by address, so that a pipeline without
  /// groups of ranks does not compile it.
  detail::ConnectSections* connect_sections = nullptr;
  List<GradientGroup> const* groups = nullptr;  ///< to add up during backward; null: after it
  /// `detail::shared_passes` if there are replicas or gradient groups.
  detail::SharedPasses const* shared = nullptr;
  GradientGroupingRules grouping{};

  /// The row of the table that a rank runs.
  [[nodiscard]] int row_of(int rank) const noexcept {
    if (sections != nullptr || replicas == nullptr || replicas->empty()) return rank;
    return replicas->parts()[rank].position;
  }
};

}  // namespace stagger
