// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A Google Benchmark program that ends with lines of a table: what was measured, what it
/// must be.
///
/// The benchmarks of a program run interleaved, repetition by repetition in random order: what
/// disturbs the machine disturbs all that are compared. A row reads their medians.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

namespace bench {

/// The middle one of some numbers; 0 of none.
[[nodiscard]] double median(std::vector<double> values);

/// `printf` into a string.
[[nodiscard, gnu::format(printf, 1, 2)]] std::string text(char const* format, ...);

/// Seconds since some fixed moment.
[[nodiscard]] double now_s();

/// Runs `work` to warm up, and then as the state says, timed one by one.
/// @return the mean of the timed runs, seconds
template <class Work> double time_each(benchmark::State& state, Work work, int warm_ups = 1) {
  for (int i = 0; i < warm_ups; ++i) work();
  double sum_s = 0;
  for ([[maybe_unused]] auto _ : state) {
    double const start_s = now_s();
    work();
    double const took_s = now_s() - start_s;
    state.SetIterationTime(took_s);
    sum_s += took_s;
  }
  return sum_s / static_cast<double>(state.iterations());
}

/// Names a benchmark whose repetitions run one iteration each, timed by itself.
template <class Function>
benchmark::internal::Benchmark* add(std::string const& name, int repetitions, Function function) {
  return benchmark::RegisterBenchmark(name.c_str(), std::move(function))
      ->Iterations(1)
      ->Repetitions(repetitions)
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond);
}

/// Medians over the repetitions of every benchmark that ran.
class Results {
 public:
  /// Thrown where a benchmark did not run, because a filter left it out. The row is left out as
  /// well.
  struct Missing {};

  [[nodiscard]] double time_s(std::string const& name) const { return of(name).time_s; }
  [[nodiscard]] double counter(std::string const& name, std::string const& counter) const;

 private:
  friend class Reporter;
  struct One {
    double time_s = 0;
    std::map<std::string, double> counters;
  };
  [[nodiscard]] One const& of(std::string const& name) const;
  std::map<std::string, One> all_;
};

/// How a row stands.
enum class Grade { passed, failed, shown };

/// One line of the table, filled in.
struct Line {
  std::string measured;
  std::string bound;  ///< empty: there is none
  Grade grade = Grade::shown;
};

/// One line of the table, as it is measured.
struct Row {
  std::string what;
  std::string benchmarks;  ///< regular expression of the benchmarks it reads
  std::function<Line(Results const&)> judge;
  int attempts = 3;  ///< measurements before it is called failed
};

/// Runs all benchmarks, those of a failed row again, and prints the rows; into the file that
/// STAGGER_BENCH_TABLE names, if it does.
/// @return the program's exit code; a failed row is no failure of the program
int run(int argc, char** argv, std::vector<Row> const& rows);

}  // namespace bench
