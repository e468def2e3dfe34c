// SPDX-License-Identifier: Apache-2.0
#include "rows.hpp"

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "machine.hpp"

namespace bench {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  auto const middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string text(char const* format, ...) {
  char words[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(words, sizeof words, format, arguments);
  va_end(arguments);
  return words;
}

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Results::One const& Results::of(std::string const& name) const {
  auto const found = all_.find(name);
  if (found == all_.end()) throw Missing{};
  return found->second;
}

double Results::counter(std::string const& name, std::string const& counter) const {
  auto const& counters = of(name).counters;
  auto const found = counters.find(counter);
  if (found == counters.end()) throw Missing{};
  return found->second;
}

/// Prints the median of each benchmark on one line, and stores it.
class Reporter : public benchmark::ConsoleReporter {
 public:
  explicit Reporter(Results& results) : ConsoleReporter(OO_None), results_(results) {}

  bool ReportContext(Context const& context) override {
    if (std::exchange(introduced_, true)) return true;
    return ConsoleReporter::ReportContext(context);
  }

  void ReportRuns(std::vector<Run> const& runs) override {
    std::vector<Run> medians;
    for (auto const& run : runs) {
      bool const alone = run.run_type == Run::RT_Iteration && run.repetitions <= 1;
      if (!run.error_occurred && run.aggregate_name != "median" && !alone) continue;
      medians.push_back(run);
      medians.back().run_name.iterations.clear();  // the same for all benchmarks
      medians.back().run_name.repetitions.clear();
      medians.back().run_name.time_type.clear();
      if (run.error_occurred) continue;
      Results::One one;
      one.time_s = run.GetAdjustedRealTime() / benchmark::GetTimeUnitMultiplier(run.time_unit);
      for (auto const& [name, counter] : run.counters) one.counters[name] = counter.value;
      results_.all_[run.run_name.function_name] = std::move(one);
    }
    if (!medians.empty()) ConsoleReporter::ReportRuns(medians);
  }

 private:
  Results& results_;
  bool introduced_ = false;
};

namespace {

/// A row, and what each try gave: a second one follows where the first misses the target.
struct Filled {
  Row const* row;
  std::vector<Line> tries;
};

bool fill(Filled& filled, Results const& results) {
  try {
    filled.tries.push_back(filled.row->judge(results));
    return true;
  } catch (Results::Missing const&) {
    return false;
  }
}

char const* name_of(Grade grade) {
  return grade == Grade::passed ? "pass" : grade == Grade::failed ? "FAIL" : "-";
}

void print(std::FILE* file, std::vector<Filled> const& table) {
  for (auto const& [row, tries] : table)
    for (std::size_t t = 0; t < tries.size(); ++t) {
      std::string const what = t == 0 ? row->what : text("  try %zu", t + 1);
      std::fprintf(file, "%-4s  %-58s  %-70s  %s\n", name_of(tries[t].grade), what.c_str(),
                   tries[t].measured.c_str(), tries[t].bound.c_str());
    }
}

void publish(std::vector<Filled> const& table) {
  char const* const name = std::getenv("STAGGER_BENCH_TABLE");
  std::FILE* const file = name == nullptr ? stdout : std::fopen(name, "a");
  if (file == nullptr) {
    std::fprintf(stderr, "bench: cannot append to '%s', which STAGGER_BENCH_TABLE names\n", name);
    return;
  }
  if (file == stdout || std::ftell(file) == 0)
    std::fprintf(file, "\n%s\n\n%-4s  %-58s  %-70s  %s\n", machine().c_str(), "", "what",
                 "measured (medians)", "target");
  print(file, table);
  if (file != stdout) std::fclose(file);
}

}  // namespace

int run(int argc, char** argv, std::vector<Row> const& rows) {
  char interleave[] = "--benchmark_enable_random_interleaving=true";
  char aggregate[] = "--benchmark_display_aggregates_only=true";
  std::vector<char*> words(argv, argv + argc);
  words.insert(words.begin() + 1,
               {interleave, aggregate});  // before the user's flags, which override them
  bool repeat = true;  // a second run would overwrite an output file, or list all names again
  for (std::string_view const word : std::vector<std::string_view>(argv, argv + argc))
    repeat = repeat && !word.starts_with("--benchmark_out") &&
             !word.starts_with("--benchmark_list_tests");
  int count = static_cast<int>(words.size());
  words.push_back(nullptr);
  benchmark::Initialize(&count, words.data());
  if (benchmark::ReportUnrecognizedArguments(count, words.data())) return 2;

  Results results;
  Reporter reporter(results);
  benchmark::RunSpecifiedBenchmarks(&reporter);
  std::vector<Filled> table;
  for (auto const& row : rows) {
    Filled filled{&row, {}};
    if (!fill(filled, results)) continue;
    if (filled.tries[0].grade == Grade::failed && repeat) {
      std::printf("again, for '%s': %s, but the target is %s\n", row.what.c_str(),
                  filled.tries[0].measured.c_str(), filled.tries[0].bound.c_str());
      benchmark::RunSpecifiedBenchmarks(&reporter, row.benchmarks);
      fill(filled, results);
    }
    table.push_back(std::move(filled));
  }
  if (!table.empty()) publish(table);
  return 0;
}

}  // namespace bench
