// SPDX-License-Identifier: Apache-2.0
#include "output.hpp"

#include <algorithm>
#include <cstddef>
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

/// Two pushes of every worker.
std::vector<LossPoint> curve_of(Settings const& s, Run const& run) {
  auto const all = s.workers * s.in_flight * std::min<std::int64_t>(s.steps, 2);
  return loss_curve(run, static_cast<std::size_t>(all));
}

}  // namespace

double target_of(Settings const& s) {
  if (s.target > 0) return s.target;
  return s.model == "vgg" ? 1.0 : 3.0;
}

std::string table_of(Settings const& s, Run const& run) {
  bool const devices = !run.workers.front().devices.empty();
  std::vector<std::string> header{"worker"};
  if (devices) header.push_back("GPUs");
  for (char const* const name : {"images/s", "waiting", "idle while waiting", "clock", "last loss"})
    header.push_back(name);
  if (s.model == "gpt" && !devices) header[1] = "sequences/s";
  report::TextTable table(header);
  double total = 0;
  double end_s = 0;
  for (std::size_t n = 0; n < run.workers.size(); ++n) {
    WorkerRun const& worker = run.workers[n];
    Spent const time = spent(worker);
    double const speed = static_cast<double>(worker.losses.size()) * run.images / time.end_s;
    total += speed;
    end_s = std::max(end_s, time.end_s);
    std::vector<std::string> row{std::to_string(n)};
    if (devices) row.push_back(worker.devices);
    row.insert(row.end(),
               {report::format_fixed(speed, 1), report::format_percent(time.waiting_s / time.end_s),
                report::format_percent(time.idle_s / time.end_s), std::to_string(time.pushes),
                report::format_fixed(worker.losses.back(), 3)});
    table.add(row);
  }
  std::string out = table.str();
  auto const curve = curve_of(s, run);
  report::TextTable losses({"time", "loss"});
  std::size_t const rows = std::min<std::size_t>(curve.size(), 10);
  for (std::size_t i = 0; i < rows; ++i) {
    LossPoint const& point = curve[rows == 1 ? 0 : i * (curve.size() - 1) / (rows - 1)];
    losses.add({report::format_seconds(point.time_s), report::format_fixed(point.loss, 3)});
  }
  out.append("\n").append(losses.str());
  auto const when = reached_s(curve, target_of(s));
  out +=
      stagger::text("\n", report::format_fixed(total, 1), " ", header[devices ? 2 : 1], " in ",
                    report::format_seconds(end_s), "; loss ", report::format_fixed(target_of(s), 2),
                    when ? " after " + report::format_seconds(*when) : std::string(" not reached"),
                    "; held-out loss ", report::format_fixed(run.held_out, 3), "\n");
  return out;
}

std::string csv_of(Run const& run) {
  std::string out = "worker,minibatch,began_s,ended_s,loss\n";
  for (std::size_t n = 0; n < run.workers.size(); ++n) {
    WorkerRun const& worker = run.workers[n];
    std::vector<double> began_s(worker.losses.size()), ended_s(worker.losses.size());
    for (auto const& span : worker.timeline.rows.front()) {
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
  stagger::schedule::Timeline server;  // a row for each worker
  for (std::size_t n = 0; n < run.workers.size(); ++n) {
    WorkerRun const& worker = run.workers[n];
    names.push_back(
        stagger::text("worker ", n, worker.devices.empty() ? "" : " on ", worker.devices));
    server.rows.push_back(exchanges(worker));
  }
  names.emplace_back("server, with a rank for each worker");
  std::vector<report::TraceGroup> groups;
  for (std::size_t n = 0; n < run.workers.size(); ++n)
    groups.push_back({names[n], {&run.workers[n].timeline, 1}});
  groups.push_back({names.back(), {&server, 1}});
  return report::perfetto(groups);
}

std::string chart_of(Settings const& s, Run const& run) {
  std::vector<report::ChartPoint> points;
  for (LossPoint const& point : curve_of(s, run)) points.push_back({point.time_s, point.loss});
  std::vector<report::ChartLine> const lines{{"loss", points}};
  std::string const title = s.model + ", " + s.sync;
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
  if (!s_.chart.empty()) stagger::write_file(s_.chart, chart_of(s_, run));
}

}  // namespace hetero
