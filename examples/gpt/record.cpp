// SPDX-License-Identifier: Apache-2.0
#include "record.hpp"

#include <algorithm>
#include <numeric>
#include <span>

#include <stagger/core/file.hpp>
#include <stagger/report/step_table.hpp>
#include <stagger/report/svg.hpp>
#include <stagger/report/trace.hpp>
#include <stagger/schedule/proof/evaluate.hpp>

namespace gpt {

namespace report = stagger::report;
using stagger::schedule::Table;
using stagger::schedule::Timeline;

namespace {

/// Index of the median.
template <class Value> std::size_t middle(std::size_t count, Value value) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return value(a) < value(b); });
  return order[count / 2];
}

}  // namespace

void Record::add(Timeline timeline, double wall_s, std::vector<int> peak_in_flight) {
  if (timelines_.size() == kept) {
    timelines_.erase(timelines_.begin());
    wall_s_.erase(wall_s_.begin());
  }
  timelines_.push_back(std::move(timeline));
  wall_s_.push_back(wall_s);
  peak_in_flight_ = std::move(peak_in_flight);
}

double Record::step_s() const {
  return wall_s_[middle(wall_s_.size(), [&](std::size_t i) { return wall_s_[i]; })];
}

double Record::fastest_s() const { return *std::min_element(wall_s_.begin(), wall_s_.end()); }

std::string Record::table(Table const& plan) const {
  report::StepReport step;
  step.predicted = report::summarize(predicted(plan));
  step.measured = report::summarize(typical());
  step.measured.peak_in_flight = peak_in_flight_;  // the engine's count, which is exact
  step.measured_step_s = step_s();
  return report::step_table(step);
}

void Record::write(std::string const& folder, Table const& plan, long long last_step) const {
  Timeline const allowed = predicted(plan);
  std::size_t const shown = std::min<std::size_t>(timelines_.size(), 5);
  std::vector<report::TraceGroup> const groups{
      {.name = "the schedule allows", .steps = {&allowed, 1}},
      {.name = "measured",
       .steps = {timelines_.data() + timelines_.size() - shown, shown},
       .first_step = last_step - static_cast<long long>(shown) + 1}};
  stagger::write_file(folder + "/trace.json",
                      report::perfetto(std::span<report::TraceGroup const>(groups)));
  std::vector<report::SvgPanel> const panels{{"the schedule allows", &allowed},
                                             {"measured", &typical()}};
  stagger::write_file(folder + "/timeline.svg",
                      report::svg(std::span<report::SvgPanel const>(panels)));
}

Timeline Record::predicted(Table const& plan) const {
  return stagger::schedule::evaluate(plan, report::measured_costs(timelines_)).timeline;
}

Timeline const& Record::typical() const {
  return timelines_[middle(timelines_.size(), [&](std::size_t i) {
    return report::summarize(timelines_[i]).makespan_s;
  })];
}

}  // namespace gpt
