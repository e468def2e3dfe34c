// SPDX-License-Identifier: Apache-2.0
#include "output.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/report/format.hpp>
#include <stagger/report/table.hpp>

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
  return s.model == "vgg" ? 1.0 : 2.5;
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

}  // namespace hetero
