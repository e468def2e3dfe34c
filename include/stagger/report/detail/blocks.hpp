// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The rows of a timeline as blocks to draw: times checked, overlapped pairs joined.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/report/format.hpp>
#include <stagger/schedule/action.hpp>
#include <stagger/schedule/fault.hpp>
#include <stagger/schedule/timeline.hpp>

namespace stagger::report::detail {

/// Part of a block in an overlapped pair.
enum class Half : unsigned char { none, first, second };

/// One compute action or reduction as it is drawn. The halves of a pair share the pair's time,
/// first start to last end.
struct Block : schedule::Span {
  Half half = Half::none;
};

/// First start and last end of what occupies the ranks of a timeline or a row: compute actions,
/// reductions, and exchanges with a server.
struct Extent {
  double start_s = std::numeric_limits<double>::infinity();
  double end_s = -std::numeric_limits<double>::infinity();

  void add(double start, double end) {
    start_s = std::min(start_s, start);
    end_s = std::max(end_s, end);
  }
  [[nodiscard]] double length_s() const { return end_s > start_s ? end_s - start_s : 0; }
};

/// Refuses times that no picture can show: not finite, beyond 126 years, or an end before its
/// start.
inline void require_times(schedule::Timeline const& timeline) {
  for (int r = 0; r < timeline.ranks(); ++r) {
    for (schedule::Span const& span : timeline.row(r)) {
      bool const sane = std::fabs(span.start_s) <= 4e9 && std::fabs(span.end_s) <= 4e9;
      if (!sane || span.start_s > span.end_s)  // `sane` is false for NaN, too
        raise(Errc::bad_data, "action ", schedule::to_string(span.action), " of rank ", r,
              " runs from ", format_shortest(span.start_s), " s to ", format_shortest(span.end_s),
              " s; give finite times, in seconds, and no end before its start");
      if (!(std::fabs(span.exchange_s) <= 4e9))
        raise(Errc::bad_data, "action ", schedule::to_string(span.action), " of rank ", r,
              " exchanges for ", format_shortest(span.exchange_s),
              " s; give a finite time, in seconds");
    }
  }
}

/// Calls `f(Block)` for each compute action and each reduction of a row, in the row's order.
template <class F> void for_each_block(std::span<schedule::Span const> row, F&& f) {
  Block pending{};
  bool open = false;  // `pending` waits for its second half; messages may stand between
  for (schedule::Span const& span : row) {
    if (schedule::travels(span.action.kind)) continue;
    bool const alone = span.action.kind == schedule::Kind::reduce_gradient ||
                       (!open && !span.action.overlaps_next);
    if (alone) {
      f(Block{span});
    } else if (!open) {
      pending = {span};
      open = true;
    } else {
      Block second{span, Half::second};
      pending.start_s = second.start_s = std::min(pending.start_s, second.start_s);
      pending.end_s = second.end_s = std::max(pending.end_s, second.end_s);
      pending.half = Half::first;
      f(pending);
      f(second);
      open = false;
    }
  }
  if (open) f(pending);  // the row ended in the middle of a pair
}

[[nodiscard]] inline Extent extent(std::span<schedule::Span const> spans) {
  Extent result;
  for (schedule::Span const& span : spans) {
    if (!schedule::is_message(span.action.kind)) result.add(span.start_s, span.end_s);
  }
  return result;
}

/// The stages that a row runs, in rising order; a stage's index here is its chunk.
[[nodiscard]] inline std::vector<int> stages_of(std::span<schedule::Span const> row) {
  std::vector<int> stages;
  for (schedule::Span const& span : row) {
    if (!schedule::is_compute(span.action.kind)) continue;
    auto const at = std::lower_bound(stages.begin(), stages.end(), span.action.stage);
    if (at == stages.end() || *at != span.action.stage) stages.insert(at, span.action.stage);
  }
  return stages;
}

}  // namespace stagger::report::detail
