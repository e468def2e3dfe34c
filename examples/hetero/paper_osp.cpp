// SPDX-License-Identifier: Apache-2.0
#include "paper_osp.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <stagger/report/format.hpp>
#include <stagger/report/table.hpp>
#include <stagger/staleness/asynchronous.hpp>
#include <stagger/staleness/overlapped_synchronous.hpp>
#include <stagger/staleness/round_robin_synchronous.hpp>
#include <stagger/staleness/synchronous.hpp>

#include "teacher.hpp"

namespace hetero {

namespace {

namespace report = stagger::report;
namespace osp = stagger::staleness::overlapped;

template <class Budget, class Prediction = osp::LocalGradient>
using Osp = stagger::staleness::OverlappedSynchronous<osp::ParameterGradientProduct,
                                                      osp::SplitLayer, Budget, Prediction>;
using NotPredicted = Osp<osp::AllLate, osp::NoPrediction>;
using Averaged = Osp<osp::AllLate, osp::MeanGradient>;
constexpr stagger::staleness::Synchronous bsp;
constexpr stagger::staleness::Asynchronous asp;
constexpr stagger::staleness::RoundRobinSynchronous r2sp;

std::string fixed(double value, int digits = 1) { return report::format_fixed(value, digits); }

teacher::Settings rate_of(double rate) {
  return {.epochs = 12, .halving_epochs = 6, .looks = 4, .rate = rate};
}
/// As the server's optimizer counts steps, and on the link that workers in turn have for themselves.
teacher::Settings by_push(teacher::Settings s, bool in_turn) {
  s.pushes_are_steps = true;
  if (in_turn) {
    s.sharing = stagger::sim::Sharing::one_at_a_time;
    s.duplex = stagger::sim::Duplex::half;
  }
  return s;
}
Osp<osp::ShareLate> hiding(double r) { return {.budget = {std::min(0.8, 1 / r)}}; }

/// What each seed shows.
using Runs = std::vector<std::vector<teacher::Look>>;

class Trials {
 public:
  explicit Trials(Settings const& s) : first_(static_cast<std::uint64_t>(s.seed)) {
    for (std::int64_t n = 0; n < s.seeds; ++n)
      tasks_.emplace_back(first_ + static_cast<std::uint64_t>(n), 4096, 4000);
  }
  template <class Model>
  Runs operator()(char const* name, Model const& model, teacher::Settings s) {
    Runs all;
    for (std::size_t n = 0; n < tasks_.size(); ++n) {
      s.seed = first_ + n;
      all.push_back(teacher::learn(tasks_[n], model, s));
    }
    std::fprintf(stderr, "%s, rate %g, r = %g: done\n", name, s.rate, s.r);
    return all;
  }
  [[nodiscard]] int steps(teacher::Settings const& s) const { return s.steps(tasks_.front()); }

