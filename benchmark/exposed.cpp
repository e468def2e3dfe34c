// SPDX-License-Identifier: Apache-2.0
// Step times of four processes with artificially slowed links, for the five groupings of gradients:
// are they as long as predicted, and in the predicted order? Also, the time to find the exact
// grouping.
//
// The pipeline has one stage with a replica in each process. The engine all-reduces gradients by
// MPI_Iallreduce, group by group, while the last backward pass still runs. Layers are those of
// examples/gpt with 12 blocks; each backward pass sleeps for a time proportional to its
// multiplications, so that four processes fit on two cores. This program intercepts the engine's
// calls of MPI: an all-reduce ends only when start-up + bytes x time per byte have passed since it
// began, or since the previous one ended. Predictions use only what the engine measured: layer
// times, and a linear fit of all-reduce times.

#include <mpi.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <stagger/collective/all_reduce.hpp>
#include <stagger/collective/grouping.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/mpi/processes.hpp>
#include <stagger/mpi/session.hpp>
#include <stagger/stagger.hpp>

#include "support/rows.hpp"

namespace {

namespace sg = stagger;
using namespace stagger::collective;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr int processes = 4;
constexpr int repetitions = 5;

/// Layers of examples/gpt, input first: bytes of their weights, and times of their backward passes.
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
    add(2 * width, 4 * context * width);                    // attention and its norm
    add(width * width, width * width);                      // projection
    add(4 * width * width + 2 * width, 4 * width * width);  // MLP, first half, and its norm
    add(4 * width * width, 4 * width * width);              // MLP, second half
  }
  add(width * 256, width * 256);  // head
  double sum = 0;
  for (double const w : n.backward_s) sum += w;
  for (double& w : n.backward_s) w *= 0.06 / sum;
  return n;
}

/// An artificially slowed link.
struct SlowLink {
  char const* name;
  double startup_s;
  double per_byte_s;
};
constexpr SlowLink links[] = {{"start-up 0.3 ms", 0.3e-3, 8e-9},
                              {"start-up 1.5 ms", 1.5e-3, 8e-9},
                              {"start-up 6 ms", 6e-3, 8e-9}};

/// The link of this process, and the time at which each all-reduce on it may end.
SlowLink link_here = links[0];
Clock::time_point free_at{};
std::map<MPI_Request, Clock::time_point> lasts_until;

}  // namespace

extern "C" int MPI_Iallreduce(void const* from, void* to, int count, MPI_Datatype type, MPI_Op op,
                              MPI_Comm comm, MPI_Request* request) {
  int const code = PMPI_Iallreduce(from, to, count, type, op, comm, request);
  int size = 0;
  MPI_Type_size(type, &size);
  double const s = link_here.startup_s + link_here.per_byte_s * size * count;
  free_at =
      std::max(free_at, Clock::now()) + std::chrono::duration_cast<Clock::duration>(Seconds(s));
  lasts_until[*request] = free_at;
  return code;
}

extern "C" int MPI_Testall(int count, MPI_Request* requests, int* done, MPI_Status* statuses) {
  for (int i = 0; i < count; ++i) {
    auto const known = lasts_until.find(requests[i]);
    if (known == lasts_until.end()) continue;
    if (Clock::now() < known->second) {
      int moved = 0;  // lets MPI make progress
      MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &moved, MPI_STATUS_IGNORE);
      *done = 0;
      return MPI_SUCCESS;
    }
  }
  std::vector<MPI_Request> const before(requests, requests + count);
  int const code = PMPI_Testall(count, requests, done, statuses);
  if (code == MPI_SUCCESS && *done != 0)
    for (MPI_Request const request : before) lasts_until.erase(request);
  return code;
}

namespace {

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

/// A layer whose backward pass sleeps.
struct Layer {
  using Input = sg::Tensor<>;
  using Output = sg::Tensor<>;
  double backward_s;
  double forward_s;
  sg::Parameter<> weights;
  Layer(std::uint64_t bytes, double backward, double forward)
      : backward_s(backward),
        forward_s(forward),
        weights("weights", std::vector<float>(bytes / sizeof(float))) {}

  void forward(sg::Context&, Input const& x, Output& y, sg::NothingSaved&) {
    if (forward_s > 0) std::this_thread::sleep_for(Seconds(forward_s));
    y = x;
  }
  void backward(sg::Context&, Input const&, Output const& dy, Input& dx, sg::NothingSaved&) {
    std::this_thread::sleep_for(Seconds(backward_s));
    dx = dy;
  }
  auto parameters() { return std::tie(weights); }
};

/// A collective with given groups, or one that records the engine's measurements.
struct Given {
  using policy_tag = sg::CollectiveTag;
  By by = By::library;
  bool shard_optimizer = false;
  int measured_steps = 0, renew_every = 0;
  std::vector<LayerGroup> fixed{};

