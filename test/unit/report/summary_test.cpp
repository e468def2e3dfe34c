// SPDX-License-Identifier: Apache-2.0
#include <stagger/report/summary.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <stagger/report/trace.hpp>
#include <stagger/schedule/proof/evaluate.hpp>
#include <stagger/schedule/proof/reductions.hpp>
#include <stagger/schedule/table.hpp>

#include "catch.hpp"
#include "report/sample.hpp"

namespace summary_test {

namespace {

namespace report = stagger::report;
namespace schedule = stagger::schedule;
using sample::Kind;
using sample::Timeline;

schedule::Table table_of(sample::Rows const& rows, int microbatches) {
  schedule::Table table;
  table.microbatches = microbatches;
  for (auto const& row : rows) {
    table.begin_row();
    for (auto const& action : row) {
      table.add(action);
      table.stages = std::max(table.stages, action.stage + 1);
    }
  }
  return table;
}

}  // namespace

TEST_CASE("report/summarize: bubble and peak of GPipe and 1F1B are the papers'", "[report]") {
  for (int const ranks : {1, 2, 4, 8}) {
    for (int const microbatches : {8, 32}) {
      double const f = 1.25, b = 2.5;
      report::Summary const gpipe =
          report::summarize(sample::play(sample::gpipe(ranks, microbatches), f, b / 2, b / 2));
      report::Summary const flush = report::summarize(
          sample::play(sample::one_f_one_b(ranks, microbatches), f, b / 2, b / 2));
      for (report::Summary const& s : {gpipe, flush}) {
        CHECK(s.makespan_s == Approx((microbatches + ranks - 1) * (f + b)));
        CHECK(s.bubble_s == Approx((ranks - 1) * (f + b)).margin(1e-9));
        CHECK(s.bubble_share() == Approx((ranks - 1.0) / (microbatches + ranks - 1.0)));
        CHECK(s.busiest_work_s() == Approx(microbatches * (f + b)));
      }
      for (int r = 0; r < ranks; ++r) {
        auto const i = static_cast<std::size_t>(r);
        CHECK(gpipe.peak_in_flight[i] == microbatches);
        CHECK(flush.peak_in_flight[i] == std::min(microbatches, ranks - r));
        CHECK(gpipe.span_s[i] ==
              Approx(gpipe.makespan_s - r * (f + b)));  // starts r F later, ends r B earlier
      }
      CHECK(gpipe.longest_span_s == gpipe.span_s[0]);
    }
  }
}

TEST_CASE("report/summarize: makespan and span differ where ranks start and end apart",
          "[report]") {
  Timeline timeline =
      sample::timeline_of({{{{Kind::forward, 0, 0}, 1, 3}, {{Kind::forward, 0, 1}, 3, 4}},
                           {{{Kind::forward, 1, 0}, 3, 9}},
                           {}});
  report::Summary const s = report::summarize(timeline);
  CHECK(s.makespan_s == 8);
  CHECK(s.longest_span_s == 6);
  CHECK(s.work_s == std::vector<double>{3, 6, 0});
  CHECK(s.span_s == std::vector<double>{3, 6, 0});
  CHECK(s.bubble_s == 2);
  CHECK(s.span_bubble_s == 0);
  CHECK(s.peak_in_flight == std::vector<int>{2, 1, 0});
}

TEST_CASE(
    "report/summarize: a pair is one action of work, and its forward counts before its backward "
    "frees",
    "[report]") {
  for (bool const backward_first : {false, true}) {
    schedule::Span forward{{Kind::forward, 0, 1}, 1, 4};
    schedule::Span backward{{Kind::backward, 0, 0}, 1, 4};
    (backward_first ? backward : forward).action.overlaps_next = true;
    Timeline const timeline = sample::timeline_of({{{{Kind::forward, 0, 0}, 0, 1},
                                                    backward_first ? backward : forward,
                                                    backward_first ? forward : backward,
                                                    {{Kind::backward, 0, 1}, 4, 6}}});
    report::Summary const s = report::summarize(timeline);
    CHECK(s.work_s[0] == 6);
    CHECK(s.bubble_s == 0);
    CHECK(s.peak_in_flight[0] == 2);
  }
}

TEST_CASE("report/summarize: messages are no work and no part of a span", "[report]") {
  Timeline timeline = sample::timeline_of({{{{Kind::recv_forward, 0, 0}, 0, 1},
                                            {{Kind::forward, 0, 0}, 1, 2},
                                            {{Kind::send_forward, 0, 0}, 2, 5}}});
  report::Summary const s = report::summarize(timeline);
  CHECK(s.makespan_s == 1);
  CHECK(s.work_s[0] == 1);
}

TEST_CASE("report/summarize: agrees with evaluate about tables of every kind", "[report]") {
  for (auto const& rows : {sample::gpipe(4, 6), sample::one_f_one_b(4, 6),
                           sample::one_f_one_b(4, 6, true), sample::two_chunks(3, 6)}) {
    schedule::Evaluation const e =
        schedule::evaluate(table_of(rows, 6), schedule::Costs::uniform(1.5, 1, 0.75, 0.25));
    report::Summary const s = report::summarize(e.timeline);
    CHECK(s.makespan_s == Approx(e.makespan_s));
    CHECK(s.longest_span_s == Approx(e.longest_span_s));
    CHECK(s.bubble_s == Approx(e.bubble_s));
    CHECK(s.span_bubble_s == Approx(e.span_bubble_s));
    CHECK(s.peak_in_flight == e.peak_in_flight);
    for (std::size_t r = 0; r < s.work_s.size(); ++r) CHECK(s.work_s[r] == Approx(e.work_s[r]));
  }
}

TEST_CASE("report/summarize: reductions end the makespan, as in evaluate, and are no work",
          "[report]") {
  schedule::Costs costs = schedule::Costs::uniform(1.5, 1, 0.75, 0.25);
  costs.each.reduce_s = 2;
  for (auto const& rows :
       {sample::gpipe(4, 6), sample::one_f_one_b(4, 6), sample::two_chunks(3, 6)}) {
    schedule::Evaluation const e =
        schedule::evaluate(schedule::add_reductions(table_of(rows, 6)), costs);
    report::Summary const s = report::summarize(e.timeline);
    CHECK(s.makespan_s == Approx(e.makespan_s));
    CHECK(s.longest_span_s == Approx(e.longest_span_s));
    CHECK(s.bubble_s == Approx(e.bubble_s));
    CHECK(s.peak_in_flight == e.peak_in_flight);
    for (std::size_t r = 0; r < s.work_s.size(); ++r) CHECK(s.work_s[r] == Approx(e.work_s[r]));
  }
}

TEST_CASE("report/summarize: nothing comes to nothing, and impossible times are refused",
          "[report]") {
  report::Summary const s = report::summarize(Timeline{});
  CHECK(s.makespan_s == 0);
  CHECK(s.bubble_share() == 0);
  CHECK(s.busiest_work_s() == 0);
  Timeline timeline = sample::timeline_of({{{{Kind::forward, 2, 7}, 3, 1}}});
  CHECK_THROWS_WITH(report::summarize(timeline),
                    Catch::Contains("2F7 of rank 0 runs from 3 s to 1 s"));
  timeline.spans[0].start_s = std::numeric_limits<double>::quiet_NaN();
  CHECK_THROWS_AS(report::summarize(timeline), stagger::Error);
}

TEST_CASE("report/measured_costs: the median of each kind at each stage, over all steps",
          "[report]") {
  std::vector<Timeline> steps(3);
  double const lengths[] = {1, 2, 30};
  for (std::size_t i = 0; i < 3; ++i) {
    steps[i] = sample::timeline_of(
        {{{{Kind::forward, 1, 0}, 0, lengths[i]}, {{Kind::backward_weight, 1, 0}, 40, 41}},
         {{{Kind::forward, 0, 0}, 5, 6}, {{Kind::forward, 0, 1}, 6, 9}}});
  }
  auto const stages = report::measured_costs(steps).stages;
  REQUIRE(stages.size() == 2);
  CHECK(stages[1].forward_s == 2);
  CHECK(stages[1].backward_input_s == 0);
  CHECK(stages[1].backward_weight_s == 1);
  CHECK(stages[0].forward_s == 2);  // of 1 1 1 3 3 3
}

TEST_CASE("report/measured_costs: slices of a microbatch add up, pairs are left out", "[report]") {
  Timeline timeline = sample::timeline_of({{{{Kind::forward, 0, 0, 0}, 0, 1},
                                            {{Kind::forward, 0, 0, 1}, 1, 3},
                                            {{Kind::forward, 0, 1, 0, true}, 3, 9},
                                            {{Kind::backward, 0, 0}, 3, 9}}});
  auto const stages = report::measured_costs(std::span<Timeline const>{&timeline, 1}).stages;
  REQUIRE(stages.size() == 1);
  CHECK(stages[0].forward_s == 3);
  CHECK(stages[0].backward_input_s == 0);
  timeline.spans[0].action.stage = -1;
  CHECK_THROWS_WITH(report::measured_costs(std::span<Timeline const>{&timeline, 1}),
                    Catch::Contains("stage -1"));
}

TEST_CASE("report/measured_costs: costs of an undisturbed run predict that run", "[report]") {
  for (bool const split : {false, true}) {
    auto const rows = sample::one_f_one_b(4, 9, split);
    std::vector<Timeline> const steps(2, sample::play(rows, 1.3, 0.9, 0.4));
    schedule::Costs const costs = report::measured_costs(steps);
    REQUIRE(costs.stages.size() == 4);
    schedule::Evaluation const e = schedule::evaluate(table_of(rows, 9), costs);
    CHECK(e.makespan_s == Approx(report::summarize(steps[0]).makespan_s));
  }
  CHECK(report::measured_costs({}).stages.empty());
}

TEST_CASE(
    "report/summarize: a repeated forward is work, a cost of its backward, and no second flight",
    "[report]") {
  Timeline timeline = sample::timeline_of({{{{Kind::forward, 0, 0}, 0, 2, false},
                                            {{Kind::forward, 0, 1}, 2, 4, false},
                                            {{Kind::forward, 0, 0}, 4, 6, true},
                                            {{Kind::backward, 0, 0}, 7, 10, false},
                                            {{Kind::forward, 0, 1}, 10, 12, true},
                                            {{Kind::backward, 0, 1}, 12, 15, false}}});
  auto const summary = report::summarize(timeline);
  CHECK(summary.peak_in_flight == std::vector<int>{2});
  CHECK(summary.work_s[0] == 14);
  CHECK(summary.bubble_s == 1);
  auto const costs = report::measured_costs(std::span<schedule::Timeline const>(&timeline, 1));
  CHECK(costs.of(0).forward_s == 2);
  CHECK(costs.of(0).backward_input_s + costs.of(0).backward_weight_s == 5);
  std::string const trace = report::perfetto(timeline);
  CHECK(trace.find("\"0F0 again\"") != std::string::npos);
}

}  // namespace summary_test
