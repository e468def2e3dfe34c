// SPDX-License-Identifier: Apache-2.0
// stagger schedule: prints the table of a schedule.

#include <string>
#include <vector>

#include <stagger/report/svg.hpp>
#include <stagger/report/table.hpp>
#include <stagger/report/text.hpp>
#include <stagger/schedule/csv.hpp>
#include <stagger/schedule/named.hpp>
#include <stagger/schedule/proof/evaluate.hpp>
#include <stagger/schedule/proof/lower.hpp>
#include <stagger/schedule/proof/transfers.hpp>

#include "../command.hpp"
#include "../pipeline.hpp"

namespace tool {

namespace {

namespace schedule = stagger::schedule;

class Schedule final : public Command {
 public:
  void flags(Flags& app) override {
    app.add("--list", list_, "Show all policies and what they ask for");
    policy_.add(app);
    costs_.add(app);
    svg_flags_ = {app.add("--title", title_, "svg: a heading above the picture", "TEXT"),
                  app.add("--width", width_, "svg: width in pixels; default 960", "N")};
    add_formats(app, {"torch-csv", "torch-comms-csv", "text", "svg", "json"});
    app.footer(
        "Example: stagger schedule --policy zb-h1 --ranks 2 --microbatches 4\n"
        "  0F0,0F1,0I0,0W0,0F2,0I1,0W1,0F3,0I2,0W2,0I3,0W3\n"
        "  1F0,1I0,1F1,1I1,1W0,1F2,1I2,1W1,1F3,1I3,1W2,1W3");
  }

  Answer run() override {
    std::string const& form = format();
    if (form != "svg") leave_out(svg_flags_, "only --format svg has a picture");
    if (list_) {
      leave_out(policy_.all(), "--list shows all policies");
      leave_out(costs_.all(), "--list plays no table");
      if (form == "svg" || form == "torch-comms-csv")
        refuse("--list is text or json; leave --format " + form + " out");
      return {list(form)};
    }
    if (!policy_.given()) refuse("schedule needs --policy NAME, or --list");
    schedule::Costs const costs = costs_.costs();
    schedule::Table const table = policy_.table(costs);
    schedule::require_costs(costs, table.stages);
    if (form == "torch-csv") return {schedule::write_csv(table)};
    if (form == "torch-comms-csv") return {schedule::write_csv(schedule::lower(table, costs))};
    if (form == "json") {
      return {dump({{"policy", policy_.policy()},
                    {"ranks", table.ranks()},
                    {"stages", table.stages},
                    {"microbatches", table.microbatches},
                    {"rows", rows_json(table)}})};
    }
    auto timeline = schedule::evaluate(table, costs).timeline;
    char const* const unit = costs_.in_units() ? "units of F" : "";
    if (form == "text")
      return {stagger::report::gantt(timeline, {.legend = true, .time_unit = unit})};
    schedule::add_transfers(timeline, table, costs);
    return {stagger::report::svg(timeline, {.width = width_, .title = title_, .time_unit = unit})};
  }

 private:
  std::string list(std::string const& form) const {
    if (form == "json") {
      Json json = Json::array();
      for (auto const& entry : schedule::catalog) {
        json.push_back({{"policy", std::string(entry.name)},
                        {"what", std::string(entry.what)},
                        {"constraint", std::string(entry.constraint)},
                        {"chunks", entry.chunks}});
      }
      return dump(json);
    }
    stagger::report::TextTable table({"policy", "what", "ranks P, microbatches M, chunks V"});
    for (auto const& entry : schedule::catalog) {
      table.add({std::string(entry.name), std::string(entry.what), std::string(entry.constraint)});
    }
    return table.str();
  }

  bool list_ = false;
  PolicyFlags policy_{};
  CostFlags costs_{};
  std::string title_{};
  int width_ = 960;
  std::vector<Flag> svg_flags_{};
};

Registered<Schedule> const schedule_registered{1, "schedule", "Print the table of a schedule"};

}  // namespace

}  // namespace tool
