// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   One synchronous iteration in virtual time: early backward over stages that may be
/// replicated, with transfers and the all-reduce of each stage.
/// @source Fan et al., "DAPPLE", PPoPP 2021, sections 3 and 5.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <span>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/plan/latency.hpp>
#include <stagger/schedule/timeline.hpp>

namespace stagger::plan {

/// Simulates iterations, and reuses its memory.
///
/// The stages are those of the estimate: computing stages at even places, transfers between them.
/// A boundary has one channel for each direction, and a channel one transfer at a time. A stage's
/// all-reduce starts when its last backward has ended. A stage recomputes while it waits for a
/// gradient, as the engine does.
class Simulator {
 public:
  /// Likewise `simulate`, which checks its arguments first.
  /// @pre `simulate` would not refuse them
  constexpr double play(std::span<StageTime const> stages, int microbatches,
                        std::span<int const> warm_up, schedule::Timeline* timeline = nullptr) {
    std::size_t const S = warm_up.size();
    auto const M = static_cast<std::size_t>(microbatches);
    free_.assign(S, 0.0);
    ahead_.assign(S, 0.0);
    back_.assign(S, 0.0);
    // The gradients that a stage has not used yet belong to consecutive microbatches, fewer than
    // its warm-up, so a ring is enough for any number of microbatches.
    auto const depth = [&](std::size_t s) {
      return std::min(static_cast<std::size_t>(warm_up[s]), M);
    };
    std::size_t const ring = std::bit_ceil(depth(0));
    if (gradient_.size() < S * ring) gradient_.resize(S * ring);
    auto const gradient = [&](std::size_t s, std::size_t m) -> double& {
      return gradient_[s * ring + (m & (ring - 1))];
    };
    if (timeline != nullptr) {  // each stage runs 2 M actions
      timeline->spans.assign(2 * M * S, {});
      timeline->row_begin.clear();
      for (std::size_t s = 0; s < S; ++s) timeline->row_begin.push_back(2 * M * s);
      next_span_ = timeline->row_begin;
    }
    auto const backward = [&](std::size_t s, std::size_t m) {
      double const given = s + 1 < S ? gradient(s, m) : 0.0;
      double const start = std::max(free_[s], given - stages[2 * s].recompute_s);
      free_[s] = start + stages[2 * s].backward_s;
      if (timeline != nullptr) add(*timeline, schedule::Kind::backward, s, m, start, free_[s]);
      if (s == 0) return;
      back_[s] = std::max(free_[s], back_[s]) + stages[2 * s - 1].backward_s;
      gradient(s - 1, m) = back_[s];
    };
    // Stage s runs the backward of m - K_s + 1 after its forward of m. Since K never rises, later
    // stages run that backward no later in this loop, so its gradient has been computed.
    for (std::size_t m = 0; m < M; ++m) {
      double given = 0;
      for (std::size_t s = 0; s < S; ++s) {
        double const start = std::max(free_[s], given);
        free_[s] = start + stages[2 * s].forward_s;
        if (timeline != nullptr) add(*timeline, schedule::Kind::forward, s, m, start, free_[s]);
        if (s + 1 < S) {
          ahead_[s] = std::max(free_[s], ahead_[s]) + stages[2 * s + 1].forward_s;
          given = ahead_[s];
        }
      }
      for (std::size_t s = S; s-- > 0;) {
        if (m + 1 >= depth(s)) backward(s, m + 1 - depth(s));
      }
    }
    double end = 0;
    for (std::size_t s = S; s-- > 0;) {
      for (std::size_t m = M - depth(s) + 1; m < M; ++m) backward(s, m);
      end = std::max(end, free_[s] + stages[2 * s].all_reduce_s);
    }
    return end;
  }

 private:
  constexpr void add(schedule::Timeline& timeline, schedule::Kind kind, std::size_t stage,
                     std::size_t microbatch, double start, double end) {
    timeline.spans[next_span_[stage]++] = {.action = {.kind = kind,
                                                      .stage = static_cast<int>(stage),
                                                      .microbatch = static_cast<int>(microbatch)},
                                           .start_s = start,
                                           .end_s = end};
  }

  std::vector<double> free_{};            ///< [stages] when its last action ended
  std::vector<double> ahead_{};           ///< [stages] when the channel to the next one is free
  std::vector<double> back_{};            ///< [stages] when the channel to the one before is free
  std::vector<double> gradient_{};        ///< [stages][ring] when a microbatch's gradient arrives
  std::vector<std::size_t> next_span_{};  ///< [stages] in the timeline
};

/// Simulates one iteration, as Simulator describes it.
/// @param stages        [2S - 1] computing stages, with the transfers between them
/// @param microbatches  M >= 1
/// @param warm_up       [S] forwards before the first backward, >= 1, never more on a later
///                      stage; M on every stage is GPipe
/// @param timeline      if not null: receives a row for each computing stage
/// @return              seconds from the first start to the last end
/// @throws Error        as for `latency`; bad_schedule for a warm-up that rises, with which
///                      stages would deadlock
/// @complexity          O(S M)
[[nodiscard]] constexpr double simulate(std::span<StageTime const> stages, int microbatches,
                                        std::span<int const> warm_up,
                                        schedule::Timeline* timeline = nullptr) {
  detail::require_stages(stages, microbatches);
  if (stages.size() + 1 != 2 * warm_up.size())
    raise(Errc::bad_configuration, "there are ", warm_up.size(), " warm-up counts for ",
          counted(stages.size(), "stage"),
          " and transfers; give one count for each stage, with a transfer "
          "between two stages");
  for (std::size_t s = 0; s < warm_up.size(); ++s) {
    if (warm_up[s] < 1)
      raise(Errc::bad_schedule, "stage ", s, " runs ", warm_up[s],
            " forwards before its first backward; it needs one");
    if (s > 0 && warm_up[s] > warm_up[s - 1])
      raise(Errc::bad_schedule, "stage ", s, " runs ", warm_up[s],
            " forwards before its first backward, "
            "stage ",
            s - 1, " only ", warm_up[s - 1],
            ": they would wait for each other for ever; let no count rise");
  }
  return Simulator{}.play(stages, microbatches, warm_up, timeline);
}

}  // namespace stagger::plan
