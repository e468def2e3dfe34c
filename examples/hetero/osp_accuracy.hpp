// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   OSP's claims A1 to A7, for one task: accuracy, and steps and time to an accuracy.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/report/format.hpp>
#include <stagger/report/table.hpp>
#include <stagger/staleness/asynchronous.hpp>
#include <stagger/staleness/overlapped_synchronous.hpp>
#include <stagger/staleness/round_robin_synchronous.hpp>
#include <stagger/staleness/synchronous.hpp>

#include "claims.hpp"
#include "learning.hpp"

namespace hetero {

namespace osp = stagger::staleness::overlapped;

template <class Budget, class Prediction = osp::LocalGradient>
using Osp = stagger::staleness::OverlappedSynchronous<osp::ParameterGradientProduct,
                                                      osp::SplitLayer, Budget, Prediction>;
using NotPredicted = Osp<osp::AllLate, osp::NoPrediction>;
using Averaged = Osp<osp::AllLate, osp::MeanGradient>;
inline constexpr stagger::staleness::Synchronous bsp;
inline constexpr stagger::staleness::Asynchronous asp;
inline constexpr stagger::staleness::RoundRobinSynchronous r2sp;

/// How the runs of a task go.
struct AccuracyRuns {
  learning::Settings usual;
  double full_rate = 0;  ///< of A3 and A4, where a push of each worker may be a full step
  double edge_rate = 0;  ///< of A6, at which not every run learns
};

/// What each seed shows.
using Looks = std::vector<std::vector<learning::Look>>;

/// In the end, in points, mean of all seeds.
[[nodiscard]] inline double accuracy(Looks const& runs) {
  double sum = 0;
  for (auto const& looks : runs) sum += looks.back().accuracy;
  return sum / static_cast<double>(runs.size());
}
/// When runs come within two points of where others end, on a line between two looks; the mean of
/// all seeds, infinite if one of them never does.
/// @param of  steps or time_s
template <class Of>
[[nodiscard]] double until(Looks const& runs, Looks const& aims, Of learning::Look::* of) {
  double sum = 0;
  for (std::size_t n = 0; n < runs.size(); ++n) {
    double const aim = aims[n].back().accuracy - 2;
    learning::Look before;
    auto const at = std::find_if(runs[n].begin(), runs[n].end(), [&](learning::Look const& each) {
      if (each.accuracy < aim) before = each;
      return each.accuracy >= aim;
    });
    if (at == runs[n].end()) return HUGE_VAL;
    double const part = (aim - before.accuracy) / (at->accuracy - before.accuracy);
    sum += before.*of + part * ((*at).*of - before.*of);
  }
  return sum / static_cast<double>(runs.size());
}

/// A step of all workers, in computations.
[[nodiscard]] inline double step_time(Looks const& runs) {
  learning::Look const& last = runs.front().back();
  return last.time_s / last.steps / learning::Settings::computation_s;
}

/// Trains with each seed, and says so on standard error. A run whose gradients become infinite ends
/// with 0 points.
/// @param tasks       [seeds]
/// @param first_seed  of the runs, and those that follow
template <class Task, class Model>
[[nodiscard]] Looks learn_each(std::vector<Task> const& tasks, std::uint64_t first_seed,
                               char const* name, Model const& model, learning::Settings s) {
  Looks all;
  for (std::size_t n = 0; n < tasks.size(); ++n) {
    s.seed = first_seed + n;
    try {
      all.push_back(learning::learn(tasks[n], model, s));
    } catch (stagger::Error const& error) {
      if (error.code() != stagger::Errc::bad_data) throw;
      all.push_back({learning::Look{}});
    }
  }
  std::fprintf(stderr, "%s, rate %g, r = %g: done\n", name, s.rate, s.r);
  return all;
}

/// The claims of one task.
template <class Task> class AccuracyClaims {
 public:
  /// @param tasks, first_seed  as learn_each
  AccuracyClaims(std::vector<Task> const& tasks, std::uint64_t first_seed, AccuracyRuns runs)
      : tasks_(tasks), first_(first_seed), runs_(runs) {
    for (double const r : {0.5, 1.0, 2.0}) over_link(r);
    full_steps();
    auto const yes = [](bool all) { return all ? "yes" : "not for every r"; };
    claims_.add("A5", "soonest to the accuracy, before BSP and ASP", "yes", yes(soonest_),
                soonest_);
    claims_.add("A5", "likewise, tuned", "yes", yes(tuned_soonest_), tuned_soonest_);
    claims_.add("A5", "before R2SP on one link", "yes", yes(before_r2sp_), before_r2sp_);
    predictions();
  }

  /// Steps and times for several links.
  [[nodiscard]] std::string times() const { return times_.str(); }
  [[nodiscard]] Claims& claims() noexcept { return claims_; }

 private:
  static std::string fixed(double value, int digits = 1) {
    return std::isfinite(value) ? stagger::report::format_fixed(value, digits) : "not reached";
  }
  static std::string of_each(Looks const& runs) {
    std::string all;
    for (auto const& looks : runs) all += (all.empty() ? "" : ", ") + fixed(looks.back().accuracy);
    return all;
  }
  static std::string at_rate(double rate) {
    return "rate " + stagger::report::format_shortest(rate) + ", ";
  }
  /// As the server's optimizer counts steps.
  static learning::Settings by_push(learning::Settings s) {
    s.pushes_are_steps = true;
    return s;
  }
  /// With one link for both ways, as the paper compares them.
  static learning::Settings in_turn(learning::Settings s) {
    s.duplex = stagger::sim::Duplex::half;
    return by_push(s);
  }
  [[nodiscard]] Osp<osp::LossTuned> tuned(learning::Settings const& s) const {
    return {.budget = {.rate = s.link(tasks_.front().bytes()),
                       .computation_s = learning::Settings::computation_s,
                       .steps = tasks_.front().steps(s)}};
  }
  /// Runs that were made before are not repeated.
  template <class Model>
  [[nodiscard]] Looks run(char const* name, Model const& model, learning::Settings const& s) {
    auto const [known, fresh] = known_.try_emplace(stagger::text(name, ' ', s.rate, ' ', s.r));
    if (fresh) known->second = learn_each(tasks_, first_, name, model, s);
    return known->second;
  }

  void over_link(double r) {
    learning::Settings s = runs_.usual;
    s.r = r;
    Looks const in_step = run("BSP", bsp, s);
    Looks const at_once = run("ASP", asp, by_push(s));
    Looks const turns = run("R2SP", r2sp, in_turn(s));
    Looks const share = run("OSP", Osp<osp::ShareLate>{.budget = {std::min(0.8, 1 / r)}}, s);
    Looks const by_loss = run("OSP, tuned", tuned(s), s);
    auto const time_s = [&](Looks const& of) {
      return until(of, in_step, &learning::Look::time_s);
    };
    double const others_s = std::min(time_s(in_step), time_s(at_once));
    times_.add({fixed(r), fixed(step_time(in_step), 2), fixed(step_time(at_once), 2),
                fixed(step_time(turns), 2), fixed(step_time(share), 2),
                fixed(step_time(in_step) / step_time(share), 2), fixed(time_s(in_step), 0),
                fixed(time_s(at_once), 0), fixed(time_s(turns), 0), fixed(time_s(share), 0),
                fixed(time_s(by_loss), 0)});
    soonest_ = soonest_ && time_s(share) < others_s;
    tuned_soonest_ = tuned_soonest_ && time_s(by_loss) < others_s;
    before_r2sp_ = before_r2sp_ && time_s(share) < time_s(turns);
    if (r != 1) return;
    claims_.note("A1", "BSP: points", "-", fixed(accuracy(in_step)));
    auto const more = [&](Looks const& late, char const* which) {
      double const points = accuracy(late) - accuracy(in_step);
      claims_.add("A1", stagger::text(which, ": points more than BSP"), "alike", fixed(points),
                  points >= -1);
    };
    auto const steps = [&](Looks const& late, char const* which) {
      double const ratio = until(late, in_step, &learning::Look::steps) /
                           until(in_step, in_step, &learning::Look::steps);
      claims_.add("A2", stagger::text(which, ": iterations to the accuracy over BSP"), "alike",
                  fixed(ratio, 2), ratio <= 1.15);
    };
    more(by_loss, "OSP, tuned");
    more(share, "OSP, 0.8 late");
    steps(by_loss, "OSP, tuned");
    steps(share, "OSP, 0.8 late");
  }
  void full_steps() {
    learning::Settings s = runs_.usual;
    s.r = 1;
    s.rate = runs_.full_rate;
    double const in_step = accuracy(run("BSP", bsp, s));
    double const turns = accuracy(run("R2SP", r2sp, in_turn(s)));
    double const weighted = accuracy(run("ASP", asp, by_push(s)));
    s.full = true;
    double const full = accuracy(run("ASP, full steps", asp, by_push(s)));
    std::string const at = at_rate(s.rate);
    claims_.add("A3", at + "ASP, each push a full step: points more than BSP", "fewest",
                fixed(full - in_step), full < in_step - 2);
    claims_.note("A3", at + "ASP, pushes weighted by shares: likewise", "fewest",
                 fixed(weighted - in_step));
    claims_.add("A4", at + "R2SP: points more than BSP", "alike", fixed(turns - in_step),
                turns >= in_step - 1.5);
  }
  void predictions() {
    learning::Settings s = runs_.usual;
    s.rate = runs_.edge_rate;
    Looks const edge = run("OSP, all late", Osp<osp::AllLate>{}, s);
    Looks const none = run("OSP, all late, no prediction", NotPredicted{}, s);
    std::string const at = at_rate(s.rate);
    claims_.note("A6", at + "BSP: points of each seed", "-", of_each(run("BSP", bsp, s)));
    claims_.note("A6", at + "all late", "-", of_each(edge));
    claims_.add("A6", at + "all late, no prediction", "fewer", of_each(none),
                accuracy(none) < accuracy(edge) - 2);
    s = runs_.usual;
    double const local = accuracy(run("OSP, all late", Osp<osp::AllLate>{}, s));
    double const mean =
        accuracy(run("OSP, all late, EMA", Averaged{.prediction = {.alpha = 0.3}}, s));
    claims_.add("A7", "EMA: points more than LGP", "none", fixed(mean - local),
                std::fabs(mean - local) <= 0.5);
  }

  std::vector<Task> const& tasks_;
  std::uint64_t first_;
  AccuracyRuns runs_;
  std::map<std::string, Looks> known_{};
  stagger::report::TextTable times_{{"r", "BSP", "ASP", "R2SP", "OSP", "OSP over BSP",
                                     "to the accuracy: BSP", "ASP", "R2SP", "OSP", "OSP, tuned"}};
  Claims claims_{};
  bool soonest_ = true, tuned_soonest_ = true, before_r2sp_ = true;
};

}  // namespace hetero
