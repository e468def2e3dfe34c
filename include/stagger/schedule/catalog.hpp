// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The list of all schedules, one line for each. Programs that choose a schedule by name
///         (schedule/named.hpp), the search of `Auto` and separate compilation use this list.

#include <algorithm>
#include <string_view>

#include <stagger/core/catalog.hpp>
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

struct Auto;  // searches among the others, and so includes this header

/// The facts about a schedule that its type does not contain. Its type says whether it flushes, its
/// number of chunks, and its options.
template <class P> struct CatalogLine {
  static constexpr std::string_view name = catalog_name<P>;
  std::string_view what;
  std::string_view constraint;        ///< on ranks P, microbatches M and chunks V
  Mapping mapping = Mapping::looped;  ///< of stages to ranks
  bool trains = true;                 ///< it has backward actions
};

/// All schedules, the plain ones first.
inline constexpr Catalog catalog_lines{
    "schedule",
    CatalogLine<GPipe>{"all forwards, then all backwards", "V = 1"},
    CatalogLine<OneFOneB>{"early backward; warm-up minimal, deep or a gap; in-flight limit",
                          "V = 1"},
    CatalogLine<Interleaved>{
        "several chunks on a loop, depth first",
        "P <= N <= M, M mod N = 0 or >= P; without a group M / P rounds divide M"},
    CatalogLine<LoopedBfs>{"several chunks on a loop, breadth first", "any"},
    CatalogLine<ZeroBubbleH1>{"backward split, zero bubble at 1F1B's memory",
                              "as interleaved; any M where V = 1"},
    CatalogLine<ZeroBubbleH2>{"backward split, zero span bubble at twice the memory", "V = 1"},
    CatalogLine<ZeroBubbleV>{"backward split on a V, zero span bubble at 1F1B's memory", "V = 2",
                             Mapping::zigzag},
    CatalogLine<VHalf>{"backward split on a V, half of 1F1B's memory", "V = 2", Mapping::zigzag},
    CatalogLine<VMin>{"backward split on a V, a third of 1F1B's memory", "V = 2", Mapping::zigzag},
    CatalogLine<V1F1B>{"whole backward on a V, two thirds to three quarters of 1F1B's memory",
                       "V = 2", Mapping::zigzag},
    CatalogLine<DualPipe>{"two directions, overlapped pairs", "P and M even, M >= 2P, V = 1",
                          Mapping::bidirectional},
    CatalogLine<DualPipeV>{"overlapped pairs on a V", "M >= 2P, V = 2", Mapping::zigzag},
    CatalogLine<Chimera>{"two directions", "P and M even, V = 1", Mapping::bidirectional},
    CatalogLine<Hanayo>{"waves", "M a multiple of P, V even", Mapping::zigzag},
    CatalogLine<Seq1F1B>{"1F1B over slices of the sequence", "M >= P, V = 1"},
    CatalogLine<Fifo>{"asynchronous, in order of readiness, at most K injected", "V = 1"},
    CatalogLine<PipeDream>{
        "asynchronous 1F1B, a version of the weights for each minibatch in flight", "V = 1"},
    CatalogLine<PipeDream2BW>{"asynchronous 1F1B, two versions of the weights", "M >= P, V = 1"},
    CatalogLine<ForwardOnly>{"evaluation and inference", "any", Mapping::looped, false},
    CatalogLine<Auto>{"found for given costs and memory",
                      "any; zigzag: V even; bidirectional: V = 1, P and M even; slices: V = 1"}};

namespace detail {

/// A policy with its defaults, and with the given number of stages on each rank where it has a
/// choice.
template <class P> [[nodiscard]] constexpr P with_chunks(int chunks) {
  P policy{};
  if constexpr (requires { policy.chunks_per_rank; }) policy.chunks_per_rank = chunks;
  if constexpr (requires { policy.waves; }) policy.waves = std::max(1, chunks / 2);
  return policy;
}

}  // namespace detail
}  // namespace stagger::schedule
