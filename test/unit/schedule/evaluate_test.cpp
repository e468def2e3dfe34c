// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/proof/evaluate.hpp>

#include <limits>
#include <random>

#include <stagger/schedule/proof/lower.hpp>
#include <stagger/schedule/proof/reductions.hpp>
#include <stagger/schedule/proof/verify.hpp>

#include "catch.hpp"
#include "oracle.hpp"
#include "zoo.hpp"

namespace evaluate_test {

using namespace stagger;
using namespace stagger::schedule;

namespace {

Costs random_costs(int stages, std::mt19937& random) {
  std::uniform_int_distribution<int> eighths(0, 24);
  Costs costs;
  for (int s = 0; s < stages; ++s) {
    costs.stages.push_back({.forward_s = eighths(random) / 8.0,
                            .backward_input_s = eighths(random) / 8.0,
                            .backward_weight_s = eighths(random) / 8.0,
                            .transfer_s = eighths(random) / 8.0});
  }
  if (random() % 2 == 0) costs.overlap_s = eighths(random) / 8.0;
  return costs;
}

}  // namespace

TEST_CASE(
    "schedule/evaluate: makespan, span, work and peak agree with the slow simulator at any costs",
    "[schedule]") {
  std::mt19937 random(99);
  for (int round = 0; round < 12; ++round) {
    for (auto const& [name, table] : zoo::all(4, 8)) {
      CAPTURE(name, round);
      Costs const costs = random_costs(table.stages, random);
      Evaluation const e = evaluate(table, costs);
      auto const truth = oracle::play(table, costs);
      REQUIRE(truth.ok);
      CHECK(e.makespan_s == Approx(truth.makespan));
      CHECK(e.longest_span_s == Approx(truth.longest_span));
      CHECK(e.peak_in_flight == truth.peak);
      double busiest = 0;
      for (std::size_t r = 0; r < e.work_s.size(); ++r) {
        CHECK(e.work_s[r] == Approx(truth.work[r]).margin(1e-12));
        CHECK(e.idle[r].total_s() + e.work_s[r] ==
              Approx(e.timeline.row(r).empty() ? 0 : e.makespan_s));
        busiest = std::max(busiest, truth.work[r]);
      }
      CHECK(e.bubble_s == Approx(truth.makespan - busiest).margin(1e-12));
      CHECK(e.span_bubble_s == Approx(truth.longest_span - busiest).margin(1e-12));
    }
  }
}

TEST_CASE(
    "schedule/evaluate: tables with messages agree with the slow simulator on every kind of "
    "channel",
    "[schedule]") {
  std::mt19937 random(5);
  for (int round = 0; round < 3; ++round) {
    for (auto const& [name, table] : zoo::all(2, 4)) {
      Costs costs = random_costs(table.stages, random);
      costs.overlap_s = -1;
      Table const lowered = lower(table, costs);
      for (Channels const channels :
           {Channels::independent, Channels::per_peer, Channels::per_rank}) {
        CAPTURE(name, round, static_cast<int>(channels));
        auto const truth = oracle::play_messages(lowered, static_cast<int>(channels), costs);
        REQUIRE(truth.ok);
        CHECK(evaluate(lowered, costs, channels).makespan_s == Approx(truth.makespan));
      }
    }
  }
}

TEST_CASE("schedule/evaluate: idle time by cause, by hand", "[schedule]") {
  // 0F0 0..1, sent until 1.5; 1F0 1.5..2.5, 1B0 ..4.5, sent until 5; 0B0 5..7.
  Evaluation const e = evaluate(oracle::table("0F0,0B0 / 1F0,1B0"), Costs::uniform(1, 1, 1, 0.5));
  CHECK(e.makespan_s == 7);
  CHECK(e.longest_span_s == 7);
  CHECK(e.work_s == std::vector{3.0, 3.0});
  CHECK(e.idle[0].dependency_s == 3.5);
  CHECK(e.idle[0].link_s == 0.5);
  CHECK(e.idle[1].dependency_s == 3.5);  // 1 before the first action, 2.5 behind the last
  CHECK(e.idle[1].link_s == 0.5);
  CHECK(e.timeline.row(1)[1].start_s == 2.5);
  CHECK(e.timeline.row(1)[1].end_s == 4.5);
}

TEST_CASE("schedule/evaluate: a forward held back by a limit makes idle time memory's",
          "[schedule]") {
  // One in flight: 0F0 0..1, 1F0 ..2, 1B0 ..4, 0B0 ..6. Rank 0 could have run 0F1 from 1 on.
  Table const t = oracle::table("0F0,0B0,0F1,0B1 / 1F0,1B0,1F1,1B1");
  Evaluation const free = evaluate(t);
  CHECK(free.idle[0].memory_s == 0);
  CHECK(free.idle[0].dependency_s == 6);
  Evaluation const one = evaluate(t, {}, Channels::per_peer, {.in_flight = 1});
  CHECK(one.makespan_s == free.makespan_s);
  CHECK(one.idle[0].memory_s == 3);  // for the first gradient; behind 0B1 no forward is left
  CHECK(one.idle[0].dependency_s == 3);
  CHECK(one.idle[1].memory_s == 0);
  CHECK(one.idle[1].dependency_s == 6);
  CHECK(evaluate(t, {}, Channels::per_peer, {.in_flight = 2}).idle[0].memory_s == 0);
  CHECK(evaluate(t, {}, Channels::per_peer, {.memory = 1}).idle[0].memory_s == 3);
  CHECK(evaluate(t, {}, Channels::per_peer, {.memory = 2}).idle[0].memory_s == 0);

  // With links the gradient is under way at the end of the wait: that too would not have been.
  Costs const costs = Costs::uniform(1, 1, 1, 0.5);
  for (Table const& form : {t, lower(t, costs)}) {
    Evaluation const e = evaluate(form, costs, Channels::per_peer, {.in_flight = 1});
    CHECK(e.idle[0].memory_s == 4);  // 1 .. 5
    CHECK(e.idle[0].link_s == 0.5);  // of the second gradient
    CHECK(e.idle[0].total_s() + e.work_s[0] == Approx(e.makespan_s));
  }

  // Rank 1 of three: 1F1 comes at 2, the gradient of 0 at 5, so memory's part is from 2 to 5.
  Table const three = oracle::table("0F0,0F1,0B0,0B1 / 1F0,1B0,1F1,1B1 / 2F0,2B0,2F1,2B1");
  Evaluation const late =
      evaluate(three, Costs::uniform(1, 1, 1), Channels::per_peer, {.in_flight = 2});
  CHECK(late.idle[1].memory_s == 0);
  Costs slow = Costs::uniform(1, 1, 1);
  slow.stages = {{.forward_s = 1.5}, {}, {}};  // 0F1 ends at 3, 1F0 at 2.5, the gradient at 5.5
  CHECK(evaluate(three, slow, Channels::per_peer, {.in_flight = 1}).idle[1].memory_s == 2.5);
}

TEST_CASE("schedule/evaluate: at any costs the causes of idle time add up, under every limit",
          "[schedule]") {
  std::mt19937 random(31);
  double memory = 0;
  for (int round = 0; round < 6; ++round) {
    for (auto const& [name, table] : zoo::all(4, 8)) {
      Costs const costs = random_costs(table.stages, random);
      auto const peaks = peak_in_flight(table);
      int const most = *std::max_element(peaks.begin(), peaks.end());
      CAPTURE(name, round, most);
      Evaluation const without = evaluate(table, costs);
      Evaluation const e = evaluate(table, costs, Channels::per_peer, {.in_flight = most});
      REQUIRE(e.makespan_s == without.makespan_s);
      for (std::size_t r = 0; r < e.idle.size(); ++r) {
        Idle const& idle = e.idle[r];
        REQUIRE(idle.total_s() == Approx(without.idle[r].total_s()).margin(1e-9));
        REQUIRE(idle.dependency_s >= -1e-9);
        REQUIRE(idle.link_s >= -1e-9);
        REQUIRE(idle.memory_s >= 0);
        REQUIRE(idle.collective_s == 0);
        memory += idle.memory_s;
      }
    }
  }
  CHECK(memory > 0);
}

TEST_CASE("schedule/evaluate: a reduction waits for all that hold the stage, and that is idle time",
          "[schedule]") {
  // In two directions: rank 0 is through at 9, rank 1 at 11.
  Table const t = oracle::table(
      "0F0,0B0,1F1,1B1,1REDUCE_GRAD,0REDUCE_GRAD / 1F0,1B0,0F1,0B1,1REDUCE_GRAD,0REDUCE_GRAD");
  REQUIRE_FALSE(verify(t));
  Costs costs = Costs::uniform(1, 1, 1);
  costs.each.reduce_s = 2;
  Evaluation const bare = evaluate(oracle::table("0F0,0B0,1F1,1B1 / 1F0,1B0,0F1,0B1"), costs);
  Evaluation const e = evaluate(t, costs);
  CHECK(e.makespan_s == bare.makespan_s + 4);
  double waited = 0;
  for (std::size_t r = 0; r < 2; ++r) {
    double const end = bare.timeline.row(r).back().end_s;
    CHECK(e.idle[r].collective_s == bare.makespan_s - end + 4);
    CHECK(e.idle[r].total_s() + e.work_s[r] == Approx(e.makespan_s));
    CHECK(e.timeline.row(r)[4].end_s == bare.makespan_s + 2);
    CHECK(e.timeline.row(r)[5].start_s == bare.makespan_s + 2);
    waited += bare.makespan_s - end;
  }
  CHECK(waited == 2);
  for (Channels const channels : {Channels::independent, Channels::per_peer, Channels::per_rank}) {
    Evaluation const lowered = evaluate(lower(t, costs), costs, channels);
    CHECK(lowered.makespan_s == e.makespan_s);
    CHECK(lowered.idle[0].collective_s == e.idle[0].collective_s);
    CHECK(lowered.idle[1].collective_s == e.idle[1].collective_s);
  }
}

TEST_CASE("schedule/add_reductions: every schedule stays legal and ends as much later as it must",
          "[schedule]") {
  Costs costs;
  costs.each.reduce_s = 0.5;
  for (auto const& [name, table] : zoo::all(4, 8)) {
    CAPTURE(name);
    Table const t = add_reductions(table);
    CHECK_FALSE(verify(t));
    Evaluation const e = evaluate(t, costs);
    bool const trains = std::any_of(t.actions.begin(), t.actions.end(), [](Action const& a) {
      return a.kind == Kind::reduce_gradient;
    });
    bool const two = name == "dualpipe" || name == "chimera";
    int const each = two ? 2 : t.stages / t.ranks();
    for (std::size_t r = 0; r < e.idle.size(); ++r) {
      CHECK(e.idle[r].collective_s >= (trains ? 0.5 * each : 0));
      if (!two && trains) CHECK(e.idle[r].collective_s == 0.5 * each);
      CHECK(e.idle[r].total_s() + e.work_s[r] == Approx(e.makespan_s));
    }
    Table const lowered = lower(t, costs);
    for (Channels const channels : {Channels::independent, Channels::per_peer, Channels::per_rank})
      CHECK_FALSE(verify(lowered, {.channels = channels}));
    CHECK(read_csv(write_csv(lowered)) == lowered);
  }
}

TEST_CASE("schedule/require_costs: says what each number may be", "[schedule]") {
  double const never = std::numeric_limits<double>::infinity();
  CHECK_THROWS_WITH(require_costs({.each = {.weight_share = 2}}, 1),
                    Catch::Contains("stage 0 has weight_share = 2; a share is from 0 to 1"));
  CHECK_THROWS_WITH(require_costs({.each = {.reduce_s = never}}, 1),
                    Catch::Contains("reduce_s = inf; costs must be finite"));
  CHECK_THROWS_WITH(require_costs({.overlap_s = never}, 1),
                    Catch::Contains("an overlapped pair has overlap_s = inf"));
}

TEST_CASE("schedule/evaluate: weight versions are one where ranks flush, else the policy's",
          "[schedule]") {
  CHECK(evaluate(OneFOneB{}.table({3, 6})).weight_versions == std::vector{1, 1, 1});
  CHECK(evaluate(ZeroBubbleH1{}, {3, 6}).weight_versions == std::vector{1, 1, 1});
  CHECK(evaluate(PipeDream{}, {4, 12}).weight_versions == std::vector{4, 3, 2, 1});
  CHECK(evaluate(PipeDream{.in_flight = 2}, {4, 12}).weight_versions == std::vector{2, 2, 2, 1});
  CHECK(evaluate(PipeDream2BW{}, {4, 12}).weight_versions == std::vector{2, 2, 2, 2});
  CHECK(evaluate(Fifo{.in_flight = 3}, {4, 12}).weight_versions == std::vector{3, 3, 3, 3});
}

TEST_CASE("schedule/evaluate: bytes are held from F, and in part from I to W", "[schedule]") {
  Costs costs;
  costs.stages = {{.activation_bytes = 100, .weight_share = 0.25},
                  {.activation_bytes = 10, .weight_share = 0.5}};
  CHECK(evaluate(OneFOneB{}.table({2, 4}), costs).peak_bytes == std::vector{200.0, 10.0});
  // 0F0 100, 0F1 200, 0I0 125, 0F2 225: the W of the first is late.
  CHECK(evaluate(oracle::table("0F0,0F1,0I0,0F2,0W0,0I1,0W1,0I2,0W2 / 1F0,1B0,1F1,1B1,1F2,1B2"),
                 costs)
            .peak_bytes == std::vector{225.0, 10.0});
  CHECK(
      evaluate(oracle::table("0F0,(0F1;0B0)OVERLAP_F_B,0B1 / 1F0,1B0,1F1,1B1"), costs).peak_bytes ==
      std::vector{200.0, 10.0});
}

TEST_CASE(
    "schedule/evaluate: refuses costs that are not finite and not negative, and tables that never "
    "end",
    "[schedule]") {
  Table const t = OneFOneB{}.table({2, 4});
  CHECK_THROWS_WITH(evaluate(t, Costs::uniform(1, -2, 1)),
                    Catch::Contains("stage 0") && Catch::Contains("backward_input_s = -2"));
  CHECK_THROWS_AS(evaluate(t, Costs::uniform(1, 1, std::numeric_limits<double>::quiet_NaN())),
                  Error);
  CHECK_THROWS_AS(evaluate(t, Costs::uniform(1, 1, 1, std::numeric_limits<double>::infinity())),
                  Error);
  Costs three;
  three.stages.resize(3);
  CHECK_THROWS_WITH(evaluate(t, three), Catch::Contains("3 stages") && Catch::Contains("has 2"));
  CHECK_THROWS_WITH(evaluate(oracle::table("0F0,0B0,0F1,0B1 / 1F0,1F1,1B0,1B1")),
                    Catch::Contains("waits for ever"));
  CHECK_THROWS_AS(evaluate(oracle::table("0F0,2000000000F2000000000")), Error);
}

TEST_CASE("schedule/evaluate: messages that share channels take the slow simulator's time",
          "[schedule]") {
  std::mt19937 random(42);
  int apart = 0;  // where the channels make a difference
  for (auto const& [P, M] : {std::pair{2, 4}, {4, 8}}) {
    for (auto const& [name, table] : zoo::all(P, M)) {
      Costs costs;
      for (int s = 0; s < table.stages; ++s) {
        auto const some = [&] { return 0.25 * static_cast<double>(1 + random() % 8); };
        costs.stages.push_back({.forward_s = some(),
                                .backward_input_s = some(),
                                .backward_weight_s = some(),
                                .transfer_s = some()});
      }
      Table const lowered = lower(table);
      double before = 0;
      for (Channels const channels :
           {Channels::independent, Channels::per_peer, Channels::per_rank}) {
        CAPTURE(name, P, M, static_cast<int>(channels));
        Evaluation const e = evaluate(lowered, costs, channels);
        REQUIRE(e.makespan_s ==
                Approx(oracle::play_messages(lowered, static_cast<int>(channels), costs).makespan));
        apart += before > 0 && e.makespan_s != before ? 1 : 0;
        before = e.makespan_s;
      }
    }
  }
  CHECK(apart > 10);
}

TEST_CASE("schedule/evaluate: a rank's span is that of its computing, not of its messages",
          "[schedule]") {
  // Four forwards; the next begins two seconds behind the one before, which is the link's time.
  Evaluation const e =
      evaluate(lower(ForwardOnly{}.table({3, 4})), Costs::uniform(1, 0, 0, 2), Channels::per_peer);
  CHECK(e.longest_span_s == 7);
  CHECK(e.span_bubble_s == 3);
}

TEST_CASE("schedule/evaluate: bytes of a pair are held to its end, whichever stands first",
          "[schedule]") {
  Costs costs;
  costs.each.activation_bytes = 100;
  Table t = oracle::table("0F0,0B0,0F1,0B1");
  CHECK(evaluate(t, costs).peak_bytes == std::vector<double>{100});
  t.actions[1].overlaps_next = true;
  CHECK(evaluate(t, costs).peak_bytes == std::vector<double>{200});
  t = oracle::table("0F0,0B0,0F1,0B1,0F2,0B2");  // and given back then, by each of two
  t.actions[1].overlaps_next = t.actions[3].overlaps_next = true;
  CHECK(evaluate(t, costs).peak_bytes == std::vector<double>{200});
}

TEST_CASE("schedule/evaluate: parts of idle time under limits are not negative and add up",
          "[schedule]") {
  std::mt19937 random(190);
  double memory = 0;
  for (int round = 0; round < 300; ++round) {
    int const P = 2 + static_cast<int>(random() % 4), M = 2 + static_cast<int>(random() % 8);
    Costs costs;
    for (int s = 0; s < P; ++s) {
      auto const some = [&] { return 0.5 * static_cast<double>(random() % 6); };
      costs.stages.push_back({.forward_s = 0.5 + some(),
                              .backward_input_s = some(),
                              .backward_weight_s = some(),
                              .transfer_s = some()});
    }
    int const limit = 1 + static_cast<int>(random() % 3);
    Table const t = OneFOneB{.in_flight = limit}.table({P, M});
    for (Table const& table : {t, lower(t)}) {
      Evaluation const e = evaluate(table, costs, Channels::per_peer, {.in_flight = limit});
      for (std::size_t r = 0; r < e.idle.size(); ++r) {
        Idle const& i = e.idle[r];
        CAPTURE(round, r, i.dependency_s, i.link_s, i.memory_s, i.collective_s);
        REQUIRE(std::min({i.dependency_s, i.link_s, i.memory_s, i.collective_s}) > -1e-9);
        REQUIRE(i.dependency_s + i.link_s + i.memory_s + i.collective_s ==
                Approx(e.makespan_s - e.work_s[r]).margin(1e-9));
        memory += i.memory_s;
      }
    }
  }
  CHECK(memory > 100);
}

}  // namespace evaluate_test