  static inline std::vector<double> layer_s;
  static inline CostLine line;
  [[nodiscard]] std::vector<LayerGroup> groups(Backward const& backward, CostLine cost) const {
    if (!fixed.empty()) return fixed;
    layer_s.assign(backward.backward_s.begin(), backward.backward_s.end());
    line = cost;
    return grouping::Layerwise{}.groups(backward, cost);
  }
};

auto made(Network const& n, Given const& given) {
  std::vector<Layer> layers;
  for (std::size_t l = 0; l < n.bytes.size(); ++l)
    layers.emplace_back(n.bytes[l], n.backward_s[l], l == 0 ? n.forward_s : 0);
  sg::Options options;
  options.record = true;
  options.replicas = {processes};
  return sg::Pipeline{sg::Sequential{std::move(layers)}}.with(
      sg::partition::Cuts{}, sg::loss::MeanSquaredError<>{}, sg::mpi::Processes{}, given, options);
}

/// Time of the last step, until the last action and the last all-reduce have ended in all
/// processes.
template <class Trainer> double step_s(Trainer const& train) {
  double last = 0;
  for (auto const& timeline : {train.timeline(), train.reductions()})
    for (auto const& span : timeline.spans) last = std::max(last, span.end_s);
  return last;
}
/// Time of its forward pass.
template <class Trainer> double forward_s(Trainer const& train) {
  auto const timeline = train.timeline();
  return timeline.row(0).front().end_s;
}

/// What each of the processes runs.
int train_here() {
  sg::mpi::Session const session;
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  Network const n = network();
  sg::Tensor<> const x({processes, 1});
  sg::Batch<sg::Tensor<>, sg::Tensor<>> const batch{{x}, {x}};
  for (std::size_t k = 0; k < std::size(links); ++k) {
    link_here = links[k];
    Given::layer_s.clear();
    {
      auto train = made(n, {.measured_steps = 3});
      for (int step = 0; step < 5; ++step) sg::run(train.step(batch));
    }
    Given::layer_s.resize(n.bytes.size());
    MPI_Bcast(Given::layer_s.data(), static_cast<int>(n.bytes.size()), MPI_DOUBLE, 0,
              MPI_COMM_WORLD);
    MPI_Bcast(&Given::line, sizeof(CostLine), MPI_BYTE, 0, MPI_COMM_WORLD);
    for (int g = 0; g < 5; ++g) {
      Backward measured{0, Given::layer_s, n.bytes};
      auto train = made(n, {.fixed = groups_of(g, measured, Given::line)});
      std::vector<double> times, forwards;
      for (int step = -1; step < repetitions; ++step) {
        sg::run(train.step(batch));
        if (step < 0) continue;
        times.push_back(step_s(train));
        forwards.push_back(forward_s(train));
      }
      measured.forward_s = bench::median(forwards);
      double const predicted_s =
          evaluate(measured, groups_of(g, measured, Given::line), Given::line).iteration_s;
      if (rank == 0)
        std::printf("MEASURED %d %d %.9f %.9f\n", static_cast<int>(k), g, bench::median(times),
                    predicted_s);
      std::fflush(stdout);
    }
  }
  return 0;
}

/// Runs this program under mpirun.
void delayed(benchmark::State& state, std::string const& self) {
  for ([[maybe_unused]] auto _ : state) {
    std::string const command =
        bench::text("%s -n %d '%s' --ranks 2>&1", BENCH_MPIRUN, processes, self.c_str());
    std::FILE* const out = popen(command.c_str(), "r");
    char line[256];
    double measured_s = 0;
    while (out != nullptr && std::fgets(line, sizeof(line), out) != nullptr) {
      int k = 0, g = 0;
      double predicted_s = 0;
      if (std::sscanf(line, "MEASURED %d %d %lf %lf", &k, &g, &measured_s, &predicted_s) != 4)
        continue;
      state.counters[bench::text("measured/%d/%s", k, grouping_names[g])] = measured_s;
      state.counters[bench::text("predicted/%d/%s", k, grouping_names[g])] = predicted_s;
    }
    if (out != nullptr) pclose(out);
    state.SetIterationTime(measured_s);
    if (!(measured_s > 0)) state.SkipWithError("mpirun did not run the processes");
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
  if (argc == 2 && std::strcmp(argv[1], "--ranks") == 0) return train_here();
  std::vector<bench::Row> rows;
  std::string const self = argv[0];
  bench::add("delayed", 1, [self](benchmark::State& state) { delayed(state, self); });
  bench::add("exact/1000", 5, exact);
  rows.push_back({"exact grouping of 1000 layers", "exact/1000", [](bench::Results const& r) {
                    double const s = r.time_s("exact/1000");
                    return bench::Line{bench::text("%.2f ms", 1e3 * s), "at most 10 ms",
                                       s <= 10e-3 ? bench::Grade::passed : bench::Grade::failed};
                  }});
  for (std::size_t k = 0; k < std::size(links); ++k) {
    std::string const name = "delayed";
    std::string const measured = bench::text("measured/%zu/", k);
    std::string const predicted = bench::text("predicted/%zu/", k);
    rows.push_back(
        {bench::text("step of 4 processes, %s, five groupings, against prediction", links[k].name),
         name, [=](bench::Results const& r) {
           double worst = 0;
           std::string all;
           for (char const* g : grouping_names) {
             double const m = r.counter(name, measured + g);
             double const p = r.counter(name, predicted + g);
             worst = std::max(worst, std::abs(m / p - 1));
             all +=
                 bench::text("%s%s %.1f ms (%.1f)", all.empty() ? "" : ", ", g, 1e3 * m, 1e3 * p);
           }
           return bench::Line{bench::text("%s: at most %.1f %% off", all.c_str(), 100 * worst),
                              "within 15 %",
                              worst <= 0.15 ? bench::Grade::passed : bench::Grade::failed};
         }});
    rows.push_back(
        {bench::text("order of the five, %s", links[k].name), name, [=](bench::Results const& r) {
           int compared = 0;
           int wrong = 0;
           for (char const* a : grouping_names) {
             for (char const* b : grouping_names) {
               double const pa = r.counter(name, predicted + a);
               double const pb = r.counter(name, predicted + b);
               if (pb < 1.1 * pa) continue;
               ++compared;
               if (r.counter(name, measured + a) >= r.counter(name, measured + b)) {
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
