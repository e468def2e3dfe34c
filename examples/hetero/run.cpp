// SPDX-License-Identifier: Apache-2.0
#include "run.hpp"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>

#include <stagger/schedule/intervals.hpp>

namespace hetero {

namespace {

using stagger::schedule::covered_s;
using stagger::schedule::Interval;
using stagger::schedule::joined;
using stagger::schedule::Kind;
using stagger::schedule::Span;

/// When some stage was at work.
std::vector<Interval> busy(Rows const& rows) {
  std::vector<Interval> all;
  for (auto const& row : rows)
    for (Span const& span : row)
      if (stagger::schedule::is_compute(span.action.kind))
        all.emplace_back(span.start_s, span.end_s);
  return joined(std::move(all));
}

/// Of a worker that takes steps: at each stage, from its push until the answer is there.
std::vector<Interval> waits_of_steps(WorkerRun const& worker) {
  std::vector<Interval> all;
  for (auto const& row : worker.rows) {
    double pushed_s = 0;
    for (Span const& span : row) {
      if (span.action.kind == Kind::push) pushed_s = span.start_s;
      if (span.action.kind == Kind::pull) all.emplace_back(pushed_s, span.end_s);
    }
  }
  return all;
}

/// Of a worker that streams: at each stage, from when the first minibatch that needs a further wave
/// could have begun until that was there. The minibatch could have when the stage before had passed
/// it on; at the first stage, when there was room for it in the pipeline. A pull of 0 waves is waited
/// for by none.
std::vector<Interval> waits_of_stream(WorkerRun const& worker) {
  std::vector<Interval> all;
  std::size_t const count = worker.losses.size();
  std::vector<double> ready_s(count);
  auto const& rows = worker.rows;
  for (Span const& span : rows.front()) {
    std::size_t const next = static_cast<std::size_t>(span.action.microbatch) + worker.in_flight;
    if (span.action.kind == Kind::backward && next < count) ready_s[next] = span.end_s;
  }
  for (std::size_t stage = 0; stage < rows.size(); ++stage) {
    for (Span const& span : rows[stage]) {
      if (span.action.kind != Kind::pull || span.action.microbatch == 0) continue;
      auto const waves = static_cast<std::size_t>(span.action.microbatch);
      std::size_t const m = (waves + 1 + worker.distance) * worker.in_flight - 1;
      if (m < count && span.end_s > ready_s[m]) all.emplace_back(ready_s[m], span.end_s);
    }
    for (Span const& span : rows[stage])
      if (span.action.kind == Kind::forward)
        ready_s[static_cast<std::size_t>(span.action.microbatch)] =
            span.end_s + (stage < worker.transfers_s.size() ? worker.transfers_s[stage] : 0);
  }
  return all;
}

/// [steps] From the first forward to the last backward of each step, of all stages.
std::vector<Interval> computations_of(Settings const& s, WorkerRun const& worker) {
  std::vector<Interval> all(static_cast<std::size_t>(s.steps),
                            {std::numeric_limits<double>::infinity(), 0});
  for (auto const& row : worker.rows)
    for (Span const& span : row) {
      if (!stagger::schedule::is_compute(span.action.kind)) continue;
      auto& [start_s, end_s] = all[static_cast<std::size_t>(span.action.microbatch / s.in_flight)];
      start_s = std::min(start_s, span.start_s);
      end_s = std::max(end_s, span.end_s);
    }
  return all;
}

/// [steps] When the last stage had the late values of the step before, if that was after all had been
/// computed; else 0. A stage pushes as soon as both is so. Of the first step nothing is late.
std::vector<double> waits_for_late(Settings const& s, WorkerRun const& worker,
                                   std::vector<Interval> const& computations) {
  std::vector<double> all(computations.size());
  // On threads, one runs all stages: what it does for another is no wait.
  std::vector<Interval> work;
  if (!s.timed())
    for (Span const& span : exchanges(worker)) work.emplace_back(span.start_s, span.end_s);
  work = joined(std::move(work));
  for (auto const& row : worker.rows) {
    std::vector<double> pushed_s(all.size());
    for (Span const& span : row)  // what is late of the step before begins earlier
      if (span.action.kind == Kind::push) {
        double& last_s = pushed_s[static_cast<std::size_t>(span.action.microbatch)];
        last_s = std::max(last_s, span.start_s);
      }
    for (std::size_t step = 2; step < all.size(); ++step) {
      auto const [start_s, end_s] = computations[step];
      double const waited_s = pushed_s[step] - end_s - covered_s({end_s, pushed_s[step]}, work);
      if (waited_s > (end_s - start_s) / 100) all[step] = std::max(all[step], pushed_s[step]);
    }
  }
  return all;
}

/// Minibatches over which the loss is a mean.
std::size_t window_of(Settings const& s) {
  if (s.window > 0) return static_cast<std::size_t>(s.window);
  return static_cast<std::size_t>(s.workers * s.in_flight * std::min<std::int64_t>(s.steps, 2));
}

}  // namespace

std::vector<Span> exchanges(WorkerRun const& worker) {
  std::vector<Span> all;
  for (auto const& row : worker.rows)
    for (Span const& span : row)
      if (!stagger::schedule::is_compute(span.action.kind)) all.push_back(span);
  return all;
}

Spent spent(WorkerRun const& worker) {
  Spent result;
  auto const work = busy(worker.rows);
  if (!work.empty()) result.end_s = work.back().second;
  auto const waits = worker.in_flight != 0 ? waits_of_stream(worker) : waits_of_steps(worker);
  for (auto const& [start_s, stop_s] : joined(waits)) {
    if (start_s >= result.end_s) continue;  // no minibatch needs it any more
    result.waiting_s += stop_s - start_s;
    result.idle_s += stop_s - start_s - covered_s({start_s, stop_s}, work);
  }
  for (Span const& span : worker.rows.front())
    if (span.action.kind == Kind::push) ++result.pushes;
  return result;
}

double speed_of(Run const& run, WorkerRun const& worker, Spent const& time) {
  return static_cast<double>(worker.losses.size()) * run.images / time.end_s;
}

Totals totals_of(Run const& run) {
  Totals all;
  for (WorkerRun const& worker : run.workers) {
    Spent const time = spent(worker);
    all.per_s += speed_of(run, worker, time);
    all.end_s = std::max(all.end_s, time.end_s);
    all.worked_s += time.end_s;
    all.waiting_s += time.waiting_s;
    all.idle_s += time.idle_s;
  }
  return all;
}

Hiding hiding_of(Settings const& s, Run const& run) {
  Hiding all;
  for (WorkerRun const& worker : run.workers) {
    for (std::size_t k = 1; k < worker.staleness.size(); ++k)  // weights lack what is late
      all.steps += static_cast<int>(worker.staleness[k]);
    auto const computations = computations_of(s, worker);
    auto const here_s = waits_for_late(s, worker, computations);
    for (std::size_t step = 0; step < computations.size(); ++step) {
      if (here_s[step] == 0) continue;
      auto const [start_s, end_s] = computations[step];
      ++all.waited;
      all.exchange_s += here_s[step] - start_s;
      all.computation_s += end_s - start_s;
    }
  }
  if (all.waited != 0) {
    all.exchange_s /= all.waited;
    all.computation_s /= all.waited;
  }
  return all;
}

std::vector<LossPoint> curve_of(Settings const& s, Run const& run) {
  std::vector<LossPoint> all;
  for (WorkerRun const& worker : run.workers)
    for (Span const& span : worker.rows.back())  // where the loss is computed
      if (span.action.kind == Kind::backward)
        all.push_back(
            {span.end_s, worker.losses[static_cast<std::size_t>(span.action.microbatch)]});
  std::sort(all.begin(), all.end(), [](LossPoint const& a, LossPoint const& b) {
    return std::pair(a.time_s, a.loss) < std::pair(b.time_s, b.loss);
  });
  std::size_t const window = window_of(s);
  std::vector<LossPoint> curve;
  double sum = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    sum += all[i].loss;
    if (i >= window) sum -= all[i - window].loss;
    if (i + 1 >= window) curve.push_back({all[i].time_s, sum / static_cast<double>(window)});
  }
  return curve;
}

