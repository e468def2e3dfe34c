// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The eight steps that DualPipe and DualPipeV share.
/// @source DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv 2412.19437, section 3.2.1, and its
///         published schedule.

#include <array>
#include <cstddef>
#include <vector>

#include <stagger/schedule/table.hpp>

namespace stagger::schedule::detail {

/// Adds one rank's row. A rank works on two streams of microbatches: stream 0, which reaches it
/// early, and stream 1, which reaches it late.
/// @param table         row is open
/// @param distance      ranks between this one and the turning point of stream 0; 0 at that point
/// @param depth         ranks between this one and the start of stream 0
/// @param stage         [2] this rank's stage for each stream
/// @param first         [2] first microbatch of each stream
/// @param main          repetitions of the main step
constexpr void dual_steps(Table& table, int distance, int depth, std::array<int, 2> stage,
                          std::array<int, 2> first, int main) {
  std::array<std::array<int, 2>, 2> next{};  // forward and backward counters of each stream
  std::vector<Action> delayed;               // weight gradients not run yet, oldest first
  std::size_t delayed_at = 0;
  auto const make = [&](Kind kind, std::size_t stream) {
    int& n = next[stream][kind == Kind::forward ? 0 : 1];
    return Action{.kind = kind, .stage = stage[stream], .microbatch = first[stream] + n++};
  };
  auto const forward = [&](std::size_t stream) { table.add(make(Kind::forward, stream)); };
  auto const backward = [&](std::size_t stream, bool split) {
    Action a = make(split ? Kind::backward_input : Kind::backward, stream);
    table.add(a);
    a.kind = Kind::backward_weight;
    if (split) delayed.push_back(a);
  };
  auto const weight = [&] { table.add(delayed[delayed_at++]); };
  auto const pair = [&](std::size_t forward_stream, std::size_t backward_stream) {
    Action a = make(Kind::forward, forward_stream);
    a.overlaps_next = true;
    table.add(a);
    table.add(make(Kind::backward, backward_stream));
  };

  for (int i = 0; i < 2 * distance; ++i) forward(0);
  for (int i = 0; i < depth + 1; ++i) {
    forward(0);
    forward(1);
  }
  for (int i = 0; i < distance; ++i) {
    backward(1, true);
    weight();
    forward(1);
  }
  for (int i = 0; i < main; ++i) {
    if (i == 0 && distance == 0) {  // as a pair, the backward's input would wait for the forward
      forward(0);
      backward(1, false);
    } else {
      pair(0, 1);
    }
    pair(1, 0);
  }
  for (int i = 0; i < distance; ++i) {
    backward(1, false);
    pair(1, 0);
  }
  bool split = false;  // the second half of these leaves its weight gradients for later
  for (int i = 0; i < depth + 1; ++i) {
    bool const middle = i == (depth + 1) / 2;
    split = split || (middle && depth % 2 == 1);
    backward(1, split);
    split = split || (middle && depth % 2 == 0);
    backward(0, split);
  }
  for (int i = 0; i < distance; ++i) {
    weight();
    backward(0, true);
  }
  for (int i = 0; i < depth + 1; ++i) weight();
}

}  // namespace stagger::schedule::detail
