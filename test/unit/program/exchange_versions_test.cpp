// SPDX-License-Identifier: Apache-2.0
#include <stagger/program/exchange_versions.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace exchange_versions_test {

using namespace stagger;
using detail::fix_exchanged_versions;
using detail::RowIndices;

namespace {

/// A row of F and B in which at most `in_flight` minibatches are in flight; both in order.
struct Row {
  RowIndices forward, end;
  std::uint32_t length = 0;
};

/// @param fill  whether as many are in flight as may be, else a random number of them
Row row_of(std::size_t minibatches, std::size_t in_flight, std::mt19937& random, bool fill) {
  Row row;
  while (row.end.size() < minibatches) {
    std::size_t const ahead = row.forward.size() - row.end.size();
    bool const can = row.forward.size() < minibatches && ahead < in_flight;
    if (can && (fill || ahead == 0 || random() % 2 == 0))
      row.forward.push_back(row.length++);
    else if (ahead != 0)
      row.end.push_back(row.length++);
  }
  return row;
}

/// HetPipe's numbers, counted from 1 as in the paper.
int need(int p, int Nm, int D) { return std::max(0, p / Nm - 1 - D); }

struct Numbers {
  int Nm = 1;
  int D = 0;
};
StalenessModel waves(Numbers const& numbers) {
  StalenessModel model;
  model.microbatches = 1;
  model.policy = &numbers;
  model.push_minibatches = numbers.Nm;
  model.version = [](void const* of, int m, int) {
    return std::max(0, m + 1 - static_cast<Numbers const*>(of)->Nm);
  };
  model.needs = [](void const* of, int m) {
    auto const& n = *static_cast<Numbers const*>(of);
    return need(m + 1, n.Nm, n.D);
  };
  return model;
}

/// What a minibatch sees: rounds of all workers, own pushes, own changes, in the order in which they
/// were added.
struct Contents {
  int rounds = 0;
  std::vector<int> pushes, changes;
  bool is_change = false;
};

/// Follows the slots through the row. @return [minibatches], and the weights that last
std::vector<Contents> follow(Row const& row, detail::Versions const& versions) {
  std::vector<Contents> slots(versions.slots);
  std::vector<Contents> seen(row.forward.size() + 1);
  std::size_t pulled = 0;
  auto const pull = [&](std::size_t m) {
    for (; pulled < versions.pulls.size() && versions.pulls[pulled].microbatch == m; ++pulled) {
      auto const& made = versions.pulls[pulled];
      if (made.snapshot) {
        Contents snapshot;
        snapshot.rounds = static_cast<int>(made.rounds);
        for (int w = 0; w < made.waves; ++w) snapshot.pushes.push_back(snapshot.rounds + w);
        slots[made.to] = snapshot;
        continue;
      }
      REQUIRE(slots[made.to].is_change);
      REQUIRE_FALSE(slots[made.from].is_change);
      Contents sum = slots[made.from];
      sum.changes.push_back(slots[made.to].changes.front());
      slots[made.to] = sum;
    }
  };
  auto const same = [](Contents const& a, Contents const& b) {
    return !a.is_change && a.rounds == b.rounds && a.pushes == b.pushes && a.changes == b.changes;
  };
  for (std::uint32_t at = 0; at < row.length; ++at)
    for (std::size_t m = 0; m < row.forward.size(); ++m) {
      if (row.forward[m] == at) {
        pull(m);
        seen[m] = slots[versions.seen[m]];
        REQUIRE_FALSE(seen[m].is_change);
      }
      if (row.end[m] != at) continue;
      auto const& update = versions.updates[m];
      REQUIRE(update.index == at);
      REQUIRE(same(slots[versions.seen[m]], seen[m]));  // one version from F to B
      REQUIRE(update.from == versions.seen[m]);
      slots[update.to] = {0, {}, {static_cast<int>(m)}, true};
    }
  pull(row.forward.size());
  REQUIRE(pulled == versions.pulls.size());
  seen.back() = slots[0];
  return seen;
}

std::vector<int> from_to(int first, int last) {
  std::vector<int> all;
  for (; first < last; ++first) all.push_back(first);
  return all;
}

}  // namespace

TEST_CASE("program/fix_exchanged_versions: the worked example of waves of four", "[program]") {
  std::mt19937 random(1);
  for (int const D : {0, 1}) {
    Numbers const numbers{4, D};
    Row const row = row_of(20, 4, random, true);
    auto const seen =
        follow(row, fix_exchanged_versions(waves(numbers), {0, row.forward, row.end, row.length}));
    for (int p = 1; p <= 19; ++p) {
      CAPTURE(p, D);
      int const waves_needed = p <= 7 ? 0 : p <= 11 ? 1 : p <= 15 ? 2 : 3;
      CHECK(seen[static_cast<std::size_t>(p) - 1].rounds == std::max(0, waves_needed - D));
    }
    // Minibatch 11 runs without 5 to 10 of the others, six of them; it contains its own up to 7.
    auto const& eleventh = seen[10];
    CHECK(eleventh.rounds == 1 - D);
    CHECK(eleventh.pushes == (D == 0 ? std::vector<int>{} : std::vector<int>{0}));
    CHECK(eleventh.changes == std::vector<int>{4, 5, 6});
  }
}

