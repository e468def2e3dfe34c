// SPDX-License-Identifier: Apache-2.0
/// @file   Time to generate, verify, lower and evaluate a table, to check its program, and to search
///         for a table.

#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <stagger/program/check_program.hpp>
#include <stagger/program/lay_out.hpp>
#include <stagger/schedule/auto.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/schedule/proof/evaluate.hpp>
#include <stagger/schedule/proof/lower.hpp>
#include <stagger/schedule/proof/verify.hpp>

#include "support/rows.hpp"

namespace {

using namespace stagger;
using namespace stagger::schedule;

constexpr Shape large{64, 1024};
double const actions = 2.0 * large.ranks * large.microbatches;
constexpr int repetitions = 15;

std::string const all = "schedule/generate, verify, lower, evaluate";
std::string const check = "schedule/check the program";
std::string const evaluation = "schedule/evaluate";
std::string const evaluation_lowered = "schedule/evaluate with messages";

template <class Work> void add(std::string const& name, Work work) {
  bench::add(name, repetitions, [work](benchmark::State& state) { bench::time_each(state, work); });
}

std::string name_of(Shape shape) {
  return "schedule/auto " + std::to_string(shape.ranks) + "x" + std::to_string(shape.microbatches);
}

/// Stages that differ by up to a fifth, so that the search does not reach the bound immediately.
Auto searched(Shape shape) {
  std::mt19937 random(1);
  auto const about_one = [&] { return 0.8 + 0.4 * static_cast<double>(random() % 1000) / 1000; };
  Auto policy;
  for (int s = 0; s < shape.ranks; ++s) {
    policy.costs.stages.push_back({.forward_s = about_one(),
                                   .backward_input_s = about_one(),
                                   .backward_weight_s = about_one(),
                                   .transfer_s = 0.05});
  }
  policy.limits.in_flight = 2 * shape.ranks;
  return policy;
}

void add_auto(Shape shape) {
  Auto const policy = searched(shape);
  add(name_of(shape), [=] { benchmark::DoNotOptimize(policy.search(shape).makespan_s); });
}

bench::Row at_most(std::string const& what, std::string const& name, double bound_s,
                   std::string const& more = "") {
  return {what, name, [=](bench::Results const& results) {
            double const took_s = results.time_s(name);
            return bench::Line{bench::text("%.2f ms%s", took_s * 1e3, more.c_str()),
                               bench::text("at most %g ms", bound_s * 1e3),
                               took_s <= bound_s ? bench::Grade::passed : bench::Grade::failed};
          }};
}

bench::Row at_least(std::string const& what, std::string const& name, double bound_per_s) {
  return {what, name, [=](bench::Results const& results) {
            double const per_s = actions / results.time_s(name);
            return bench::Line{bench::text("%.1f million actions/s", per_s * 1e-6),
                               bound_per_s > 0
                                   ? bench::text("at least %g million/s", bound_per_s * 1e-6)
                                   : std::string(),
                               bound_per_s == 0       ? bench::Grade::shown
                               : per_s >= bound_per_s ? bench::Grade::passed
                                                      : bench::Grade::failed};
          }};
}

std::string gap(Shape shape) {
  return bench::text(", %.2f %% above the bound", searched(shape).search(shape).gap() * 100);
}

}  // namespace

int main(int argc, char** argv) {
  Table const table = OneFOneB{}.table(large);
  Table const lowered = lower(table);
  Program const program = lay_out(table);
  add(all, [] {
    Table const t = OneFOneB{}.table(large);
    benchmark::DoNotOptimize(verify(t));
    benchmark::DoNotOptimize(lower(t).actions.data());
    benchmark::DoNotOptimize(evaluate(t).makespan_s);
  });
  add("schedule/generate",
      [] { benchmark::DoNotOptimize(OneFOneB{}.table(large).actions.data()); });
  add("schedule/verify", [&] { benchmark::DoNotOptimize(verify(table)); });
  add("schedule/lower", [&] { benchmark::DoNotOptimize(lower(table).actions.data()); });
  add(check, [&] { require_sound(program, table); });
  add("schedule/verify with messages", [&] { benchmark::DoNotOptimize(verify(lowered)); });
  add(evaluation, [&] { benchmark::DoNotOptimize(evaluate(table).makespan_s); });
  add(evaluation_lowered, [&] { benchmark::DoNotOptimize(evaluate(lowered).makespan_s); });
  Shape const small{8, 24}, wide{64, 256};
  add_auto(small);
  add_auto(wide);
  return bench::run(argc, argv,
                    {at_most("generate, verify, lower and evaluate 1F1B, P=64, M=1024", all, 20e-3),
                     at_most("check the program of 1F1B, P=64, M=1024", check, 30e-3),
                     at_least("evaluate alone", evaluation, 20e6),
                     at_least("evaluate with messages, per compute action", evaluation_lowered, 0),
                     at_most("auto, P=8, M=24", name_of(small), 1e-3, gap(small)),
                     at_most("auto, P=64, M=256", name_of(wide), 50e-3, gap(wide))});
}
