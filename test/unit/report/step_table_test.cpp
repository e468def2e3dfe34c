// SPDX-License-Identifier: Apache-2.0
#include <stagger/report/step_table.hpp>

#include <string>

#include "catch.hpp"
#include "report/sample.hpp"

namespace step_table_test {

namespace report = stagger::report;

TEST_CASE("report/step_table: predicted and measured side by side", "[report]") {
  report::StepReport report;
  report.predicted = report::summarize(sample::play(sample::one_f_one_b(4, 8), 1e-3, 1e-3, 1e-3));
  report.measured = report::summarize(sample::play(sample::one_f_one_b(4, 8), 1.1e-3, 1e-3, 1e-3));
  report.measured_step_s = 36.3e-3;
  CHECK(report::step_table(report) ==
        "                           schedule allows  measured  difference\n"
        "-------------------------  ---------------  --------  ----------\n"
        "step time                          33.0 ms   36.3 ms     +10.0 %\n"
        "makespan                           33.0 ms   34.1 ms      +3.3 %\n"
        "work of the busiest rank           24.0 ms   24.8 ms      +3.3 %\n"
        "bubble                             9.00 ms   9.30 ms      +3.3 %\n"
        "span bubble                        9.00 ms   9.30 ms      +3.3 %\n"
        "bubble, share of makespan           27.3 %    27.3 %\n"
        "peak in flight, per rank           4 3 2 1   4 3 2 1\n");
}

TEST_CASE("report/step_table: one rank has no bubble to compare, many ranks show the highest peak",
          "[report]") {
  report::StepReport report;
  report.predicted = report::summarize(sample::play(sample::gpipe(1, 3), 1, 1, 1));
  report.measured = report.predicted;
  std::string const one = report::step_table(report);
  CHECK_THAT(one,
             Catch::Contains("bubble                                 0 s       0 s           -\n"));
  CHECK_THAT(one, !Catch::Contains("step time"));
  report.predicted = report::summarize(sample::play(sample::one_f_one_b(12, 40), 1, 1, 1));
  CHECK_THAT(report::step_table(report), Catch::Contains("12 (rank 0)"));
  CHECK_THAT(report::step_table({}), Catch::Contains("peak in flight"));
}

}  // namespace step_table_test
