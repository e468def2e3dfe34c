// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Timelines for the tests of report/, played by a few lines of their own.

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include <stagger/schedule/action.hpp>
#include <stagger/schedule/timeline.hpp>

namespace sample {

using stagger::schedule::Action;
using stagger::schedule::Kind;
using stagger::schedule::Span;
using stagger::schedule::Timeline;
using Rows = std::vector<std::vector<Action>>;

/// All forwards, then all backwards.
inline Rows gpipe(int ranks, int microbatches) {
  Rows rows;
  for (int r = 0; r < ranks; ++r) {
    rows.emplace_back();
    for (int m = 0; m < microbatches; ++m) rows.back().push_back({Kind::forward, r, m});
    for (int m = 0; m < microbatches; ++m) rows.back().push_back({Kind::backward, r, m});
  }
  return rows;
}

/// Rank r runs P - 1 - r forwards first, then one forward and one backward in turn.
inline Rows one_f_one_b(int ranks, int microbatches, bool split = false) {
  Rows rows;
  for (int r = 0; r < ranks; ++r) {
    auto& row = rows.emplace_back();
    auto const back = [&](int m) {
      row.push_back({split ? Kind::backward_input : Kind::backward, r, m});
      if (split) row.push_back({Kind::backward_weight, r, m});
    };
    int const warmup = std::min(ranks - 1 - r, microbatches);
    for (int m = 0; m < microbatches; ++m) {
      row.push_back({Kind::forward, r, m});
      if (m >= warmup) back(m - warmup);
    }
    for (int m = microbatches - warmup; m < microbatches; ++m) back(m);
  }
  return rows;
}

/// Two stages per rank, r and P + r, breadth first: all microbatches of a stage, then the next.
inline Rows two_chunks(int ranks, int microbatches) {
  Rows rows;
  for (int r = 0; r < ranks; ++r) {
    auto& row = rows.emplace_back();
    for (int const stage : {r, ranks + r}) {
      for (int m = 0; m < microbatches; ++m) row.push_back({Kind::forward, stage, m});
    }
    for (int const stage : {ranks + r, r}) {
      for (int m = 0; m < microbatches; ++m) row.push_back({Kind::backward, stage, m});
    }
  }
  return rows;
}

/// Two stages per rank, r and 2P - 1 - r, so that the last rank runs two stages in a row.
inline Rows v_shape(int ranks, int microbatches) {
  Rows rows;
  for (int r = 0; r < ranks; ++r) {
    auto& row = rows.emplace_back();
    int const turn = 2 * ranks - 1 - r;
    for (int const stage : {r, turn}) {
      for (int m = 0; m < microbatches; ++m) row.push_back({Kind::forward, stage, m});
    }
    for (int const stage : {turn, r}) {
      for (int m = 0; m < microbatches; ++m) row.push_back({Kind::backward, stage, m});
    }
  }
  return rows;
}

inline Timeline timeline_of(std::vector<std::vector<Span>> const& rows) {
  Timeline timeline;
  for (auto const& row : rows) timeline.add_row(row);
  return timeline;
}

/// Times of a row of actions: each as soon as its rank is free and its inputs are there. `jitter`
/// lengthens each action by up to this share, by a fixed sequence.
inline Timeline play(Rows const& rows, double forward_s, double input_s, double weight_s,
                     double jitter = 0) {
  int last = 0;
  for (auto const& row : rows) {
    for (Action const& a : row) last = std::max(last, a.stage);
  }
  std::vector<std::vector<Span>> spans(rows.size());
  std::map<std::tuple<char, int, int>, double>
      done;  // 'F' or 'G' (input gradient), stage, microbatch
  std::vector<double> free(rows.size());
  unsigned random = 12345;
  auto const end_of = [&](char what, int stage, int microbatch) -> std::optional<double> {
    auto const found = done.find({what, stage, microbatch});
    return found == done.end() ? std::nullopt : std::optional{found->second};
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      while (spans[r].size() < rows[r].size()) {
        Action const& a = rows[r][spans[r].size()];
        bool const forward = a.kind == Kind::forward;
        std::optional<double> ready = 0;
        if (forward && a.stage > 0) ready = end_of('F', a.stage - 1, a.microbatch);
        if (!forward) {
          ready = a.stage == last ? end_of('F', a.stage, a.microbatch)
                                  : end_of('G', a.stage + 1, a.microbatch);
        }
        if (!ready) break;
        double length = forward ? forward_s : input_s + weight_s;
        if (a.kind == Kind::backward_input) length = input_s;
        if (a.kind == Kind::backward_weight) length = weight_s;
        random = random * 1664525U + 1013904223U;
        length *= 1 + jitter * static_cast<double>(random >> 8U) / (1U << 24U);
        double const start = std::max(free[r], *ready);
        spans[r].push_back({a, start, start + length});
        free[r] = start + length;
        if (a.kind != Kind::backward_weight) {
          done[{forward ? 'F' : 'G', a.stage, a.microbatch}] = free[r];
        }
        moved = true;
      }
    }
  }
  return timeline_of(spans);
}

/// A span of a timeline, to change it.
inline Span& span_at(Timeline& timeline, std::size_t rank, std::size_t at) {
  return timeline.spans.at(timeline.row_begin.at(rank) + at);
}

/// Adds a span to the end of a row.
inline void add_to_row(Timeline& timeline, std::size_t rank, Span const& span) {
  auto const end = timeline.row(rank).size() + timeline.row_begin[rank];
  timeline.spans.insert(timeline.spans.begin() + static_cast<std::ptrdiff_t>(end), span);
  for (std::size_t r = rank + 1; r < timeline.row_begin.size(); ++r) ++timeline.row_begin[r];
}

}  // namespace sample
