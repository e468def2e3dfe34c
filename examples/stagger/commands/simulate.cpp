// SPDX-License-Identifier: Apache-2.0
// stagger simulate: makespan, bubble and memory of a table.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <stagger/report/format.hpp>
#include <stagger/report/svg.hpp>
#include <stagger/report/table.hpp>
#include <stagger/report/text.hpp>
#include <stagger/report/trace.hpp>
#include <stagger/schedule/proof/bound.hpp>
#include <stagger/schedule/proof/evaluate.hpp>
#include <stagger/schedule/proof/reductions.hpp>
#include <stagger/schedule/proof/transfers.hpp>

#include "../command.hpp"
#include "../pipeline.hpp"

namespace tool {

namespace {

namespace schedule = stagger::schedule;
namespace report = stagger::report;

/// A table and the result of its simulation.
struct Played {
  std::string name;
  schedule::Evaluation result;
  double bound_s = 0;

  [[nodiscard]] double gap() const {
    double const gap = bound_s > 0 ? result.makespan_s / bound_s - 1 : 0;
    return std::fabs(gap) < 1e-12 ? 0 : gap;
  }
  /// Rounds to 0 what is only a rounding error.
  [[nodiscard]] double clean(double seconds) const {
    return std::fabs(seconds) <= 1e-12 * result.makespan_s ? 0 : seconds;
  }
};

class Simulate final : public Command {
 public:
  void flags(Flags& app) override {
    app.add("--table", table_, "Table as CSV, instead of --policy; - is standard input", "FILE");
    tables_.add(app);
    policy_.add(app);
    costs_.add(app);
    overlap_flag_ =
        app.add("--overlap-cost", overlap_,
                "Cost of an overlapped pair; default: F + I + W of its actions", "SECONDS");
    reduce_flag_ = app.add("--reduce", reduce_,
                           "Cost of REDUCE_GRAD, default 0; a table without it gets one for "
                           "each stage, behind its last gradient",
                           "SECONDS");
    channels_.add(app);
    app.add("--compare", compare_, "A second table as CSV, shown beside the first", "FILE");
    add_formats(app, {"text", "json", "svg", "trace"});
    app.footer(
        "Example: stagger simulate --policy 1f1b --ranks 4 --microbatches 8 --format json\n"
        "  {\"makespan\": 33.0, \"longest_span\": 33.0, \"work\": [24.0, ...], \"bubble\": 9.0, "
        "...}\n\n"
        "Figures: the makespan goes from the first start to the last end of all ranks, a span from "
        "the first\n"
        "start to the last end of one. A bubble is what they have beyond the work of the busiest "
        "rank. No order\n"
        "of the same actions takes less than the lower bound; above it says how much longer this "
        "one takes.\n"
        "Of each rank: its work; its idle time, and how much of it is spent waiting for values "
        "under way (for\n"
        "links), for memory under a limit, and for others to add up gradients (for reductions); "
        "and the most\n"
        "microbatches in flight, whose F has run and whose B or W has not.");
  }

  Answer run() override {
    std::string const form = format();
    schedule::Costs costs = costs_.costs();
    if (overlap_flag_.given()) {
      require_number("--overlap-cost", overlap_);
      costs.overlap_s = overlap_;
    }
    if (reduce_flag_.given()) {
      require_number("--reduce", reduce_);
      costs.each.reduce_s = reduce_;
      for (auto& stage : costs.stages) stage.reduce_s = reduce_;
    }
    auto const channels = channels_.channels();
    if (!table_.empty()) leave_out(policy_.all(), "--table gives the schedule");
    if (table_.empty() && !policy_.given()) refuse("simulate needs --policy NAME or --table FILE");
    tables_.require(!table_.empty() || !compare_.empty());

    std::vector<schedule::Table> tables;
    std::vector<Played> played;
    if (policy_.given()) {
      tables.push_back(policy_.table(costs));
      played.push_back({policy_.policy(), {}, 0});
    }
    for (auto const& path : {table_, compare_}) {
      if (path.empty()) continue;
      tables.push_back(tables_.read(path));
      if (auto const fault = schedule::verify(tables.back(), {.channels = channels})) {
        return {{},
                source_name(path) + ": " + schedule::name(fault.kind) + ": " +
                    tables_.message(path, tables.back(), fault),
                unreadable(fault) ? 2 : 1};
      }
      played.push_back({source_name(path), {}, 0});
    }
    // Auto may have found that pairs of this cost are not worth it.
    if (policy_.policy() != "auto" && std::none_of(tables.begin(), tables.end(), overlaps))
      leave_out({overlap_flag_}, "no table has an overlapped pair");
    for (std::size_t i = 0; i < tables.size(); ++i) {
      bool const own = i == 0 && policy_.given();
      schedule::Limits const limits = own ? policy_.limits() : schedule::Limits{};
      if (reduce_flag_.given() && !reduces(tables[i]))
        tables[i] = schedule::add_reductions(tables[i]);
      played[i].result = schedule::evaluate(tables[i], costs, channels, limits);
      if (own) played[i].result.weight_versions = policy_.weight_versions();
      played[i].bound_s = schedule::lower_bound(tables[i], costs, limits);
    }

    if (form == "json") {
      Json all = Json::array();
      for (auto const& p : played) all.push_back(json(p));
      return {dump(played.size() == 1 ? all.front() : all)};
    }
    if (form == "trace") {
      std::vector<report::TraceGroup> groups;
      for (auto const& p : played) groups.push_back({p.name, {&p.result.timeline, 1}});
      return {report::perfetto(std::span<report::TraceGroup const>{groups})};
    }
    bool const in_units = costs_.in_units() && !overlap_flag_.given() && !reduce_flag_.given();
    std::string const unit = in_units ? "units of F" : "";
    if (form == "svg") {
      for (std::size_t i = 0; i < tables.size(); ++i)
        if (!has_messages(tables[i]))
          schedule::add_transfers(played[i].result.timeline, tables[i], costs);
      std::vector<report::SvgPanel> panels;
      for (auto const& p : played) {
        panels.push_back({played.size() > 1 ? p.name : std::string_view{}, &p.result.timeline});
      }
      return {report::svg(std::span<report::SvgPanel const>{panels}, {.time_unit = unit})};
    }
    return {text(played, unit)};
  }

