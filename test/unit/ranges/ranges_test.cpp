// SPDX-License-Identifier: Apache-2.0
#include <stagger/ranges.hpp>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include <range/v3/algorithm/equal.hpp>
#include <range/v3/range/conversion.hpp>
#include <range/v3/view/take.hpp>

#include <stagger/schedule/csv.hpp>
#include <stagger/schedule/interleaved.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/schedule/proof/evaluate.hpp>
#include <stagger/schedule/proof/verify.hpp>

#include "catch.hpp"

namespace ranges_test {

using namespace stagger;
using schedule::Action;
using schedule::Kind;
using schedule::Table;

namespace {

/// The words of a range of actions, one after the other.
template <class Range> std::string words(Range&& range) {
  std::string all;
  for (auto const& element : range) {
    all += (all.empty() ? "" : " ") + schedule::to_string(views::action_of(element));
  }
  return all;
}

Table const published = schedule::read_csv(
    "0F0,0F1,2F0,2F1,0F2,2B0,0F3,2B1,2F2,0B0,2F3,0B1,2B2,2B3,0B2,0B3\n"
    "1F0,1F1,3F0,3B0,3F1,3B1,1F2,1B0,1F3,1B1,3F2,3B2,3F3,3B3,1B2,1B3\n");

}  // namespace

TEST_CASE("ranges/views: filters pick what their names say, in the order of the table",
          "[ranges]") {
  auto const all = views::actions(published);
  CHECK(words(all | views::of_stage(2)) == "2F0 2F1 2B0 2B1 2F2 2F3 2B2 2B3");
  CHECK(words(all | views::of_microbatch(1) | views::of_kind(Kind::forward)) == "0F1 2F1 1F1 3F1");
  CHECK(words(views::of_rank(published, 1) | views::of_kind(Kind::backward) | views::of_stage(3)) ==
        "3B0 3B1 3B2 3B3");
  CHECK(words(all | views::of_stage(4)).empty());
  CHECK(words(all | ::ranges::views::take(3)) == "0F0 0F1 2F0");
}

TEST_CASE("ranges/views: rows are the rows of the table, and make it again", "[ranges]") {
  auto const rows = views::rows(published);
  int count = 0;
  for (auto const row : rows) {
    CHECK(::ranges::equal(row, published.row(count)));
    ++count;
  }
  CHECK(count == 2);
  CHECK(views::to_table(rows) == published);
}

TEST_CASE("ranges/views: a rank that is not there is refused by number", "[ranges]") {
  for (int const rank : {-1, 2}) {
    CHECK_THROWS_WITH(
        views::of_rank(published, rank),
        "a table of 2 ranks has no rank " + std::to_string(rank) + "; ranks count from 0");
  }
}

TEST_CASE("ranges/in_time_order: no action starts before one that it needs", "[ranges]") {
  Table const table = schedule::Interleaved{2}.table({4, 8, 2});
  auto const order = views::in_time_order(
      schedule::evaluate(table, schedule::Costs::uniform(1, 1, 1, 0.5)).timeline);
  REQUIRE(order.size() == table.actions.size());
  std::set<std::pair<int, int>> forwards, backwards;
  double last = 0;
  for (auto const& [rank, span] : order) {
    CHECK(span.start_s >= last);
    last = span.start_s;
    auto const [stage, microbatch] = std::pair(span.action.stage, span.action.microbatch);
    CHECK(stage % 4 == rank);
    if (span.action.kind == Kind::forward) {
      CHECK((stage == 0 || forwards.count({stage - 1, microbatch}) == 1));
      forwards.emplace(stage, microbatch);
    } else {
      CHECK(forwards.count({stage, microbatch}) == 1);
      CHECK((stage == 7 || backwards.count({stage + 1, microbatch}) == 1));
      backwards.emplace(stage, microbatch);
    }
  }
  auto const first = schedule::OneFOneB{}.table({2, 2, 1});
  auto const timed = views::in_time_order(schedule::evaluate(first).timeline);
  CHECK(words(timed) == "0F0 0F1 1F0 1B0 0B0 1F1 1B1 0B1");
  CHECK(words(timed | views::of_microbatch(1)) == "0F1 1F1 1B1 0B1");
}

TEST_CASE("ranges/to_table: a schedule written as views is judged like any other", "[ranges]") {
  auto const forward = [](int stage) {
    return ::ranges::views::iota(0, 3) | ::ranges::views::transform([stage](int m) {
             return Action{.kind = Kind::forward, .stage = stage, .microbatch = m};
           });
  };
  auto const table =
      views::to_table(::ranges::views::iota(0, 4) | ::ranges::views::transform(forward));
  CHECK(table.ranks() == 4);
  CHECK(table.microbatches == 3);
  CHECK_FALSE(schedule::verify(table));
  auto const halves = views::rows(published) | ::ranges::views::transform([](auto row) {
                        return row | views::of_kind(Kind::forward);
                      });
  CHECK_FALSE(schedule::verify(views::to_table(halves)));
  auto const backwards = views::rows(published) | ::ranges::views::transform([](auto row) {
                           return row | views::of_kind(Kind::backward);
                         });
  CHECK(schedule::verify(views::to_table(backwards)).kind == schedule::FaultKind::missing);
}

}  // namespace ranges_test
