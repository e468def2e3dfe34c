// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   One small table of every schedule.

#include <string>
#include <utility>
#include <vector>

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

namespace zoo {

using namespace stagger;
using namespace stagger::schedule;

/// Every schedule at P ranks and M microbatches; P and M even, M >= 2P and a multiple of P suit
/// them all.
inline std::vector<std::pair<std::string, Table>> all(int P, int M) {
  std::vector<std::pair<std::string, Table>> tables;
  auto const add = [&](std::string name, auto const& policy) {
    tables.emplace_back(std::move(name), policy.table({P, M, policy.chunks()}));
  };
  add("gpipe", GPipe{});
  add("1f1b", OneFOneB{});
  add("1f1b deep", OneFOneB{.warmup = Warmup::deep});
  add("1f1b limited", OneFOneB{.in_flight = P - 1});
  add("interleaved", Interleaved{2});
  add("interleaved 3", Interleaved{3});
  add("interleaved 1", Interleaved{1});
  add("interleaved group", Interleaved{2, M});
  add("looped-bfs", LoopedBfs{2});
  add("zb-h1", ZeroBubbleH1{});
  add("zb-h1 2", ZeroBubbleH1{2});
  add("zb-h2", ZeroBubbleH2{});
  add("zb-v", ZeroBubbleV{});
  add("v-half", VHalf{});
  add("v-min", VMin{});
  add("v-1f1b", V1F1B{});
  add("dualpipe", DualPipe{});
  add("dualpipe-v", DualPipeV{});
  add("chimera", Chimera{});
  add("hanayo", Hanayo{});
  add("hanayo 2", Hanayo{2});
  add("seq-1f1b", Seq1F1B{3});
  add("fifo", Fifo{});
  add("fifo uneven", Fifo{3, Costs::uniform(1, 2, 1, 0.5)});
  add("pipedream", PipeDream{});
  add("pipedream-2bw", PipeDream2BW{});
  add("forward-only", ForwardOnly{});
  add("forward-only zigzag", ForwardOnly{3, Mapping::zigzag});
  add("forward-only bidirectional", ForwardOnly{1, Mapping::bidirectional});
  return tables;
}

}  // namespace zoo
