// SPDX-License-Identifier: Apache-2.0
#include <stagger/staleness/overlapped_synchronous.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <stagger/staleness/asynchronous.hpp>
#include <stagger/staleness/round_robin_synchronous.hpp>
#include <stagger/staleness/synchronous.hpp>

#include "full.hpp"
#include "sanitized.hpp"
#include "teacher.hpp"

namespace overlapped_accuracy_claims_test {

// Under a sanitizer they would take minutes, and what runs here is watched in other tests.
#ifndef TEST_SANITIZED

namespace sg = stagger;
namespace osp = sg::staleness::overlapped;

namespace {

constexpr int seeds = 5;  // fewer in a sample, where the claim is clear from them

template <class Budget, class Prediction = osp::LocalGradient>
using Osp = sg::staleness::OverlappedSynchronous<osp::ParameterGradientProduct, osp::SplitLayer,
                                                 Budget, Prediction>;
using AllLate = Osp<osp::AllLate>;

/// 20 epochs of 8192 samples where all cases are asked for; a sample has less of both.
learning::Settings settings(double rate) {
  int const epochs = full() ? 20 : 8;
  return {.epochs = epochs, .halving_epochs = epochs / 2, .rate = rate};
}
teacher::Task const& task(std::uint64_t seed) {
  static std::vector<teacher::Task> const all = [] {
    std::vector<teacher::Task> made;
    for (std::uint64_t each = 1; each <= seeds; ++each)
      made.emplace_back(each, full() ? 8192 : 4096, 4000);
    return made;
  }();
  return all[seed - 1];
}
int at_least(int few) { return full() ? seeds : few; }

/// What a run of each seed shows.
template <class Model>
std::vector<std::vector<learning::Look>> runs(Model const& model, learning::Settings s,
                                              int count = seeds) {
  std::vector<std::vector<learning::Look>> all;
  for (int seed = 1; seed <= count; ++seed) {
    s.seed = static_cast<std::uint64_t>(seed);
    all.push_back(learning::learn(task(s.seed), model, s));
  }
  return all;
}
/// In the end, in points, mean of all seeds.
double accuracy(std::vector<std::vector<learning::Look>> const& runs) {
  double sum = 0;
  for (auto const& looks : runs) sum += looks.back().accuracy;
  return sum / static_cast<double>(runs.size());
}
template <class Model> double accuracy(Model const& model, learning::Settings const& s) {
  return accuracy(runs(model, s, at_least(3)));
}

Osp<osp::LossTuned> tuned(learning::Settings const& s) {
  return {.budget = {.rate = s.link(teacher::Task::bytes()),
                     .computation_s = learning::Settings::computation_s,
                     .steps = task(1).steps(s)}};
}
constexpr sg::staleness::Synchronous synchronous;

/// The first look at an accuracy or more; the last one if there is none.
learning::Look const& reaching(std::vector<learning::Look> const& looks, double accuracy) {
  auto const at = std::find_if(looks.begin(), looks.end() - 1, [&](learning::Look const& each) {
    return each.accuracy >= accuracy;
  });
  return *at;
}

}  // namespace

TEST_CASE(
    "staleness/OverlappedSynchronous: O A1, A2: as accurate as in step, in about as many "
    "iterations",
    "[staleness][papers]") {
  learning::Settings s = settings(0.6);
  s.r = 1;
  s.looks = 4;
  auto const in_step = runs(synchronous, s);
  auto const late = runs(tuned(s), s);
  CHECK(accuracy(late) >= accuracy(in_step) - 1);
  double steps = 0, steps_in_step = 0;
  for (std::size_t i = 0; i < seeds; ++i) {
    double const target = in_step[i].back().accuracy - 1;
    steps += reaching(late[i], target).steps;
    steps_in_step += reaching(in_step[i], target).steps;
  }
  CHECK(steps <= 1.15 * steps_in_step);
}

TEST_CASE(
    "staleness/OverlappedSynchronous: O A3, A4: without order it is less accurate, in turn not",
    "[staleness][papers]") {
  learning::Settings s = settings(0.3);
  double const in_step = accuracy(synchronous, s);
  s.r = 1;
  s.pushes_are_steps = true;
  CHECK(accuracy(sg::staleness::RoundRobinSynchronous{}, s) >= in_step - 1.5);
  // It is by how far each push moves the weights, not by their age.
  CHECK(accuracy(sg::staleness::Asynchronous{}, s) >= in_step - 1.5);
  s.full = true;
  CHECK(accuracy(sg::staleness::Asynchronous{}, s) < in_step - 2);
}

TEST_CASE(
    "staleness/OverlappedSynchronous: O A5: it is as accurate as in step after the least time",
    "[staleness][papers]") {
  int const count = at_least(1);
  for (double const r : {0.5, 1.0, 2.0}) {
    CAPTURE(r);
    learning::Settings s = settings(0.6);
    s.r = r;
    s.looks = full() ? 8 : 2;
    auto const in_step = runs(synchronous, s, count);
    auto const seconds = [&](auto const& of) {
      double sum = 0;
      for (std::size_t i = 0; i < of.size(); ++i) {
        auto const& at = reaching(of[i], in_step[i].back().accuracy - 1);
        CHECK(at.accuracy >= in_step[i].back().accuracy - 1);
        sum += at.time_s;
      }
      return sum;
    };
    double const late_s =
        seconds(runs(Osp<osp::ShareLate>{.budget = {std::min(0.8, 1 / r)}}, s, count));
    CHECK(late_s < seconds(in_step));
    s.pushes_are_steps = true;
    CHECK(late_s < seconds(runs(sg::staleness::Asynchronous{}, s, count)));
    s.duplex = sg::sim::Duplex::half;
    if (r >= 1)  // a faster link is not what workers in turn wait for
      CHECK(late_s < seconds(runs(sg::staleness::RoundRobinSynchronous{}, s, count)));
  }
}

TEST_CASE("staleness/OverlappedSynchronous: O A6: steps that are large need a prediction",
          "[staleness][papers]") {
  for (double const rate : {1.5, 1.75}) {
    double const predicted = accuracy(AllLate{}, settings(rate));
    double const not_predicted = accuracy(Osp<osp::AllLate, osp::NoPrediction>{}, settings(rate));
    CAPTURE(rate, predicted, not_predicted);
    CHECK(predicted >= not_predicted + 2);
    if (!full()) break;
  }
}

TEST_CASE("staleness/OverlappedSynchronous: O A7: a mean of past changes is no better prediction",
          "[staleness][papers]") {
  double const local = accuracy(AllLate{}, settings(0.6));
  for (double const alpha : {0.3, 0.6})
    CHECK(std::abs(accuracy(Osp<osp::AllLate, osp::MeanGradient>{.prediction = {.alpha = alpha}},
                            settings(0.6)) -
                   local) <= 0.5);
}

TEST_CASE("staleness/OverlappedSynchronous: O O4: gradients that are dropped cost accuracy",
          "[staleness][papers]") {
  learning::Settings s = settings(0.6);
  double const all = accuracy(synchronous, s);
  s.kept = 0.01;
  double const dropped = accuracy(synchronous, s);
  CAPTURE(all, dropped);
  CHECK(dropped < all - 2);
}
#endif

}  // namespace overlapped_accuracy_claims_test
