// SPDX-License-Identifier: Apache-2.0
#include <stagger/report/text.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "catch.hpp"
#include "report/sample.hpp"

namespace text_test {

namespace {

namespace report = stagger::report;
using sample::Kind;
using sample::Timeline;

std::vector<std::string> lines(std::string const& text) {
  std::vector<std::string> result;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) result.push_back(line);
  return result;
}

}  // namespace

TEST_CASE("report/text: GPipe with four ranks and microbatches is the paper's picture",
          "[report]") {
  // Huang et al., "GPipe", NeurIPS 2019, figure 2(c), with backwards in rising order of
  // microbatches.
  CHECK(report::gantt(sample::play(sample::gpipe(4, 4), 1, 1, 0), {.footer = false}) ==
        "rank 0 | F0 F1 F2 F3 .. .. .. .. .. .. B0 B1 B2 B3 |\n"
        "rank 1 | .. F0 F1 F2 F3 .. .. .. .. B0 B1 B2 B3 .. |\n"
        "rank 2 | .. .. F0 F1 F2 F3 .. .. B0 B1 B2 B3 .. .. |\n"
        "rank 3 | .. .. .. F0 F1 F2 F3 B0 B1 B2 B3 .. .. .. |\n");
}

TEST_CASE("report/text: 1F1B with four ranks and microbatches is the paper's picture", "[report]") {
  // Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021,
  // PipeDream-Flush; a backward takes as long as two forwards.
  CHECK(report::gantt(sample::play(sample::one_f_one_b(4, 4), 1, 1, 1),
                      {.time_unit = "units of F"}) ==
        "rank 0 | F0 F1 F2 F3 .. .. .. .. .. .. B0=== .. B1=== .. B2=== .. B3=== |\n"
        "rank 1 | .. F0 F1 F2 .. .. .. .. B0=== F3 B1=== .. B2=== .. B3=== .. .. |\n"
        "rank 2 | .. .. F0 F1 .. .. B0=== F2 B1=== F3 B2=== .. B3=== .. .. .. .. |\n"
        "rank 3 | .. .. .. F0 B0=== F1 B1=== F2 B2=== F3 B3=== .. .. .. .. .. .. |\n"
        "makespan 21, bubble 9 (42.9 %), one column is 1; time in units of F\n");
}

TEST_CASE("report/text: input and weight gradients have cells of their own", "[report]") {
  CHECK(report::gantt(sample::play(sample::one_f_one_b(2, 2, true), 1, 1, 1), {.footer = false}) ==
        "rank 0 | F0 F1 .. I0 W0 .. I1 W1 |\n"
        "rank 1 | .. F0 I0 W0 F1 I1 W1 .. |\n");
}

TEST_CASE("report/text: with several stages on a rank a cell names its stage", "[report]") {
  CHECK(report::gantt(sample::play(sample::two_chunks(2, 2), 1, 1, 0), {.footer = false}) ==
        "rank 0 | 0F0 0F1 2F0 2F1 ... ... 2B0 2B1 0B0 0B1 |\n"
        "rank 1 | ... 1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1 ... |\n");
  CHECK(report::gantt(sample::play(sample::two_chunks(2, 2), 1, 1, 0),
                      {.width = 42, .footer = false}) ==
        "rank 0 | F0 F1 F0 F1 .. .. B0 B1 B0 B1 |\n"
        "rank 1 | .. F0 F1 F0 F1 B0 B1 B0 B1 .. |\n");
}

TEST_CASE("report/text: a reduction of gradients is an R", "[report]") {
  Timeline timeline = sample::play(sample::gpipe(2, 1), 1, 1, 1);
  for (int r = 0; r < 2; ++r)
    sample::add_to_row(timeline, static_cast<std::size_t>(r),
                       {{Kind::reduce_gradient, r, 0}, 6.0 - 2 * r, 8.0 - 2 * r});
  CHECK(report::gantt(timeline, {.footer = false}) ==
        "rank 0 | F0 .. .. .. B0=== R++++ |\n"
        "rank 1 | .. F0 B0=== R++++ .. .. |\n");
  CHECK(report::gantt(timeline, {.width = 25, .footer = false}) ==
        "rank 0 |F0......B0==R+++|\n"
        "rank 1 |..F0B0==R+++....|\n");
}

TEST_CASE("report/text: an overlapped pair is one cell", "[report]") {
  Timeline const timeline = sample::timeline_of({{{{Kind::forward, 0, 0}, 0, 1},
                                                  {{Kind::forward, 0, 1, 0, true}, 1, 2},
                                                  {{Kind::backward, 0, 0}, 1, 2},
                                                  {{Kind::backward, 0, 1}, 2, 3}}});
  CHECK(report::gantt(timeline, {.footer = false}) == "rank 0 | F0   F1B0 B1   |\n");
}