double target_of(Settings const& s) {
  if (s.target > 0) return s.target;
  return s.model == "vgg" ? 1.0 : 3.0;
}

std::optional<Reached> reached(Settings const& s, Run const& run) {
  auto const curve = curve_of(s, run);
  for (std::size_t i = 0; i < curve.size(); ++i)
    if (curve[i].loss <= target_of(s)) return Reached{curve[i].time_s, i + window_of(s)};
  return std::nullopt;
}

std::vector<Outcome> run_all(std::vector<Settings> const& all,
                             std::vector<std::string> const& names) {
  std::vector<Outcome> outcomes(all.size());
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  auto const work = [&] {
    for (std::size_t i = next++; i < all.size(); i = next++) {
      try {
        outcomes[i].run = run(all[i], false);
      } catch (std::exception const& error) {
        outcomes[i].why = error.what();
      }
      std::lock_guard const lock(mutex);
      std::fprintf(stderr, "%s: %s\n", names[i].c_str(),
                   outcomes[i].why.empty() ? "done" : outcomes[i].why.c_str());
    }
  };
  std::thread second;
  bool const timed = std::all_of(all.begin(), all.end(), [](auto const& s) { return s.timed(); });
  if (timed && all.size() > 1 && std::thread::hardware_concurrency() > 1)
    second = std::thread(work);
  work();
  if (second.joinable()) second.join();
  return outcomes;
}

}  // namespace hetero
