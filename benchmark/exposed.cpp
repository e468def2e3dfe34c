// SPDX-License-Identifier: Apache-2.0
// Iterations of four ranks whose links are slow, for the five groupings: is each as long as
// predicted, and do they come in the predicted order? And how long does the exact grouping take to
// find?
//
// Each rank has a thread that computes and one that sends. Computing replays the backward pass of
// examples/gpt with 12 blocks, its five layers per block lasting as their multiplications say; it
// sleeps, so that four ranks fit on two cores. Gradients are real and are all-reduced in process.
// The link sleeps until a message has lasted start-up + bytes x time per byte. Predictions see none
// of this: they use a line fitted to messages that were timed on the link, and layer times that
// were measured.

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <stagger/collective/decision.hpp>
#include <stagger/collective/grouping.hpp>
#include <stagger/collective/in_process.hpp>
#include <stagger/collective/line_fit.hpp>

#include "support/rows.hpp"

namespace {

using namespace stagger::collective;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr int ranks = 4;
constexpr int repetitions = 5;
constexpr double patience_s = 60;

/// Layers of examples/gpt, input first: weights and how long each backward lasts.
struct Network {
  std::vector<std::uint64_t> bytes;
  std::vector<double> backward_s;
  double forward_s = 0.02;
};

[[nodiscard]] Network network() {
  constexpr double width = 96;
  constexpr double context = 64;
  Network n;
  auto const add = [&n](double parameters, double work) {
    n.bytes.push_back(4 * static_cast<std::uint64_t>(parameters));
    n.backward_s.push_back(work);
  };
  add(width * (256 + context), width);  // embedding
  for (int block = 0; block < 12; ++block) {
    add(3 * width * width, 3 * width * width);              // query, key, value
    add(2 * width, 4 * context * width);                    // attention itself, and its norm
    add(width * width, width * width);                      // projection
    add(4 * width * width + 2 * width, 4 * width * width);  // into the middle, and its norm
    add(4 * width * width, 4 * width * width);              // out of it
  }
  add(width * 256, width * 256);  // head
  double sum = 0;
  for (double const w : n.backward_s) sum += w;
  for (double& w : n.backward_s) w *= 0.06 / sum;
  return n;
}

/// A link that is slow on purpose.
struct SlowLink {
  char const* name;
  double startup_s;
  double per_byte_s;

  void finish(Clock::time_point start, std::uint64_t bytes) const {
    if (bytes == 0) return;
    std::this_thread::sleep_until(
        start + std::chrono::duration_cast<Clock::duration>(
                    Seconds(startup_s + per_byte_s * static_cast<double>(bytes))));
  }
};
constexpr SlowLink links[] = {{"start-up 0.3 ms", 0.3e-3, 8e-9},
                              {"start-up 1.5 ms", 1.5e-3, 8e-9},
                              {"start-up 6 ms", 6e-3, 8e-9}};

constexpr char const* grouping_names[] = {"layerwise", "single", "greedy", "optimal", "bucket"};

[[nodiscard]] std::vector<LayerGroup> groups_of(int grouping, Backward const& b, CostLine cost) {
  switch (grouping) {
    case 0:
      return grouping::Layerwise{}.groups(b, cost);
    case 1:
      return grouping::Single{}.groups(b, cost);
    case 2:
      return grouping::Greedy{}.groups(b, cost);
    case 3:
      return grouping::Optimal{}.groups(b, cost);
    default:
      return grouping::Bucket{std::uint64_t{1} << 20}.groups(b, cost);
  }
}

/// One rank's iteration: computes in this thread, sends in another.
struct Rank {
  std::vector<float> gradients;      // last layer first: a group is one span
  std::vector<std::size_t> offsets;  // of layer l at [l]
  std::mutex mutex;
  std::condition_variable moved;
  int lowest_ready = 0;
  std::vector<double> layer_s;  // as measured

