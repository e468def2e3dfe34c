// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/proof/evaluate.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include <stagger/schedule/fifo.hpp>
#include <stagger/schedule/pipe_dream.hpp>
#include <stagger/schedule/pipe_dream_2bw.hpp>
#include <stagger/staleness/delayed.hpp>
#include <stagger/staleness/double_buffered.hpp>
#include <stagger/staleness/weight_stashing.hpp>

#include "catch.hpp"

namespace weight_versions_test {

using namespace stagger;
using namespace stagger::schedule;

namespace {

/// Most versions of its weights that a rank cannot do without, when every minibatch updates them at
/// its last gradient: those that microbatches in flight saw, the newest one, and those made already
/// that a later forward is to see.
template <class Model> int needed(Table const& table, int rank, Model const& model) {
  auto const row = table.row(rank);
  int const size = model.microbatches();
  std::map<int, int> sees, left;  // by microbatch, by minibatch
  std::vector<int> made;          // [row] updates before the action
  int updates = 0;
  for (Action const& a : row) {
    made.push_back(updates);
    int const minibatch = a.microbatch / size;
    if (a.kind == Kind::forward) sees[a.microbatch] = model.version(minibatch, updates);
    if (ends_flight(a.kind) && ++left[minibatch] == size) ++updates;
  }
  std::set<int> live;
  std::size_t most = 0;
  for (std::size_t at = 0; at < row.size(); ++at) {
    std::set<int> kept{made[at]};
    for (int const m : live) kept.insert(sees[m]);
    for (std::size_t later = at; later < row.size(); ++later) {
      if (row[later].kind == Kind::forward && sees[row[later].microbatch] <= made[at])
        kept.insert(sees[row[later].microbatch]);
    }
    most = std::max(most, kept.size());
    if (row[at].kind == Kind::forward) live.insert(row[at].microbatch);
    if (ends_flight(row[at].kind)) live.erase(row[at].microbatch);
  }
  return static_cast<int>(most);
}

}  // namespace

TEST_CASE("schedule/weight_versions: as many as no rank can do without, counted on the table",
          "[schedule]") {
  for (int P = 1; P <= 6; ++P) {
    int const M = 6 * P;
    for (int limit = 0; limit <= P; ++limit) {
      PipeDream const stash{limit};
      Fifo const fifo{.in_flight = limit};
      staleness::Delayed const delayed{limit == 0 ? P : limit};
      for (int r = 0; r < P; ++r) {
        CAPTURE(P, limit, r);
        auto const rank = static_cast<std::size_t>(r);
        CHECK(weight_versions(stash, {P, M})[rank] ==
              needed(stash.table({P, M}), r, staleness::WeightStashing{}));
        CHECK(weight_versions(fifo, {P, M})[rank] == needed(fifo.table({P, M}), r, delayed));
      }
    }
    for (int r = 0; r < P; ++r) {  // a run of six batches of P
      CAPTURE(P, r);
      CHECK(weight_versions(PipeDream2BW{}, {P, M})[static_cast<std::size_t>(r)] ==
            needed(PipeDream2BW{}.table({P, M}), r, staleness::DoubleBuffered{P}));
    }
  }
}

}  // namespace weight_versions_test
