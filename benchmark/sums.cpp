// SPDX-License-Identifier: Apache-2.0
// The all-reduce of gradients of replicas on threads, as training does it, compared with a copy.
//
//   sum         a stage with one parameter of n bytes on N ranks on N threads: the all-reduce of
//               one step, from the start on the first rank to the end on the last, as the engine
//               records it
//   copy        the 2 (N - 1) / N n bytes that each rank of an all-reduce of n bytes transfers, by one memcpy on each of N threads at once, from the vector that the
//               neighbouring thread has just written
// Measurements of both alternate; the row compares medians.

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include <stagger/collective/all_reduce.hpp>
#include <stagger/collective/grouping/single.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/stagger.hpp>

#include "support/copies.hpp"
#include "support/rows.hpp"

namespace {

namespace sg = stagger;

constexpr int rounds = 21;

/// A layer with one large parameter, to whose whole gradient each row adds.
struct Large {
  using Input = sg::Tensor<>;
  using Output = sg::Tensor<>;
  sg::Parameter<> values;
  explicit Large(std::size_t size) : values("values", std::vector<float>(size, 0.5F)) {}

  void forward(sg::Context&, Input const& x, Output& y, sg::NothingSaved&) { y = x; }
  void backward(sg::Context& context, Input const&, Output const& dy, Input& dx,
                sg::NothingSaved&) {
    dx = dy;
    for (float& g : context.gradient(values)) g += dy[0];
  }
  auto parameters() { return std::tie(values); }
};

void measure(benchmark::State& state, int replicas, std::size_t bytes) {
  sg::Options options;
  options.record = true;
  options.replicas = sg::Replicas::even(&replicas, 1);
  auto train = sg::Pipeline{Large(bytes / sizeof(float))}.with(
      sg::loss::MeanSquaredError<>{}, sg::optimizer::Sgd{.rate = 0}, sg::host::Threads{replicas},
      sg::collective::AllReduce{.grouping = sg::collective::grouping::Single{}}, options);
  sg::Tensor<> const rows({static_cast<std::size_t>(replicas), 1});
  sg::Batch<sg::Tensor<>, sg::Tensor<>> const batch{{rows}, {rows}};
  auto const n = static_cast<std::size_t>(replicas);
  bench::Copies copy(replicas, 2 * (n - 1) * bytes / n);
  for ([[maybe_unused]] auto _ : state) {
    std::vector<double> sums, copies;
    for (int round = -2; round < rounds; ++round) {
      sg::run(train.step(batch));
      double first = std::numeric_limits<double>::max();
      double last = 0;
      auto const times = train.reductions();
      for (auto const& span : times.spans) {
        first = std::min(first, span.start_s);
        last = std::max(last, span.end_s);
      }
      double const copied = copy.seconds();
      if (round < 0) continue;
      sums.push_back(last - first);
      copies.push_back(copied);
    }
    state.SetIterationTime(bench::median(sums));
    state.counters["copy_ms"] = 1e3 * bench::median(copies);
    state.counters["of_copy"] = bench::median(copies) / bench::median(sums);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<bench::Row> rows;
  for (int const replicas : {2, 4})
    bench::add_sizes(
        rows, bench::text("sum of the gradients of %d replicas on %d threads", replicas, replicas),
        "sum/replicas:" + std::to_string(replicas), 5,
        [=](benchmark::State& state, std::size_t bytes) { measure(state, replicas, bytes); });
  return bench::run(argc, argv, rows);
}
