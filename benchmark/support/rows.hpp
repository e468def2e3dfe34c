// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A Google Benchmark program that ends with rows of a table: measurements and their
/// targets.
///
/// The repetitions of all benchmarks of a program run in random order, so that disturbances of the
/// machine affect all of them alike. A row compares their medians.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

namespace bench {

/// The median of some numbers; 0 if there are none.
[[nodiscard]] double median(std::vector<double> values);

/// `printf` into a string.
[[nodiscard, gnu::format(printf, 1, 2)]] std::string text(char const* format, ...);

/// Seconds since a fixed point in time.
[[nodiscard]] double now_s();

/// Runs `work` to warm up, and then as often as the state asks, timing each run.
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

/// Registers a benchmark whose repetitions have one iteration each, which it times itself.
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
  /// Thrown if a filter excluded a benchmark; the row is then omitted.
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

/// Whether a row meets its target.
enum class Grade { passed, failed, shown };

/// A row of the table with its measurements.
struct Line {
  std::string measured;
  std::string bound;  ///< the target; empty: none
  Grade grade = Grade::shown;
};

/// A row of the table, and how it is measured.
struct Row {
  std::string what;
  std::string benchmarks;  ///< regular expression that selects its benchmarks
  std::function<Line(Results const&)> judge;
};

/// Runs all benchmarks, repeats those of rows that miss their target once, and prints the rows with
/// what each try gave, or appends them to the file that STAGGER_BENCH_TABLE names.
/// @return the program's exit code, which is 0 even if a row fails
int run(int argc, char** argv, std::vector<Row> const& rows);

}  // namespace bench
