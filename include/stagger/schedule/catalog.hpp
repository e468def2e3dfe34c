// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Every schedule by its name: for programs that choose one at run time.

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include <stagger/schedule/auto.hpp>
#include <stagger/schedule/chimera.hpp>
#include <stagger/schedule/dual_pipe.hpp>
#include <stagger/schedule/dual_pipe_v.hpp>
#include <stagger/schedule/fifo.hpp>
#include <stagger/schedule/forward_only.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/hanayo.hpp>
#include <stagger/schedule/interleaved.hpp>
#include <stagger/schedule/looped_bfs.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/schedule/pipe_dream.hpp>
#include <stagger/schedule/pipe_dream_2bw.hpp>
#include <stagger/schedule/seq_1f1b.hpp>
#include <stagger/schedule/v_1f1b.hpp>
#include <stagger/schedule/v_half.hpp>
#include <stagger/schedule/v_min.hpp>
#include <stagger/schedule/zero_bubble_h1.hpp>
#include <stagger/schedule/zero_bubble_h2.hpp>
#include <stagger/schedule/zero_bubble_v.hpp>

namespace stagger::schedule {

/// One line of the list of schedules.
struct CatalogEntry {
  std::string_view name;
  std::string_view what;
  std::string_view constraint;  ///< on ranks P, microbatches M and chunks V
  int chunks = 1;               ///< V where none is asked for
};

/// All schedules, the plain ones first.
inline constexpr std::array<CatalogEntry, 20> catalog{{
    {"gpipe", "all forwards, then all backwards", "V = 1"},
    {"1f1b", "early backward; warm-up minimal, deep or a gap; in-flight limit", "V = 1"},
    {"interleaved", "several chunks on a loop, depth first",
     "P <= N <= M, M mod N = 0 or >= P; without a group M / P rounds divide M"},
    {"looped-bfs", "several chunks on a loop, breadth first", "any"},
    {"zb-h1", "backward split, zero bubble at 1F1B's memory", "as interleaved; any M where V = 1"},
    {"zb-h2", "backward split, zero span bubble at twice the memory", "V = 1"},
    {"zb-v", "backward split on a V, zero span bubble at 1F1B's memory", "V = 2", 2},
    {"v-half", "backward split on a V, half of 1F1B's memory", "V = 2", 2},
    {"v-min", "backward split on a V, a third of 1F1B's memory", "V = 2", 2},
    {"v-1f1b", "whole backward on a V, two thirds to three quarters of 1F1B's memory", "V = 2", 2},
    {"dualpipe", "two directions, overlapped pairs", "P and M even, M >= 2P, V = 1"},
    {"dualpipe-v", "overlapped pairs on a V", "M >= 2P, V = 2", 2},
    {"chimera", "two directions", "P and M even, V = 1"},
    {"hanayo", "waves", "M a multiple of P, V even", 2},
    {"seq-1f1b", "1F1B over slices of the sequence", "M >= P, V = 1"},
    {"fifo", "asynchronous, in order of readiness, at most K injected", "V = 1"},
    {"pipedream", "asynchronous 1F1B, a version of the weights for each minibatch in flight",
     "V = 1"},
    {"pipedream-2bw", "asynchronous 1F1B, two versions of the weights", "M >= P, V = 1"},
    {"forward-only", "evaluation and inference", "any"},
    {"auto", "found for given costs and memory",
     "any; zigzag: V even; bidirectional: V = 1, P and M even; slices: V = 1"},
}};

/// What a schedule may be asked for besides its shape; each looks at what concerns it.
struct CatalogOptions {
  Warmup warmup = Warmup::minimal;    ///< 1f1b
  int group = 0;                      ///< interleaved, zb-h1
  int slices = 0;                     ///< seq-1f1b, auto; 0: 2 for seq-1f1b, 1 for auto
  Mapping mapping = Mapping::looped;  ///< forward-only, auto
  Costs costs{};                      ///< fifo, auto
  Limits limits{};                    ///< in_flight for all, memory for auto
};

/// The table of a schedule by its name.
/// @param shape  as it is; `CatalogEntry::chunks` tells the usual V
/// @throws Error bad_configuration for a name that is not in the catalog, a shape that the schedule
/// refuses, or a
///         schedule that has no use for an in-flight limit and exceeds it
[[nodiscard]] inline Table make_table(std::string_view name, Shape shape,
                                      CatalogOptions const& options = {}) {
  int const limit = options.limits.in_flight;
  if (name == "1f1b")
    return table_of(OneFOneB{.warmup = options.warmup, .in_flight = limit}, shape);
  if (name == "fifo") return table_of(Fifo{.in_flight = limit, .costs = options.costs}, shape);
  if (name == "pipedream") return table_of(PipeDream{.in_flight = limit}, shape);
  if (name == "auto") {
    int const slices = options.slices == 0 ? 1 : options.slices;
    return table_of(Auto{options.costs, options.limits, shape.chunks, options.mapping, slices},
                    shape);
  }
  Table table;
  if (name == "gpipe") {
    table = table_of(GPipe{}, shape);
  } else if (name == "interleaved") {
    table = table_of(Interleaved{.chunks_per_rank = shape.chunks, .group = options.group}, shape);
  } else if (name == "looped-bfs") {
    table = table_of(LoopedBfs{.chunks_per_rank = shape.chunks}, shape);
  } else if (name == "zb-h1") {
    table = table_of(ZeroBubbleH1{.chunks_per_rank = shape.chunks, .group = options.group}, shape);
  } else if (name == "zb-h2") {
    table = table_of(ZeroBubbleH2{}, shape);
  } else if (name == "zb-v") {
    table = table_of(ZeroBubbleV{}, shape);
  } else if (name == "v-half") {
    table = table_of(VHalf{}, shape);
  } else if (name == "v-min") {
    table = table_of(VMin{}, shape);
  } else if (name == "v-1f1b") {
    table = table_of(V1F1B{}, shape);
  } else if (name == "dualpipe") {
    table = table_of(DualPipe{}, shape);
  } else if (name == "dualpipe-v") {
    table = table_of(DualPipeV{}, shape);
  } else if (name == "chimera") {
    table = table_of(Chimera{}, shape);
  } else if (name == "hanayo") {
    require(shape.chunks >= 2 && shape.chunks % 2 == 0, "hanayo", Count::chunks, shape.chunks,
            shape.chunks < 2 ? 2 : shape.chunks + 1, "a wave has two");
    table = table_of(Hanayo{.waves = shape.chunks / 2}, shape);
  } else if (name == "seq-1f1b") {
    table = table_of(Seq1F1B{.slices = options.slices == 0 ? 2 : options.slices}, shape);
  } else if (name == "pipedream-2bw") {
    table = table_of(PipeDream2BW{}, shape);
  } else if (name == "forward-only") {
    table =
        table_of(ForwardOnly{.chunks_per_rank = shape.chunks, .mapping = options.mapping}, shape);
    return table;  // holds nothing behind its last forward
  } else {
    throw Error(Errc::bad_configuration, "there is no schedule '" + std::string(name) +
                                             "'; the catalog lists those there are");
  }
  if (limit > 0) {
    auto const peak = peak_in_flight(table);
    int const most = *std::max_element(peak.begin(), peak.end());
    require(most <= limit, std::string(name).c_str(), Count::in_flight, limit, most,
            "its peak is fixed by its order");
  }
  return table;
}

/// Versions of its weights that each rank keeps under the schedule of a name.
/// @return [ranks]
/// @throws Error as `make_table`
[[nodiscard]] inline std::vector<int> weight_versions(std::string_view name, Shape shape,
                                                      CatalogOptions const& options = {}) {
  int const limit = options.limits.in_flight;
  if (name == "fifo")
    return weight_versions(Fifo{.in_flight = limit, .costs = options.costs}, shape);
  if (name == "pipedream") return weight_versions(PipeDream{.in_flight = limit}, shape);
  if (name == "pipedream-2bw") return weight_versions(PipeDream2BW{}, shape);
  return std::vector<int>(static_cast<std::size_t>(shape.ranks), 1);
}

}  // namespace stagger::schedule
