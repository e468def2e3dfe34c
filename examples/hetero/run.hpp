// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A run of workers: what happened, and what follows from it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <stagger/program/traffic.hpp>
#include <stagger/schedule/timeline.hpp>

#include "settings.hpp"

namespace hetero {

/// [stages] Actions with their times.
using Rows = std::vector<std::vector<stagger::schedule::Span>>;

/// What one worker did.
struct WorkerRun {
  std::string devices;                   ///< that its times are those of, or empty
  Rows rows;                             ///< of all its minibatches, seconds since the run began
  std::vector<double> transfers_s;       ///< [stages - 1] from each to the next; empty: no time
  std::vector<double> losses;            ///< [minibatches]
  std::size_t in_flight = 0;             ///< Nm of its stream; 0: it takes steps
  std::size_t distance = 0;              ///< D of its stream
  std::vector<std::uint64_t> staleness;  ///< as Trainer::staleness()
  std::array<stagger::TrafficCount, stagger::traffic_kinds> traffic{};  ///< by kind

  /// What other processes are told, in the times of this machine.
  auto fields() { return std::tie(rows, losses, in_flight, distance, staleness, traffic); }
  [[nodiscard]] auto fields() const {
    return std::tie(rows, losses, in_flight, distance, staleness, traffic);
  }
};

/// What all of them did.
struct Run {
  std::vector<WorkerRun> workers;
  double images = 1;                ///< in a minibatch, of what the times are those of
  double held_out = 0;              ///< loss on what no worker learns from, in the end
  std::vector<double> layer_bytes;  ///< of the layers that have parameters
};

/// How a worker spent its time, up to the end of its last minibatch.
struct Spent {
  double end_s = 0;      ///< of its last backward
  double waiting_s = 0;  ///< while a minibatch had come to a stage whose weights were not there
  double idle_s = 0;     ///< of this, with no stage at work
  int pushes = 0;        ///< its clock
};
[[nodiscard]] Spent spent(WorkerRun const& worker);

/// Its pushes, and the answers of the server.
[[nodiscard]] std::vector<stagger::schedule::Span> exchanges(WorkerRun const& worker);

/// Minibatches, or the images that each is taken for, in a second.
[[nodiscard]] double speed_of(Run const& run, WorkerRun const& worker, Spent const& time);

/// Of all workers together.
struct Totals {
  double per_s = 0;     ///< speed
  double end_s = 0;     ///< of the one that was last
  double worked_s = 0;  ///< of which:
  double waiting_s = 0;
  double idle_s = 0;
};
[[nodiscard]] Totals totals_of(Run const& run);

/// How the computation of steps hid the exchange of what was late in the steps before.
struct Hiding {
  int steps = 0;             ///< of all workers, in which values of the step before were late
  int waited = 0;            ///< of these: after the computation they were still not there
  double exchange_s = 0;     ///< mean of those, from the beginning of the step until they were
  double computation_s = 0;  ///< likewise, of all stages
};
/// @pre of workers that take steps
[[nodiscard]] Hiding hiding_of(Settings const& s, Run const& run);

/// A loss, and when it was there.
struct LossPoint {
  double time_s = 0;
  double loss = 0;
};
/// The mean loss over the settings' window, whenever a minibatch ends.
[[nodiscard]] std::vector<LossPoint> curve_of(Settings const& s, Run const& run);

/// The loss whose time is reported.
[[nodiscard]] double target_of(Settings const& s);

/// When it was reached, and how many minibatches of all workers had ended then.
struct Reached {
  double time_s = 0;
  std::size_t minibatches = 0;
};
[[nodiscard]] std::optional<Reached> reached(Settings const& s, Run const& run);

/// Trains.
/// @param progress  whether it is shown, on standard error
[[nodiscard]] Run run_gpt(Settings const& s, bool progress);
[[nodiscard]] Run run_vgg(Settings const& s, bool progress);
[[nodiscard]] inline Run run(Settings const& s, bool progress = true) {
  return s.model == "gpt" ? run_gpt(s, progress) : run_vgg(s, progress);
}

/// What became of one of several runs.
struct Outcome {
  Run run;
  std::string why;  ///< there is none
};
/// Several runs, in virtual time two at once; says on standard error when one has ended.
/// @param names  [runs] of them in messages
[[nodiscard]] std::vector<Outcome> run_all(std::vector<Settings> const& all,
                                           std::vector<std::string> const& names);

}  // namespace hetero