 private:
  static bool overlaps(schedule::Table const& table) {
    return std::any_of(table.actions.begin(), table.actions.end(),
                       [](schedule::Action const& a) { return a.overlaps_next; });
  }
  static bool reduces(schedule::Table const& table) {
    return std::any_of(table.actions.begin(), table.actions.end(), [](schedule::Action const& a) {
      return a.kind == schedule::Kind::reduce_gradient;
    });
  }

  static Json json(Played const& p) {
    auto const& r = p.result;
    Json idle = Json::array();
    for (auto const& i : r.idle) {
      idle.push_back({{"dependency", p.clean(i.dependency_s)},
                      {"link", p.clean(i.link_s)},
                      {"memory", p.clean(i.memory_s)},
                      {"collective", p.clean(i.collective_s)}});
    }
    return {{"makespan", r.makespan_s},
            {"longest_span", r.longest_span_s},
            {"work", r.work_s},
            {"bubble", p.clean(r.bubble_s)},
            {"span_bubble", p.clean(r.span_bubble_s)},
            {"idle", idle},
            {"peak_in_flight", r.peak_in_flight},
            {"weight_versions", r.weight_versions},
            {"lower_bound", p.bound_s},
            {"gap", p.gap()}};
  }

  static std::string text(std::vector<Played> const& played, std::string const& unit) {
    auto const time = [&](double s) {
      return unit.empty() ? report::format_seconds(s)
                          : report::format_shortest(std::round(s * 1e6) / 1e6);
    };
    std::vector<report::TextPanel> panels;
    for (auto const& p : played)
      panels.push_back({played.size() > 1 ? p.name : std::string_view{}, &p.result.timeline});
    std::string out = report::gantt(std::span<report::TextPanel const>{panels},
                                    {.footer = false, .legend = true, .time_unit = unit}) +
                      "\n";
    std::vector<std::string> header{unit.empty() ? "figure" : "figure, in " + unit};
    for (auto const& p : played) header.push_back(p.name);
    report::TextTable figures(header);
    auto const row = [&](char const* what, auto const& value) {
      std::vector<std::string> cells{what};
      for (auto const& p : played) cells.push_back(value(p));
      figures.add(cells);
    };
    row("makespan", [&](Played const& p) { return time(p.result.makespan_s); });
    row("longest span", [&](Played const& p) { return time(p.result.longest_span_s); });
    row("bubble", [&](Played const& p) { return time(p.clean(p.result.bubble_s)); });
    row("span bubble", [&](Played const& p) { return time(p.clean(p.result.span_bubble_s)); });
    row("lower bound", [&](Played const& p) { return time(p.bound_s); });
    row("above it", [](Played const& p) { return report::format_percent(p.gap()); });
    out += figures.str() + "\n";

    std::size_t ranks = 0;
    header = {"rank"};
    bool memory = false, collective = false, versions = false;  // columns with a nonzero value
    for (auto const& p : played) {
      for (auto const& idle : p.result.idle) {
        memory = memory || p.clean(idle.memory_s) > 0;
        collective = collective || p.clean(idle.collective_s) > 0;
      }
      for (int const n : p.result.weight_versions) versions = versions || n > 1;
    }
    for (auto const& p : played) {
      ranks = std::max(ranks, p.result.work_s.size());
      std::string const of = played.size() > 1 ? ", " + p.name : "";
      for (char const* what : {"work", "idle", "for links"}) header.push_back(what + of);
      if (memory) header.push_back("for memory" + of);
      if (collective) header.push_back("for reductions" + of);
      header.push_back("in flight" + of);
      if (versions) header.push_back("weight versions" + of);
    }
    std::size_t const columns = (header.size() - 1) / played.size();
    report::TextTable table(header);
    for (std::size_t r = 0; r < ranks; ++r) {
      std::vector<std::string> cells{std::to_string(r)};
      for (auto const& p : played) {
        if (r >= p.result.work_s.size()) {
          cells.insert(cells.end(), columns, "-");
          continue;
        }
        auto const& idle = p.result.idle[r];
        cells.push_back(time(p.result.work_s[r]));
        cells.push_back(time(p.clean(idle.total_s())));
        cells.push_back(time(p.clean(idle.link_s)));
        if (memory) cells.push_back(time(p.clean(idle.memory_s)));
        if (collective) cells.push_back(time(p.clean(idle.collective_s)));
        cells.push_back(std::to_string(p.result.peak_in_flight[r]));
        if (versions) cells.push_back(std::to_string(p.result.weight_versions[r]));
      }
      table.add(cells);
    }
    return out + table.str();
  }

  std::string table_{}, compare_{};
  TableFiles tables_{};
  PolicyFlags policy_{};
  CostFlags costs_{};
  ChannelFlag channels_{};
  double overlap_ = -1, reduce_ = 0;
  Flag overlap_flag_{}, reduce_flag_{};
};

Registered<Simulate> const simulate_registered{4, "simulate",
                                               "Play a table: makespan, bubble, memory"};

}  // namespace

}  // namespace tool
