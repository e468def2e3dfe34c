// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Where the ranks that hold a stage meet to add its gradients (REDUCE_GRAD).

#include <algorithm>
#include <cstddef>
#include <vector>

#include <stagger/schedule/table.hpp>

namespace stagger::schedule {

namespace detail {

/// Who has come to the reduction of each stage. A rank waits there until all that take part have
/// come; takes no memory while a table has no reductions.
class Meetings {
 public:
  constexpr explicit Meetings(Table const& table) : table_(table) {}

  /// A rank has come to its reduction of a stage.
  /// @return true for the last one
  constexpr bool come(int stage, std::size_t rank, double now) {
    if (meetings_.empty()) {
      meetings_.assign(static_cast<std::size_t>(table_.stages), Meeting{});
      for (Action const& a : table_.actions) {
        if (a.kind == Kind::reduce_gradient)
          ++meetings_[static_cast<std::size_t>(a.stage)].expected;
      }
    }
    Meeting& m = meetings_[static_cast<std::size_t>(stage)];
    m.ranks.push_back(rank);
    m.start_s = std::max(m.start_s, now);
    return m.ranks.size() == m.expected;
  }

  /// Those who came, in this order, and when the last one did.
  [[nodiscard]] constexpr std::vector<std::size_t> const& ranks(int stage) const {
    return meetings_[static_cast<std::size_t>(stage)].ranks;
  }
  [[nodiscard]] constexpr double start_s(int stage) const {
    return meetings_[static_cast<std::size_t>(stage)].start_s;
  }

 private:
  struct Meeting {
    std::size_t expected = 0;
    std::vector<std::size_t> ranks{};
    double start_s = 0;
  };
  Table const& table_;
  std::vector<Meeting> meetings_{};  // [stages], or empty
};

}  // namespace detail

/// Adds a reduction of its gradients for each stage on each rank that holds it, as early as can be:
/// right behind the stage's last action there. For pipelines whose stages have replicas, in the
/// table (bidirectional) or beside it.
/// @param table  one that `verify` accepts, without reductions
[[nodiscard]] constexpr Table add_reductions(Table const& table) {
  Table out{.stages = table.stages, .microbatches = table.microbatches, .slices = table.slices};
  std::vector<std::size_t> last(static_cast<std::size_t>(table.stages), 0);
  for (int r = 0; r < table.ranks(); ++r) {
    auto const row = table.row(r);
    for (std::size_t at = 0; at < row.size(); ++at) {
      if (ends_flight(row[at].kind)) last[static_cast<std::size_t>(row[at].stage)] = at;
    }
    out.begin_row();
    std::vector<int> due;  // stages of a pair, behind both of its actions
    for (std::size_t at = 0; at < row.size(); ++at) {
      Action const& a = row[at];
      out.add(a);
      if (ends_flight(a.kind) && last[static_cast<std::size_t>(a.stage)] == at)
        due.push_back(a.stage);
      if (a.overlaps_next) continue;
      for (int const stage : due) out.add({.kind = Kind::reduce_gradient, .stage = stage});
      due.clear();
    }
  }
  return out;
}

}  // namespace stagger::schedule