  double run(InProcessCommunicator& c, Network const& n, std::vector<LayerGroup> const& groups,
             SlowLink const& link) {
    auto const layers = static_cast<int>(n.bytes.size());
    layer_s.assign(n.bytes.size(), 0);
    lowest_ready = layers + 1;
    c.barrier().wait(patience_s);
    auto const start = Clock::now();
    std::thread sender([&] {
      for (auto const& g : groups) {
        std::unique_lock lock(mutex);
        moved.wait(lock, [&] { return lowest_ready <= g.lowest; });
        lock.unlock();
        auto const begun = Clock::now();
        std::size_t const first = offsets[static_cast<std::size_t>(g.highest)];
        std::size_t const last = offsets[static_cast<std::size_t>(g.lowest - 1)];
        c.all_reduce(std::span(gradients).subspan(first, last - first)).wait(patience_s);
        link.finish(begun, 4 * (last - first));
      }
    });
    double at = n.forward_s;
    auto before = start;
    for (int l = layers; l >= 1; --l) {
      at += n.backward_s[static_cast<std::size_t>(l - 1)];
      std::this_thread::sleep_until(start +
                                    std::chrono::duration_cast<Clock::duration>(Seconds(at)));
      auto const now = Clock::now();
      layer_s[static_cast<std::size_t>(l - 1)] =
          Seconds(now - before).count() - (l == layers ? n.forward_s : 0);
      before = now;
      std::lock_guard const lock(mutex);
      lowest_ready = l;
      moved.notify_one();
    }
    sender.join();
    c.barrier().wait(patience_s);
    return Seconds(Clock::now() - start).count();
  }
};

/// All five groupings in turns, five times each: medians, and what was predicted for them.
struct Outcome {
  std::array<double, 5> measured_s{};
  std::array<double, 5> predicted_s{};
};

[[nodiscard]] Outcome iterations(SlowLink const& link) {
  Network const n = network();
  auto world = InProcess{}.connect(ranks);
  std::vector<Rank> all(ranks);
  std::array<std::vector<double>, 5> times;
  Outcome outcome;
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < all.size(); ++r) {
    threads.emplace_back([&, r] {
      auto& c = world[r];
      Rank& rank = all[r];
      rank.offsets.assign(n.bytes.size() + 1, 0);
      std::size_t total = 0;
      for (std::size_t l = n.bytes.size(); l-- > 0;) {
        total += n.bytes[l] / 4;
        rank.offsets[l] = total;
      }
      rank.gradients.assign(total, 1e-6f);
      // The line: messages of several sizes, timed one by one.
      std::vector<Sample> samples;
      for (std::size_t bytes = 1 << 12; bytes <= std::size_t{1} << 22; bytes *= 4) {
        std::vector<double> took;
        for (int i = 0; i < 5; ++i) {
          c.barrier().wait(patience_s);
          auto const begun = Clock::now();
          c.all_reduce(std::span(rank.gradients).first(bytes / 4)).wait(patience_s);
          link.finish(begun, bytes);
          took.push_back(Seconds(Clock::now() - begun).count());
        }
        samples.push_back({bytes, bench::median(took)});
      }
      // The layers: two iterations with one message.
      Backward const asked{n.forward_s, n.backward_s, n.bytes};
      for (int i = 0; i < 2; ++i) {
        static_cast<void>(rank.run(c, n, grouping::Single{}.groups(asked, {}), link));
      }
      // One rank decides from what it measured; see Decision.
      std::vector<std::vector<LayerGroup>> groups(5);
      std::vector<double> const layer_s = rank.layer_s;
      Backward const measured{n.forward_s, layer_s, n.bytes};
      for (int g = 0; g < 5; ++g) {
        Decision<LayerGroup> decision;
        groups[static_cast<std::size_t>(g)] = decision.decide(
            c,
            [&] {
              CostLine const line = fit_line(samples).line;
              auto made = groups_of(g, measured, line);
              outcome.predicted_s[static_cast<std::size_t>(g)] =
                  evaluate(measured, made, line).iteration_s;
              return made;
            },
            patience_s);
      }
      for (int i = 0; i < repetitions; ++i) {
        for (std::size_t g = 0; g < 5; ++g) {
          double const took = rank.run(c, n, groups[g], link);
          if (r == 0) times[g].push_back(took);
        }
      }
    });
  }
  for (auto& t : threads) t.join();
  for (std::size_t g = 0; g < 5; ++g) outcome.measured_s[g] = bench::median(times[g]);
  return outcome;
}

