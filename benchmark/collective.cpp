// SPDX-License-Identifier: Apache-2.0
// Collectives: the all-reduce of ranks of one process beside what copying allows, and the cost of
// deciding a grouping.
//
//   own copy    each of N threads copies as many bytes as an all-reduce moves per rank,
//               2 (N - 1) / N n, between two vectors of its own, which small ones keep in its cache
//   peer copy   the same from the vector that its neighbour has just written, as between ranks
//   all_reduce  the same N threads, one all-reduce of n bytes of float
// The three are measured in turns; `of_peer_copy` and `of_own_copy` are shares of the rate that the
// copies reach, median of rounds.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include <stagger/collective/grouping.hpp>
#include <stagger/collective/in_process.hpp>

namespace {

using namespace stagger::collective;
using Clock = std::chrono::steady_clock;

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2), x.end());
  return x[x.size() / 2];
}

/// One thread's times, in seconds per operation.
struct Times {
  std::vector<double> own, peer, reduce;
};

/// Two vectors per rank that all ranks see.
using Shared = std::vector<std::array<std::vector<char>, 2>>;

void rank_loop(InProcessCommunicator& c, std::size_t bytes, AllReduce algorithm, int rounds,
               int repeats, Shared& shared, Times& times) {
  auto const n = static_cast<std::size_t>(c.size());
  auto const me = static_cast<std::size_t>(c.rank());
  std::size_t const moved = 2 * (n - 1) * bytes / n;
  std::vector<float> x(bytes / sizeof(float), 0.5f);
  for (auto& v : shared[me]) v.assign(moved, 1);
  auto const timed = [&](auto&& operation) {
    c.barrier().wait(60);
    auto const start = Clock::now();
    for (int i = 0; i < repeats; ++i) operation();
    c.barrier().wait(60);
    return std::chrono::duration<double>(Clock::now() - start).count() / repeats;
  };
  std::size_t turn = 0;
  auto const copy = [&](std::size_t from) {
    std::memcpy(shared[me][1 - turn].data(), shared[from][turn].data(), moved);
    benchmark::ClobberMemory();
    turn = 1 - turn;
  };
  for (int r = 0; r < rounds; ++r) {
    times.own.push_back(timed([&] { copy(me); }));
    times.peer.push_back(timed([&] {
      copy((me + 1) % n);
      c.barrier().wait(60);
    }));
    times.reduce.push_back(timed([&] {
      c.all_reduce(std::span(x), Reduction::max, algorithm).wait(60);  // values stay as they are
    }));
  }
}

void all_reduce(benchmark::State& state, AllReduce algorithm) {
  int const ranks = static_cast<int>(state.range(0));
  auto const bytes = static_cast<std::size_t>(state.range(1)) << 20;
  int const repeats = std::max(1, 64 / static_cast<int>(state.range(1)));
  std::vector<double> reduce, of_own, of_peer;
  for (auto _ : state) {
    auto world = InProcess{}.connect(ranks);
    Shared shared(world.size());
    std::vector<Times> times(world.size());
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < world.size(); ++r) {
      threads.emplace_back(
          [&, r] { rank_loop(world[r], bytes, algorithm, 15, repeats, shared, times[r]); });
    }
    for (auto& t : threads) t.join();
    reduce.push_back(median(times[0].reduce));
    of_own.push_back(median(times[0].own) / reduce.back());
    of_peer.push_back(median(times[0].peer) / reduce.back());
    state.SetIterationTime(reduce.back());
  }
  state.counters["of_own_copy"] = median(of_own);
  state.counters["of_peer_copy"] = median(of_peer);
}

void small_all_reduce(benchmark::State& state) {
  int const ranks = static_cast<int>(state.range(0));
  constexpr int repeats = 2000;
  for (auto _ : state) {
    auto world = InProcess{}.connect(ranks);
    std::vector<std::thread> threads;
    double seconds = 0;
    for (std::size_t r = 0; r < world.size(); ++r) {
      threads.emplace_back([&, r] {
        float x[16] = {};
        world[r].barrier().wait(60);
        auto const start = Clock::now();
        for (int i = 0; i < repeats; ++i) world[r].all_reduce(std::span(x)).wait(60);
        if (r == 0) seconds = std::chrono::duration<double>(Clock::now() - start).count() / repeats;
      });
    }
    for (auto& t : threads) t.join();
    state.SetIterationTime(seconds);
  }
}

void interleaved_all_reduce(benchmark::State& state) {
  int const ranks = static_cast<int>(state.range(0));
  auto world = InProcess{}.connect(ranks);
  std::vector<std::vector<float>> x(world.size(), std::vector<float>(16));
  std::vector<InProcessOperation> ops(world.size());
  for (auto _ : state) {
    for (std::size_t r = 0; r < world.size(); ++r) ops[r] = world[r].all_reduce(std::span(x[r]));
    for (bool done = false; !done;) {
      done = true;
      for (auto& op : ops) done = op.poll() && done;
    }
  }
}

template <class Policy> void grouping_of(benchmark::State& state) {
  auto const layers = static_cast<std::size_t>(state.range(0));
  std::mt19937 random(1);
  std::uniform_real_distribution<double> time(1e-4, 5e-3);
  std::vector<double> times;
  std::vector<std::uint64_t> bytes;
  for (std::size_t i = 0; i < layers; ++i) {
    times.push_back(time(random));
    bytes.push_back(400 + random() % 2'000'000);
  }
  Backward const backward{0.1, times, bytes};
  CostLine const cost{5.7e-3, 1.7e-9};
  for (auto _ : state) benchmark::DoNotOptimize(Policy{}.groups(backward, cost).size());
}

void sizes(benchmark::internal::Benchmark* b) {
  for (int ranks : {2, 4}) {
    for (int mib : {1, 4, 16, 64}) b->Args({ranks, mib});
  }
  b->ArgNames({"ranks", "MiB"})->UseManualTime()->Iterations(3)->Unit(benchmark::kMillisecond);
}

BENCHMARK_CAPTURE(all_reduce, slices, AllReduce::slices)->Apply(sizes);
BENCHMARK_CAPTURE(all_reduce, ring, AllReduce::ring)->Apply(sizes);
BENCHMARK_CAPTURE(all_reduce, halving_doubling, AllReduce::halving_doubling)->Apply(sizes);
BENCHMARK_CAPTURE(all_reduce, recursive_doubling, AllReduce::recursive_doubling)->Apply(sizes);
BENCHMARK_CAPTURE(all_reduce, tree, AllReduce::tree)->Apply(sizes);
BENCHMARK(small_all_reduce)
    ->Arg(2)
    ->Arg(4)
    ->ArgName("ranks")
    ->UseManualTime()
    ->Iterations(5)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(interleaved_all_reduce)->Arg(1)->Arg(2)->Arg(4)->Arg(8)->ArgName("ranks");
BENCHMARK(grouping_of<grouping::Optimal>)
    ->Name("grouping/optimal")
    ->Arg(100)
    ->Arg(1000)
    ->ArgName("layers");
BENCHMARK(grouping_of<grouping::Greedy>)->Name("grouping/greedy")->Arg(1000)->ArgName("layers");

}  // namespace

BENCHMARK_MAIN();
