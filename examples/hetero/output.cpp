// SPDX-License-Identifier: Apache-2.0
#include "output.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/core/file.hpp>
#include <stagger/report/chart.hpp>
#include <stagger/report/format.hpp>
#include <stagger/report/table.hpp>
#include <stagger/report/trace.hpp>

namespace hetero {

namespace report = stagger::report;

namespace {

/// What is processed in a second.
std::string rate_name(Settings const& s, Run const& run) {
  bool const images = s.model == "vgg" || !run.workers.front().devices.empty();
  return images ? "images/s" : "sequences/s";
}

/// A row for each worker, and as many columns as any has something in.
std::string staleness_of(Settings const& s, Run const& run) {
  std::size_t columns = 1;
  for (WorkerRun const& worker : run.workers)
    for (std::size_t k = 0; k < worker.staleness.size(); ++k)
      if (worker.staleness[k] != 0) columns = std::max(columns, k + 1);
  std::vector<std::string> header{"worker"};
  for (std::size_t k = 0; k < columns; ++k) header.push_back(std::to_string(k));
  report::TextTable table(header);
  for (std::size_t n = 0; n < run.workers.size(); ++n) {
    std::vector<std::string> row{std::to_string(n)};
    for (std::size_t k = 0; k < columns; ++k)
      row.push_back(std::to_string(run.workers[n].staleness.at(k)));
    table.add(row);
  }
  return stagger::text(s.sync == "wsp" ? "minibatches" : "steps",
                       " whose weights lacked so many pushes of another worker:\n", table.str());
}

/// Megabytes, of the kinds that any worker has something of.
std::string traffic_of(Run const& run) {
  std::vector<std::size_t> kinds;
  std::vector<std::string> header{"worker"};
  for (std::size_t kind = 0; kind < stagger::traffic_kinds; ++kind) {
    std::uint64_t all = 0;
    for (WorkerRun const& worker : run.workers) all += worker.traffic[kind].bytes;
    if (all == 0) continue;
    kinds.push_back(kind);
    header.emplace_back(stagger::name(static_cast<stagger::TrafficKind>(kind)));
  }
  report::TextTable table(header);
  for (std::size_t n = 0; n < run.workers.size(); ++n) {
    std::vector<std::string> row{std::to_string(n)};
    for (std::size_t const kind : kinds)
      row.push_back(
          report::format_fixed(static_cast<double>(run.workers[n].traffic[kind].bytes) / 1e6, 2));
    table.add(row);
  }
  return "MB that crossed:\n" + table.str();
}

/// A line on what did not come of --sync osp, or nothing.
std::string warning_of(Settings const& s, Run const& run) {
  if (s.sync != "osp" || s.steps < 2) return {};
  Hiding const hiding = hiding_of(s, run);
  if (hiding.steps == 0 && s.late > 0) {
    auto const [first, last] = std::pair(run.layer_bytes.begin(), run.layer_bytes.end());
    return stagger::text("nothing was late: the budget is ",
                         report::format_bytes(s.late * std::accumulate(first, last, 0.0)),
                         ", the smallest layer has ",
                         report::format_bytes(*std::min_element(first, last)), "; raise --late",
                         s.whole_layers ? ", or leave --whole-layers out" : "", "\n");
  }
  if (2 * hiding.waited <= hiding.steps) return {};
  return stagger::text("the exchange of late values took ",
                       report::format_seconds(hiding.exchange_s), ", longer than the ",
                       report::format_seconds(hiding.computation_s),
                       " of computation that should hide it, in ", hiding.waited, " of ",
                       hiding.steps, " steps; lower --late\n");
}

}  // namespace

std::string table_of(Settings const& s, Run const& run) {
  bool const devices = !run.workers.front().devices.empty();
  std::string const unit = rate_name(s, run);
  std::vector<std::string> header{"worker"};
  if (devices) header.emplace_back("GPUs");
  for (std::string const& name : {unit, std::string("waiting"), std::string("idle while waiting"),
                                  std::string("clock"), std::string("last loss")})
    header.push_back(name);
  report::TextTable table(header);
  for (std::size_t n = 0; n < run.workers.size(); ++n) {
    WorkerRun const& worker = run.workers[n];
    Spent const time = spent(worker);
    std::vector<std::string> row{std::to_string(n)};
    if (devices) row.push_back(worker.devices);
    row.insert(row.end(),
               {report::format_fixed(speed_of(run, worker, time), 1),
                report::format_percent(time.waiting_s / time.end_s),
                report::format_percent(time.idle_s / time.end_s), std::to_string(time.pushes),
                report::format_fixed(worker.losses.back(), 3)});
    table.add(row);
  }
  std::string out = table.str() + "waiting, idle while waiting: of each worker's time\n\n";
  out.append(staleness_of(s, run)).append("\n").append(traffic_of(run));
  out.append(warning_of(s, run));
  auto const curve = curve_of(s, run);
  report::TextTable losses({"time", "loss"});
  std::size_t const rows = std::min<std::size_t>(curve.size(), 10);
  for (std::size_t i = 0; i < rows; ++i) {
    LossPoint const& point = curve[rows == 1 ? 0 : i * (curve.size() - 1) / (rows - 1)];
    losses.add({report::format_seconds(point.time_s), report::format_fixed(point.loss, 3)});
  }
  out.append("\n").append(losses.str());
  auto const when = reached(s, run);
  Totals const all = totals_of(run);
  out += stagger::text(
      "\n", report::format_fixed(all.per_s, 1), " ", unit, " in ",
      report::format_seconds(all.end_s), "; loss ", report::format_fixed(target_of(s), 2),
      when ? " after " + report::format_seconds(when->time_s) : std::string(" not reached"),
      "; held-out loss ", report::format_fixed(run.held_out, 3), "\n");
  return out;
}

std::string csv_of(Run const& run) {
  std::string out = "worker,minibatch,began_s,ended_s,loss\n";
  for (std::size_t n = 0; n < run.workers.size(); ++n) {
    WorkerRun const& worker = run.workers[n];
    std::vector<double> began_s(worker.losses.size()), ended_s(worker.losses.size());
    for (auto const& span : worker.rows.front()) {
      auto const m = static_cast<std::size_t>(span.action.microbatch);
      if (span.action.kind == stagger::schedule::Kind::forward) began_s[m] = span.start_s;
      if (span.action.kind == stagger::schedule::Kind::backward) ended_s[m] = span.end_s;
    }
    for (std::size_t m = 0; m < worker.losses.size(); ++m)
      out += stagger::text(n, ",", m, ",", report::format_shortest(began_s[m]), ",",
                           report::format_shortest(ended_s[m]), ",",
                           report::format_shortest(worker.losses[m]), "\n");
  }
  return out;
}

std::string trace_of(Run const& run) {
  std::vector<std::string> names;
  std::vector<stagger::schedule::Timeline> timelines;
  stagger::schedule::Timeline server;  // a row for each worker
  for (std::size_t n = 0; n < run.workers.size(); ++n) {
    WorkerRun const& worker = run.workers[n];
    names.push_back(
        stagger::text("worker ", n, worker.devices.empty() ? "" : " on ", worker.devices));
    for (auto& timeline = timelines.emplace_back(); auto const& row : worker.rows)
      timeline.add_row(row);
    server.add_row(exchanges(worker));
  }
  names.emplace_back("server, with a rank for each worker");
  std::vector<report::TraceGroup> groups;
  for (std::size_t n = 0; n < run.workers.size(); ++n)
    groups.push_back({names[n], {&timelines[n], 1}});
  groups.push_back({names.back(), {&server, 1}});
  return report::perfetto(groups);
}

std::string comparison_of(std::vector<Compared> const& runs) {
  std::vector<std::pair<double, std::size_t>> order;  // when each reached it
  for (std::size_t i = 0; i < runs.size(); ++i) {
    auto const when = reached(runs[i].s, runs[i].run);
    order.emplace_back(when ? when->time_s : std::numeric_limits<double>::infinity(), i);
  }
  std::sort(order.begin(), order.end());
  report::TextTable table({"", rate_name(runs.front().s, runs.front().run), "waiting",
                           "idle while waiting", "minibatches", "time to the target",
                           "held-out loss"});
  for (auto const& [when_s, i] : order) {
    auto const when = reached(runs[i].s, runs[i].run);
    Totals const all = totals_of(runs[i].run);
    table.add({runs[i].name, report::format_fixed(all.per_s, 1),
               report::format_percent(all.waiting_s / all.worked_s),
               report::format_percent(all.idle_s / all.worked_s),
               when ? std::to_string(when->minibatches) : "-",
               when ? report::format_seconds(when->time_s) : "not reached",
               report::format_fixed(runs[i].run.held_out, 3)});
  }
  return table.str() + "waiting, idle while waiting: of the workers' time\n";
}

std::string curves_csv_of(std::vector<Compared> const& runs) {
  std::string out = "sync,time_s,loss\n";
  for (Compared const& each : runs) {
    bool const plain = each.name.find(',') == std::string::npos;
    std::string const name = plain ? each.name : "\"" + each.name + "\"";
    for (LossPoint const& point : curve_of(each.s, each.run))
      out += stagger::text(name, ",", report::format_shortest(point.time_s), ",",
                           report::format_shortest(point.loss), "\n");
  }
  return out;
}

std::string chart_of(std::vector<Compared> const& runs) {
  std::vector<std::vector<report::ChartPoint>> points(runs.size());
  std::vector<report::ChartLine> lines;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    for (LossPoint const& point : curve_of(runs[i].s, runs[i].run))
      points[i].push_back({point.time_s, point.loss});
    lines.push_back({runs[i].name, points[i]});
  }
  Settings const& s = runs.front().s;
  std::string title = "Loss of ";
  title += s.model;
  if (s.timed() && s.cluster != "equal")
    title += s.cluster == "vgg-19" ? " in VGG-19's times" : " in ResNet-152's times";
  return report::chart(lines, {.title = title,
                               .x = s.timed() ? "seconds of virtual time" : "seconds",
                               .y = "loss",
                               .theme = report::SvgTheme::automatic});
}

Files::Files(Settings const& s) : s_(s) {
  for (std::string const& name : {s.csv, s.trace, s.chart})
    if (!name.empty()) stagger::WholeFile const probe(name);  // not committed, so no file remains
}

void Files::write(Run const& run) const {
  if (!s_.csv.empty()) stagger::write_file(s_.csv, csv_of(run));
  if (!s_.trace.empty()) stagger::write_file(s_.trace, trace_of(run));
  if (!s_.chart.empty()) stagger::write_file(s_.chart, chart_of({{s_.sync, s_, run}}));
}

void Files::write(std::vector<Compared> const& runs) const {
  if (!s_.csv.empty()) stagger::write_file(s_.csv, curves_csv_of(runs));
  if (!s_.chart.empty()) stagger::write_file(s_.chart, chart_of(runs));
}

}  // namespace hetero