TEST_CASE(
    "program/fix_exchanged_versions: the staleness bound holds and is attained, for any depth, "
    "distance and row",
    "[program]") {
  std::mt19937 random(2);
  for (int Nm = 1; Nm <= 6; ++Nm)
    for (int D = 0; D <= 4; ++D)
      for (int repeat = 0; repeat < 12; ++repeat) {
        Numbers const numbers{Nm, D};
        int const count = repeat == 0 ? 1 : Nm * (D + 4) + repeat % Nm;
        Row const row = row_of(static_cast<std::size_t>(count), static_cast<std::size_t>(Nm),
                               random, repeat < 2);
        auto const versions =
            fix_exchanged_versions(waves(numbers), {0, row.forward, row.end, row.length});
        CAPTURE(Nm, D, repeat, count);
        CHECK(versions.slots <= static_cast<unsigned>(Nm) + 1);
        auto const seen = follow(row, versions);
        int missing = 0;
        for (int m = 0; m < count; ++m) {
          CAPTURE(m);
          auto const& one = seen[static_cast<std::size_t>(m)];
          int const own = std::max(0, m + 1 - Nm);  // 0 to m - Nm, each once
          REQUIRE(one.rounds == need(m + 1, Nm, D));
          REQUIRE(one.pushes == from_to(one.rounds, own / Nm));
          REQUIRE(one.changes == from_to(own / Nm * Nm, own));
          missing = std::max(missing, m - one.rounds * Nm);  // of another worker
        }
        int const bound = (D + 2) * Nm - 2;
        CHECK(missing <= bound);
        if (count >= Nm * (D + 2)) CHECK(missing == bound);
        auto const& last = seen.back();
        CHECK(last.rounds == (count + Nm - 1) / Nm);
        CHECK((last.pushes.empty() && last.changes.empty() && !last.is_change));
      }
}

TEST_CASE("program/fix_exchanged_versions: no version moves on while a minibatch still needs it",
          "[program]") {
  // A stage that has one minibatch in flight, of a worker that has four: versions lag behind.
  std::mt19937 random(3);
  for (int const in_flight : {1, 2, 3}) {
    Numbers const numbers{4, 1};
    Row const row = row_of(21, static_cast<std::size_t>(in_flight), random, true);
    auto const versions =
        fix_exchanged_versions(waves(numbers), {0, row.forward, row.end, row.length});
    CHECK(versions.slots <= 5);
    follow(row, versions);
  }
}

namespace {

/// What is said of a model whose versions and needs are given for each minibatch.
struct Asked {
  std::vector<int> version, needs;
};
std::string said(Asked const& asked, int per_push, RowIndices const& forward, RowIndices const& end,
                 int microbatches = 1, staleness::Adds adds = staleness::Adds::in_worker_order) {
  StalenessModel model;
  model.microbatches = microbatches;
  model.policy = &asked;
  model.adds = adds;
  model.push_minibatches = per_push;
  model.version = [](void const* of, int m, int) {
    return static_cast<Asked const*>(of)->version[static_cast<std::size_t>(m)];
  };
  model.needs = [](void const* of, int m) {
    return static_cast<Asked const*>(of)->needs[static_cast<std::size_t>(m)];
  };
  try {
    static_cast<void>(
        fix_exchanged_versions(model, {3, forward, end, forward.size() + end.size()}));
    return "";
  } catch (Error const& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("program/fix_exchanged_versions: one sentence says what it cannot go with", "[program]") {
  using Catch::Contains;
  RowIndices const forward{0, 2, 4, 6}, end{1, 3, 5, 7};
  CHECK(said({{0, 1, 2, 3}, {0, 0, 1, 1}}, 2, forward, end) == "");
  CHECK_THAT(said({{0, 1, 2, 3}, {0, 0, 1, 1}}, 2, forward, end, 2),
             Contains("minibatches of 1 microbatch, not of 2"));
  CHECK_THAT(said({{0, 0, 0, 0}, {0, 0, 0, 0}}, 2, {1, 0, 4, 6}, {2, 3, 5, 7}),
             Contains("stage 3 begins minibatch 1 where 0 is next"));
  CHECK_THAT(said({{0, 0, 0, 0}, {0, 0, 0, 0}}, 2, {0, 1, 4, 6}, {3, 2, 5, 7}),
             Contains("stage 3 ends minibatch 1 where 0 is next"));
  CHECK_THAT(
      said({{0, 2, 2, 3}, {0, 0, 0, 0}}, 2, forward, end),
      Contains("asks for version 2 of the weights of stage 3 at minibatch 1, when 1 changes"));
  CHECK_THAT(said({{0, 1, 2, 1}, {0, 0, 0, 0}}, 2, forward, end),
             Contains("asks for version 1") && Contains("at minibatch 3") &&
                 Contains("the minibatch before saw 2"));
  CHECK_THAT(said({{0, -1, 2, 1}, {0, 0, 0, 0}}, 2, forward, end), Contains("asks for version -1"));
  CHECK_THAT(said({{0, 1, 2, 3}, {0, 1, 1, 1}}, 2, forward, end),
             Contains("needs 1 push of every worker at minibatch 1, whose weights contain 1 own"));
  CHECK_THAT(said({{0, 1, 2, 3}, {0, 0, 0, 1}}, 2, forward, end),
             Contains("needs 1 push of every worker at minibatch 3, amid a push of its own"));
  CHECK(said({{0, 0, 1, 1}, {0, 0, 0, 0}}, 1, forward, end) == "");
  CHECK_THAT(said({{0, 0, 1, 1}, {0, 0, 0, 0}}, 1, forward, end, 1, staleness::Adds::on_arrival),
             Contains("lets minibatch 2 of stage 3 see 1 of 2 own pushes"));
}

}  // namespace exchange_versions_test
