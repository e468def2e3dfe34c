// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The engine's data for replicated stages: the rows of each rank, and where they come from.

#include <array>
#include <cstddef>
#include <cstdint>

#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/list.hpp>
#include <stagger/engine/detail/grouped.hpp>
#include <stagger/engine/detail/request.hpp>
#include <stagger/engine/row_splitter.hpp>
#include <stagger/engine/slots.hpp>
#include <stagger/model/context.hpp>
#include <stagger/model/split.hpp>
#include <stagger/program/program.hpp>

namespace stagger::detail {

[[noreturn]] [[gnu::cold]] inline void refuse_columns(std::size_t columns, std::size_t expected) {
  raise(Errc::mismatch, "a member of a group has ", counted(columns, "column"),
        " of a value, where ", expected,
        " were expected; let part() of the layers take and give what features_of() says");
}

/// A source from which a cell takes rows.
struct RowSource {
  std::size_t cell = 0;      // the taker
  std::size_t maker = 0;     // the cell that makes the value
  Places from;               // the maker's slots
  bool only_common = false;  // whether the slots have only the rows that both ranks have
  Places whole{};            // the maker's slots, where `from` lacks columns that are not taken
  // If members of a group have columns, or terms to add:
  ColumnOps const* blocks = nullptr;  // null: whole rows are taken
  bool adds = false;                  // adds to what was taken before
  IndexRange of{};                    // columns of the maker's value
  IndexRange at{};                    // columns of the taker's
  std::size_t has = 0;                // columns that the maker's value must have
  std::size_t gets = 0;               // columns of the taker's value
  int share = 0;                      // number of the share that is taken
  int shares = 0;                     // into how many the columns are divided; 0: see `of`
  std::size_t member = 0;             // the taker
  std::size_t members = 1;            // of its group

  /// @throws Error  mismatch for a value that has not the columns of the maker's
  void require_columns(std::size_t all) const {
    if (has != 0 && all != has) refuse_columns(all, has);
  }
  /// The columns that are taken of a value with this many.
  [[nodiscard]] IndexRange columns(std::size_t all) const noexcept {
    if (shares != 0) return features_of(share, shares, all);
    return has != 0 ? of : IndexRange{0, all};
  }
};

/// Blocks of several makers' values that are taken into the same rows of a value in one go.
struct TakenBlocks {
  ColumnOps const* ops = nullptr;  // null: there are none
  RowRange rows{};                 // of the taker's value
  /// The first one that is taken. Members begin at different ones: cores slow each other down.
  std::size_t start = 0;
  std::size_t count = 0;
  std::array<BlockSource, BlockSource::most> sources;
  void add(ColumnOps const& of, void* to, RowRange at, std::size_t begin,
           BlockSource const& source) {
    if (count == BlockSource::most || rows != at) take(to);
    ops = &of;
    rows = at;
    start = begin;
    sources[count++] = source;
  }
  void take(void* to) {
    if (count == 0) return;
    for (std::size_t s = 0; s < count; ++s) sources[s].first.rows += start;
    ops->take(to, rows.first + start, rows.count() - start, sources.data(), count);
    for (std::size_t s = 0; s < count; ++s) sources[s].first.rows -= start;
    if (start != 0) ops->take(to, rows.first, start, sources.data(), count);
    count = 0;
  }
};

/// The rows and memory of a rank that is one of several replicas.
struct ReplicaRank {
  List<Context::LayerOffset> layer_offsets;  // [layers] if groups share some layers
  StepArguments arguments;                   // those of a replica of the last stage
  Slots target;                              // the rank's rows of the current target
  Slots outputs;                             // [microbatches] if the caller wants outputs
  std::size_t last_cell = 0;                 // the rank's cell of the last stage
  bool takes_target_rows = false;
  bool counts = true;      // false if another member of its group has the same losses and outputs
  List<double> uncounted;  // [microbatches] losses that do not count
};

/// The rows of a share of a microbatch that has `count` of them.
[[nodiscard]] inline RowRange rows_of(std::size_t count, RowShare const& share) noexcept {
  auto const border = [&](std::uint64_t before) {  // floor(count * before / total), no overflow
    return count / share.total * before + count % share.total * before / share.total;
  };
  return {border(share.before), border(share.before + share.own)};
}

/// The rows of a cell.
struct CellRows {
  List<RowRange> rows;           // [microbatches]
  List<std::size_t> first_rows;  // [microbatches]
};

/// The data of replicas for the loaded program.
struct ReplicaRun {
  FixedArray<ReplicaRank> ranks;
  FixedArray<CellRows> cells;
  List<RowSource> inputs, gradients;  // sorted by taker, with makers in order
  List<bool> elsewhere;  // [microbatches] which only other processes predict; empty: none
  [[nodiscard]] List<RowSource>& sources(bool forward) { return forward ? inputs : gradients; }
  [[nodiscard]] List<RowSource> const& sources(bool forward) const {
    return forward ? inputs : gradients;
  }
};

}  // namespace stagger::detail
