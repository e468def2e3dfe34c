// SPDX-License-Identifier: Apache-2.0
// A schedule is a value: the compiler proves it, `evaluate` predicts its cost, `report` draws it.
//
//     policy --table(shape)--> Table --verify--> proof or the first fault
//                                    --evaluate(costs)--> Timeline, bubble, peak in flight
//
// Build:  g++ -std=c++20 -O2 -I include examples/02_schedules.cpp -o schedules
// Run:    ./schedules [PICTURE.svg]      (default: schedules.svg)
// Prints: the table of 1F1B, its timeline as text, and a comparison of three schedules
// expect: 0F0,0F1,0F2,0F3,0B0,0F4,0B1
// expect: rank 3 . \.\. \.\. \.\. F0 B0=== F1 B1===
// expect: ZeroBubbleH1 +27\.0 s +11\.1 %
#include <cstdio>
#include <string>
#include <vector>

#include <stagger/core/file.hpp>
#include <stagger/report/format.hpp>
#include <stagger/report/svg.hpp>
#include <stagger/report/table.hpp>
#include <stagger/report/text.hpp>
#include <stagger/schedule/csv.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/schedule/proof/evaluate.hpp>
#include <stagger/schedule/proof/verify.hpp>
#include <stagger/schedule/zero_bubble_h1.hpp>

namespace schedule = stagger::schedule;
namespace report = stagger::report;

constexpr stagger::Shape shape{.ranks = 4, .microbatches = 8};

// Proven by the compiler: no action is missing, no deadlock, at most 4 microbatches in flight.
static_assert(schedule::accepted<schedule::verify(schedule::OneFOneB{}, shape, {.in_flight = 4})>);

int main(int argc, char** argv) {
  schedule::Table const table = schedule::OneFOneB{}.table(shape);
  std::printf("%s\n", schedule::write_csv(table).c_str());  // one line for each rank

  // A forward pass takes 1 s; the two halves of a backward pass, I and W, take 1 s each.
  auto const costs = schedule::Costs::uniform(1, 1, 1);
  schedule::Evaluation const one = schedule::evaluate(table, costs);
  std::printf("%s\n", report::gantt(one.timeline, {.width = 110}).c_str());

  schedule::Evaluation const gpipe = schedule::evaluate(schedule::GPipe{}.table(shape), costs);
  schedule::Evaluation const zero =
      schedule::evaluate(schedule::ZeroBubbleH1{}.table(shape), costs);
  report::TextTable compared({"schedule", "makespan", "bubble", "peak in flight, rank 0"});
  auto const add = [&](char const* name, schedule::Evaluation const& e) {
    compared.add({name, report::format_seconds(e.makespan_s),
                  report::format_percent(e.bubble_s / e.makespan_s),
                  std::to_string(e.peak_in_flight[0])});
  };
  add("GPipe", gpipe);
  add("OneFOneB", one);
  add("ZeroBubbleH1", zero);
  std::printf("%s", compared.str().c_str());

  std::vector<report::SvgPanel> const panels{
      {"GPipe", &gpipe.timeline}, {"1F1B", &one.timeline}, {"ZB-H1", &zero.timeline}};
  stagger::write_file(argc > 1 ? argv[1] : "schedules.svg", report::svg(panels));
}