void delayed(benchmark::State& state, SlowLink const& link) {
  for ([[maybe_unused]] auto _ : state) {
    Outcome const o = iterations(link);
    for (std::size_t g = 0; g < 5; ++g) {
      state.counters[std::string("measured/") + grouping_names[g]] = o.measured_s[g];
      state.counters[std::string("predicted/") + grouping_names[g]] = o.predicted_s[g];
    }
    state.SetIterationTime(o.measured_s[3]);
  }
}

void exact(benchmark::State& state) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> time(1e-4, 5e-3);
  std::vector<double> times;
  std::vector<std::uint64_t> bytes;
  for (int i = 0; i < 1000; ++i) {
    times.push_back(time(random));
    bytes.push_back(400 + random() % 2'000'000);
  }
  bench::time_each(state, [&] {
    benchmark::DoNotOptimize(
        grouping::Optimal{}.groups(Backward{0.1, times, bytes}, CostLine{5.7e-3, 1.7e-9}).size());
  });
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<bench::Row> rows;
  bench::add("exact/1000", 5, exact);
  rows.push_back({"exact grouping of 1000 layers", "exact/1000", [](bench::Results const& r) {
                    double const s = r.time_s("exact/1000");
                    return bench::Line{bench::text("%.2f ms", 1e3 * s), "at most 10 ms",
                                       s <= 10e-3 ? bench::Grade::passed : bench::Grade::failed};
                  }});
  for (SlowLink const& link : links) {
    std::string const name = std::string("delayed/") + link.name;
    bench::add(name, 1, [&link](benchmark::State& state) { delayed(state, link); });
    rows.push_back(
        {bench::text("iteration of 4 ranks, %s, five groupings, against prediction", link.name),
         name, [name](bench::Results const& r) {
           double worst = 0;
           std::string all;
           for (char const* g : grouping_names) {
             double const m = r.counter(name, std::string("measured/") + g);
             double const p = r.counter(name, std::string("predicted/") + g);
             worst = std::max(worst, std::abs(m / p - 1));
             all +=
                 bench::text("%s%s %.1f ms (%.1f)", all.empty() ? "" : ", ", g, 1e3 * m, 1e3 * p);
           }
           return bench::Line{bench::text("%s: at most %.1f %% off", all.c_str(), 100 * worst),
                              "within 15 %",
                              worst <= 0.15 ? bench::Grade::passed : bench::Grade::failed};
         }});
    rows.push_back(
        {bench::text("order of the five, %s", link.name), name, [name](bench::Results const& r) {
           int compared = 0;
           int wrong = 0;
           for (char const* a : grouping_names) {
             for (char const* b : grouping_names) {
               double const pa = r.counter(name, std::string("predicted/") + a);
               double const pb = r.counter(name, std::string("predicted/") + b);
               if (pb < 1.1 * pa) continue;
               ++compared;
               if (r.counter(name, std::string("measured/") + a) >=
                   r.counter(name, std::string("measured/") + b)) {
                 ++wrong;
               }
             }
           }
           return bench::Line{bench::text("%d of %d pairs", compared - wrong, compared),
                              "as predicted where predictions differ by more than 10 %",
                              wrong == 0 ? bench::Grade::passed : bench::Grade::failed};
         }});
  }
  return bench::run(argc, argv, rows);
}
