// SPDX-License-Identifier: Apache-2.0
// All-reduce between processes beside what MPI does by itself, and the in-process one beside both.
//
// The program starts itself under mpirun, with 2 and 4 processes. These measure in turns, round by
// round; before each round every rank writes its vector, as a backward pass does:
//   raw         MPI_Iallreduce and MPI_Wait
//   iallreduce  the same through mpi::Communicator, by its name
//   slices      mpi::Communicator's default, which adds in rank order
//   in-process  as many threads of process 0, while the other processes sleep
//   copy        each of these threads copies, from the vector that its neighbour has just written,
//               as many bytes as an all-reduce moves per rank: 2 (N - 1) / N n
// A time is that of the last rank to end; figures are medians over rounds. `share` is what the time
// of the copy, or of MPI, is of the time of the all-reduce.

#include <mpi.h>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <stagger/collective/in_process.hpp>
#include <stagger/mpi/session.hpp>
#include <stagger/mpi/world.hpp>

#include "support/rows.hpp"

namespace {

using namespace stagger;
using collective::Reduction;

constexpr std::size_t sizes[] = {1 << 10, 32 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20};
constexpr double patience_s = 60;

[[nodiscard]] std::string size_text(std::size_t bytes) {
  return bytes < (1 << 20) ? bench::text("%zu KiB", bytes >> 10)
                           : bench::text("%zu MiB", bytes >> 20);
}
[[nodiscard]] int rounds_of(std::size_t bytes) {
  return static_cast<int>(std::clamp<std::size_t>((std::size_t{192} << 20) / bytes, 6, 301));
}

void write(std::vector<float>& x) {
  std::fill(x.begin(), x.end(), 0.5f);
  benchmark::ClobberMemory();
}

// --- what the processes do ----------------------------------------------------------------------

/// The longest time of all ranks, on each of them.
[[nodiscard]] double last(double own_s) {
  double all_s = 0;
  MPI_Allreduce(&own_s, &all_s, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return all_s;
}

/// Times of one round of each kind between processes, appended to `times`.
/// @return  their sum, equal on all ranks
double between_processes(mpi::Communicator& c, std::vector<float>& x,
                         std::map<std::string, std::vector<double>>& times) {
  double sum_s = 0;
  auto const timed = [&](char const* kind, auto&& work) {
    write(x);
    MPI_Barrier(MPI_COMM_WORLD);
    double const start_s = bench::now_s();
    work();
    double const took_s = last(bench::now_s() - start_s);
    times[kind].push_back(took_s);
    sum_s += took_s;
  };
  timed("raw", [&] {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Iallreduce(MPI_IN_PLACE, x.data(), static_cast<int>(x.size()), MPI_FLOAT, MPI_SUM,
                   MPI_COMM_WORLD, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
  });
  timed("iallreduce", [&] {
    c.all_reduce(std::span(x), Reduction::sum, mpi::AllReduce::iallreduce).wait(patience_s);
  });
  timed("slices", [&] {
    c.all_reduce(std::span(x), Reduction::sum, mpi::AllReduce::slices).wait(patience_s);
  });
  return sum_s;
}

/// Rounds between threads of this process.
void between_threads(int ranks, std::size_t bytes, int rounds,
                     std::map<std::string, std::vector<double>>& times) {
  auto world = collective::InProcess{}.connect(ranks);
  auto const n = static_cast<std::size_t>(ranks);
  std::size_t const moved = 2 * (n - 1) * bytes / n / sizeof(float);
  std::vector<std::vector<float>> x(n), to(n);
  std::vector<double> from_s(n), to_s(n);
  std::atomic<std::size_t> came{0};
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < n; ++r) {
    threads.emplace_back([&, r] {
      auto& c = world[r];
      std::size_t const most = std::max(moved, bytes / sizeof(float));
      x[r].assign(most, 0);
      to[r].assign(most, 0);
      std::size_t met = 0;
      auto const meet = [&] {  // all leave at once, if there are cores for all
        came.fetch_add(1);
        for (met += n; came.load() < met;) std::this_thread::yield();
      };
      // The first of two does not count: a long copy writes past the caches, and whatever comes
      // next finds them empty.
      auto const timed = [&](char const* kind, auto&& work) {
        for (bool const counts : {false, true}) {
          write(x[r]);
          meet();
          from_s[r] = bench::now_s();
          work();
          to_s[r] = bench::now_s();
          meet();
          // From the first that begins to the last that ends: where there are fewer cores than
          // threads, copies run one after the other, as the parts of an all-reduce do.
          if (counts && r == 0) {
            times[kind].push_back(*std::max_element(to_s.begin(), to_s.end()) -
                                  *std::min_element(from_s.begin(), from_s.end()));
          }
          meet();
        }
      };
      for (int i = 0; i < rounds; ++i) {
        timed("in-process",
              [&] { c.all_reduce(std::span(x[r]).first(bytes / sizeof(float))).wait(patience_s); });
        timed("copy", [&] {
          std::memcpy(to[r].data(), x[(r + 1) % n].data(), moved * sizeof(float));
          benchmark::ClobberMemory();
        });
      }
    });
  }
  for (auto& t : threads) t.join();
}

int measure() {
  mpi::Session const session;
  int n = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &n);
  auto own = mpi::World{.algorithm = mpi::AllReduce::iallreduce}.connect(n);
  auto& c = own.front();
  for (std::size_t const bytes : sizes) {
    std::map<std::string, std::vector<double>> times;
    std::vector<float> x(bytes / sizeof(float));
    int const rounds = rounds_of(bytes);
    constexpr int parts = 3;  // in turns, so that what disturbs one disturbs both
    for (int part = 0; part < parts; ++part) {
      double sum_s = 0;  // more processes than cores take long
      for (int i = 0; i < 2 + rounds / parts && sum_s < 1; ++i) {
        sum_s += between_processes(c, x, times);
      }
      if (c.rank() == 0) between_threads(n, bytes, 2 + rounds / parts, times);
      c.barrier().wait(patience_s);  // the others sleep here
    }
    if (c.rank() != 0) continue;
    for (auto const& [kind, all] : times) {
      std::printf("MEASURED %zu %s %.9f\n", bytes, kind.c_str(), bench::median(all));
    }
    std::fflush(stdout);
  }
  return 0;
}

// --- what the program does ----------------------------------------------------------------------

/// Runs this program under mpirun, and reports all it measured as counters "kind/bytes".
void processes(benchmark::State& state, std::string const& self, int n) {
  for ([[maybe_unused]] auto _ : state) {
    std::string const command =
        bench::text("%s -n %d '%s' --ranks 2>&1", BENCH_MPIRUN, n, self.c_str());
    double const start_s = bench::now_s();
    std::FILE* const out = popen(command.c_str(), "r");
    char line[256];
    int lines = 0;
    while (out != nullptr && std::fgets(line, sizeof(line), out) != nullptr) {
      std::size_t bytes = 0;
      char kind[32] = {};
      double seconds = 0;
      if (std::sscanf(line, "MEASURED %zu %31s %lf", &bytes, kind, &seconds) != 3) continue;
      state.counters[bench::text("%s/%zu", kind, bytes)] = seconds;
      ++lines;
    }
    if (out != nullptr) pclose(out);
    if (lines == 0) state.SkipWithError("mpirun did not run the processes");
    state.SetIterationTime(bench::now_s() - start_s);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--ranks") == 0) return measure();
  std::vector<bench::Row> rows;
  for (int const n : {2, 4}) {
    std::string const name = bench::text("processes/%d", n);
    std::string const self = argv[0];
    bench::add(name, 1, [self, n](benchmark::State& state) {
      processes(state, self, n);
    })->Unit(benchmark::kSecond);
    for (std::size_t const bytes : sizes) {
      auto const of = [name, bytes](bench::Results const& r, char const* kind) {
        return r.counter(name, bench::text("%s/%zu", kind, bytes));
      };
      std::string const size = size_text(bytes);
      for (char const* const kind : {"iallreduce", "slices"}) {
        rows.push_back({bench::text("all-reduce of %s, %d processes, %s against MPI_Iallreduce and "
                                    "MPI_Wait",
                                    size.c_str(), n, kind),
                        name, [of, kind, bytes](bench::Results const& r) {
                          double const raw_s = of(r, "raw");
                          double const own_s = of(r, kind);
                          auto const measured =
                              bench::text("%.1f us, MPI %.1f us: %+.1f %%", 1e6 * own_s,
                                          1e6 * raw_s, 100 * (own_s / raw_s - 1));
                          if (bytes < (1 << 20)) return bench::Line{measured, ""};
                          bool const holds = own_s <= 1.03 * raw_s || own_s <= raw_s + 2e-6;
                          return bench::Line{measured, "at most 3 % or 2 us above",
                                             holds ? bench::Grade::passed : bench::Grade::failed};
                        }});
      }
      if (bytes < (1 << 20)) continue;
      rows.push_back({bench::text("all-reduce of %s, %d threads of one process", size.c_str(), n),
                      name, [of](bench::Results const& r) {
                        double const own_s = of(r, "in-process");
                        double const share = of(r, "copy") / own_s;
                        double const faster = of(r, "raw") / own_s;
                        bool const holds = share >= 0.85 && faster >= 1;
                        return bench::Line{
                            bench::text("%.1f us: %.0f %% of the copy, %.2f times as fast as "
                                        "MPI",
                                        1e6 * own_s, 100 * share, faster),
                            "at least 85 %, not slower than MPI",
                            holds ? bench::Grade::passed : bench::Grade::failed};
                      }});
    }
  }
  return bench::run(argc, argv, rows);
}