TEST_CASE("report/text: the grid unit is the common divisor of all times, rounding aside",
          "[report]") {
  Timeline const timeline = sample::play(sample::gpipe(2, 2), 0.2, 0.2, 0.1);  // F 0.2, B 0.3
  CHECK(report::gantt(timeline, {.footer = false}) ==
        "rank 0 | F0--- F1--- .. .. .. .. .. B0====== B1====== |\n"
        "rank 1 | .. .. F0--- F1--- B0====== B1====== .. .. .. |\n");
  CHECK_THAT(report::gantt(timeline), Catch::Contains("one column is 100 ms"));
}

TEST_CASE("report/text: measured times are drawn in proportion, every line equally long",
          "[report]") {
  for (int const width : {40, 80, 133}) {
    for (int const ranks : {2, 4, 12}) {
      Timeline const timeline =
          sample::play(sample::one_f_one_b(ranks, 6), 1.7e-3, 1e-3, 1e-3, 0.2);
      auto const rows = lines(report::gantt(timeline, {.width = width, .footer = false}));
      REQUIRE(rows.size() == timeline.row_begin.size());
      double makespan = 0;
      for (auto const& span : timeline.spans) makespan = std::max(makespan, span.end_s);
      for (std::size_t r = 0; r < rows.size(); ++r) {
        CHECK(rows[r].size() == rows[0].size());
        CHECK(rows[r].size() <= static_cast<std::size_t>(width));
        double work = 0;
        for (auto const& span : timeline.row(r)) work += span.end_s - span.start_s;
        std::size_t const from = rows[r].find('|') + 1;
        std::string const bar = rows[r].substr(from, rows[r].size() - from - 1);
        auto const busy = static_cast<double>(bar.size()) -
                          static_cast<double>(std::count(bar.begin(), bar.end(), '.'));
        // each of the 24 edges of a row is off by half a column at most
        CHECK(busy / static_cast<double>(bar.size()) ==
              Approx(work / makespan).margin(12.5 / static_cast<double>(bar.size())));
      }
    }
  }
}

TEST_CASE("report/text: several timelines have one axis, and a legend says what is drawn",
          "[report]") {
  auto const longer = sample::play(sample::gpipe(2, 2), 1, 2, 0);
  auto const shorter = sample::play(sample::gpipe(2, 1), 1, 2, 0);
  report::TextPanel const panels[]{{"first", &shorter}, {"second", &longer}};
  CHECK(report::gantt(panels, {.footer = false, .legend = true}) ==
        "first\n"
        "rank 0 | F0 .. .. .. B0=== .. .. .. |\n"
        "rank 1 | .. F0 B0=== .. .. .. .. .. |\n"
        "second\n"
        "rank 0 | F0 F1 .. .. .. B0=== B1=== |\n"
        "rank 1 | .. F0 F1 B0=== B1=== .. .. |\n"
        "F-- forward, B== backward, ... idle\n");
  // In proportion, too: half of the time ends in half of the line.
  auto const slow = sample::play(sample::gpipe(1, 1), 1.0, 1.00013, 0);
  auto const slower = sample::play(sample::gpipe(1, 1), 2.0, 2.00026, 0);
  report::TextPanel const two[]{{{}, &slow}, {{}, &slower}};
  auto const drawn = lines(report::gantt(two, {.width = 49, .footer = false}));
  REQUIRE(drawn.size() == 2);
  CHECK(drawn[0].size() == drawn[1].size());
  CHECK(drawn[0].substr(0, drawn[0].size() - 1).find_last_not_of('.') ==
        drawn[0].find('|') + (drawn[0].size() - drawn[0].find('|') - 2) / 2);
}

TEST_CASE("report/text: empty timelines and times that cannot be drawn", "[report]") {
  CHECK(report::gantt(Timeline{}, {.footer = false}).empty());
  Timeline timeline;
  timeline.row_begin.resize(2);
  CHECK(report::gantt(timeline, {.footer = false}) == "rank 0 | |\nrank 1 | |\n");
  sample::add_to_row(timeline, 0, {{Kind::forward, 0, 0}, 2, 2});
  CHECK(lines(report::gantt(timeline)).size() == 3);
  timeline.spans[0].end_s = std::numeric_limits<double>::infinity();
  CHECK_THROWS_WITH(report::gantt(timeline), Catch::Contains("0F0 of rank 0"));
}

}  // namespace text_test