 private:
  std::uint64_t first_;
  std::vector<teacher::Task> tasks_{};
};

/// In the end, in points, mean of all seeds.
double accuracy(Runs const& runs) {
  double sum = 0;
  for (auto const& looks : runs) sum += looks.back().accuracy;
  return sum / static_cast<double>(runs.size());
}
/// The mean over seeds of what is looked at once a run has come within two points of another's end.
template <class Of> double until(Runs const& runs, Runs const& aim, Of of) {
  double sum = 0;
  for (std::size_t n = 0; n < runs.size(); ++n) {
    auto const at = std::find_if(runs[n].begin(), runs[n].end(), [&](teacher::Look const& each) {
      return each.accuracy >= aim[n].back().accuracy - 2;
    });
    sum += at == runs[n].end() ? HUGE_VAL : static_cast<double>(of(*at));
  }
  return sum / static_cast<double>(runs.size());
}
double seconds(Runs const& runs, Runs const& aim) {
  return until(runs, aim, [](teacher::Look const& look) { return look.time_s; });
}
/// Of a step of all workers, in computations.
double step_time(Runs const& runs) {
  teacher::Look const& last = runs.front().back();
  return last.time_s / last.steps / teacher::Settings::computation_s;
}

}  // namespace

std::string claims_of_osp(Settings const& s) {
  Trials trials(s);
  report::TextTable times({"r", "BSP", "ASP", "R2SP", "OSP", "OSP over BSP", "to the accuracy: BSP",
                           "ASP", "R2SP", "OSP", "OSP, tuned"});
  bool first = true;
  bool before_r2sp = true;
  double gain = 0;
  for (double const r : {0.5, 1.0, 2.0}) {
    teacher::Settings at = rate_of(0.6);
    at.r = r;
    osp::LossTuned const tuned{.rate = at.link(),
                               .computation_s = teacher::Settings::computation_s,
                               .steps = trials.steps(at)};
    Runs const of_bsp = trials("BSP", bsp, at);
    Runs const of_asp = trials("ASP", asp, by_push(at, false));
    Runs const of_r2sp = trials("R2SP", r2sp, by_push(at, true));
    Runs const late = trials("OSP", hiding(r), at);
    Runs const loss_tuned = trials("OSP, tuned", Osp<osp::LossTuned>{.budget = tuned}, at);
    double const own_s = seconds(late, of_bsp);
    times.add({fixed(r), fixed(step_time(of_bsp), 2), fixed(step_time(of_asp), 2),
               fixed(step_time(of_r2sp), 2), fixed(step_time(late), 2),
               fixed(step_time(of_bsp) / step_time(late), 2), fixed(seconds(of_bsp, of_bsp), 0),
               fixed(seconds(of_asp, of_bsp), 0), fixed(seconds(of_r2sp, of_bsp), 0),
               fixed(own_s, 0), fixed(seconds(loss_tuned, of_bsp), 0)});
    gain = std::max(gain, step_time(of_bsp) / step_time(late));
    first = first && own_s < std::min(seconds(of_bsp, of_bsp), seconds(of_asp, of_bsp));
    before_r2sp = before_r2sp && own_s < seconds(of_r2sp, of_bsp);
  }

  report::TextTable claims({"", "claim", "published", "here", "reproduced"});
  auto const add = [&](char const* number, char const* what, char const* published,
                       std::string const& here, bool good) {
    claims.add({number, what, published, here, good ? "yes" : "no"});
  };
  add("T1", "throughput over BSP", "up to 1.5", fixed(gain, 2), gain >= 1.2);
  teacher::Settings at = rate_of(0.6);
  at.r = 1;
  Runs const in_step = trials("BSP", bsp, at);
  Runs const late =
      trials("OSP, tuned",
             Osp<osp::LossTuned>{.budget = {.rate = at.link(),
                                            .computation_s = teacher::Settings::computation_s,
                                            .steps = trials.steps(at)}},
             at);
  double const more = accuracy(late) - accuracy(in_step);
  add("A1", "points more than BSP", "alike", fixed(more), more >= -1);
  auto const steps = [](teacher::Look const& look) { return look.steps; };
  double const iterations = until(late, in_step, steps) / until(in_step, in_step, steps);
  add("A2", "iterations to the accuracy over BSP", "alike", fixed(iterations, 2),
      iterations <= 1.15);
  at = rate_of(0.3);
  double const slow = accuracy(trials("BSP", bsp, at));
  double const turns = accuracy(trials("R2SP", r2sp, by_push(at, false)));
  at.r = 1;
  at.full = true;
  double const full = accuracy(trials("ASP, full steps", asp, by_push(at, false)));
  add("A3", "ASP, each push a full step: points more than BSP", "lowest", fixed(full - slow),
      full < slow - 2);
  add("A4", "R2SP: points more than BSP", "alike", fixed(turns - slow), turns >= slow - 1.5);
  add("A5", "soonest to the accuracy, before BSP and ASP", "yes", first ? "yes" : "no", first);
  add("A5", "likewise before R2SP", "yes", before_r2sp ? "yes" : "not for every r", before_r2sp);
  double const edge = accuracy(trials("OSP, all late", Osp<osp::AllLate>{}, rate_of(1.5)));
  double const none = accuracy(trials("likewise, no prediction", NotPredicted{}, rate_of(1.5)));
  add("A6", "rate 1.5, all late: points more than without prediction", "needed", fixed(edge - none),
      edge > none);
  double const local = accuracy(trials("OSP, all late", Osp<osp::AllLate>{}, rate_of(0.6)));
  double const mean =
      accuracy(trials("likewise, EMA", Averaged{.prediction = {.alpha = 0.3}}, rate_of(0.6)));
  add("A7", "EMA: points more than LGP", "none", fixed(mean - local),
      std::fabs(mean - local) <= 0.5);
  at = rate_of(0.6);
  at.kept = 0.01;
  double const dropped = accuracy(in_step) - accuracy(trials("BSP, 1 % of gradients", bsp, at));
  add("O4", "1 % of gradients pushed, the rest dropped: points less", "up to 20", fixed(dropped),
      dropped > 0);
  return "A step in computations, and seconds to BSP's accuracy less two points:\n" + times.str() +
         "\n" + claims.str();
}

}  // namespace hetero
