// SPDX-License-Identifier: Apache-2.0
// Groups of ranks that share layers, on threads.
//
//   vgg        a step of examples/vgg on 2 ranks on 2 threads, as one group that shares the dense
//              layers and as 2 replicas; steps of both alternate. Further steps are recorded for the
//              time that exchanges take
//   exchange   2 ranks on 2 threads: from the end of the last member's layer to the beginning of the
//              last member's next one, where each takes a value of n bytes that both have columns
//              of (shard) or terms (sum)
//   copy       one memcpy on each of 2 threads at once, from the vector that the other has just
//              written, of n bytes; for a sum, which reads two vectors and writes one, of 3/2 n, so
//              that as many bytes are read and written. Measurements of both alternate
// The rows compare medians.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <stagger/engine/groups.hpp>
#include <stagger/partition/layer_split.hpp>
#include <stagger/stagger.hpp>

#include "support/copies.hpp"
#include "support/rows.hpp"
#include "support/vgg.hpp"

namespace {

namespace sg = stagger;
using Clock = std::chrono::steady_clock;

constexpr int rounds = 21;

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

void measure_vgg(benchmark::State& state, std::ptrdiff_t width) {
  auto const shape = bench::vgg_shape(width);
  auto const batch = bench::vgg_batch(shape);
  auto shared = bench::vgg_pipeline(shape, 2, sg::host::Threads{2});
  auto copies = bench::vgg_pipeline(shape, 1, sg::host::Threads{2});
  auto const timed = [&](auto& train) {
    auto const start = Clock::now();
    sg::run(train.step(batch));
    return seconds(Clock::now() - start);
  };
  for ([[maybe_unused]] auto _ : state) {
    std::vector<double> of_shared, of_copies, ratios;
    for (int round = -3; round < rounds; ++round) {
      double const shared_s = timed(shared);
      double const copies_s = timed(copies);
      if (round < 0) continue;
      of_shared.push_back(shared_s);
      of_copies.push_back(copies_s);
      ratios.push_back(copies_s / shared_s);
    }
    state.SetIterationTime(bench::median(of_shared));
    state.counters["replicas_ms"] = 1e3 * bench::median(of_copies);
    state.counters["of_replicas"] = bench::median(ratios);
    shared.record(true);
    std::vector<double> shares;
    for (int round = 0; round < 5; ++round) {
      timed(shared);
      shares.push_back(bench::exchanging(shared.timeline()));
    }
    state.counters["exchanging"] = bench::median(shares);
  }
}

/// When the members of a group were last at a place.
struct Times {
  std::array<Clock::time_point, 2> ended{}, began{};
};

/// A layer without work between `in` and `out` features, which says when it runs.
struct Idle {
  using Input = sg::Tensor<float>;   // [rows][in]
  using Output = sg::Tensor<float>;  // [rows][out]
  static constexpr bool by_inputs = true;
  std::size_t in, out;
  bool gives;  // otherwise it takes
  Times* times;
  int member = 0;

  [[nodiscard]] std::size_t inputs() const { return in; }
  [[nodiscard]] std::size_t outputs() const { return out; }
  [[nodiscard]] Idle part(int of, int members, sg::SplitBy by) const {
    Idle own = *this;
    own.member = of;
    std::size_t& size = by == sg::SplitBy::outputs ? own.out : own.in;
    size = sg::features_of(static_cast<std::size_t>(of), static_cast<std::size_t>(members), size)
               .size();
    return own;
  }
  void forward(sg::Context&, Input const& x, Output& y, sg::NothingSaved&) const {
    auto const m = static_cast<std::size_t>(member);
    if (!gives) times->began[m] = Clock::now();
    y.resize({x.extent(0), out});
    if (!gives) return;
    y.fill(1);
    times->ended[m] = Clock::now();
  }
  void backward_input(sg::Context&, Input const& x, Output const&, Input& dx,
                      sg::NothingSaved&) const {
    dx.resize_like(x);
  }
};

/// Nothing, of any output.
struct NoLoss {
  using policy_tag = sg::LossTag;
  using Target = sg::Tensor<float>;
  double terms(Target const&) const { return 1; }
  double value(sg::Context&, sg::Tensor<float> const&, Target const&) const { return 0; }
  double value_and_gradient(sg::Context&, sg::Tensor<float> const& y, Target const&, double,
                            sg::Tensor<float>& dy) const {
    dy.resize_like(y);
    return 0;
  }
};

void measure_exchange(benchmark::State& state, bool sum, std::size_t bytes) {
  constexpr std::size_t features = 1024;
  std::size_t const rows = bytes / sizeof(float) / features;
  Times times;
  // Shard: split by outputs, twice. Sum: the second is split by inputs and gives terms.
  auto const chain = [&] {
    std::vector<Idle> layers{{1, sum ? 2 : features, !sum, &times}};
    if (sum) layers.push_back({2, features, true, &times});
    layers.push_back({features, 2, false, &times});
    return sg::Sequential{std::move(layers)};
  };
  auto train = sg::Pipeline{chain()}.with(
      sg::partition::LayerSplit{.group = 2, .threshold = 0, .pairs = sum}, NoLoss{},
      sg::host::Threads{2}, sg::Options{.replicas = {2}});
  sg::Tensor<float> const input({rows, 1});
  sg::Batch<sg::Tensor<float>, sg::Tensor<float>> const batch{{input}, {input}};
  bench::Copies copy(2, sum ? bytes + bytes / 2 : bytes);
  for ([[maybe_unused]] auto _ : state) {
    std::vector<double> exchanges, copies;
    for (int round = -2; round < rounds; ++round) {
      sg::run(train.evaluate(batch));
      double const copied = copy.seconds();
      if (round < 0) continue;
      exchanges.push_back(seconds(std::max(times.began[0], times.began[1]) -
                                  std::max(times.ended[0], times.ended[1])));
      copies.push_back(copied);
    }
    state.SetIterationTime(bench::median(exchanges));
    state.counters["of_copy"] = bench::median(copies) / bench::median(exchanges);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<bench::Row> rows;
  for (std::ptrdiff_t const width : {8, 64}) {
    std::string const name = "vgg/width:" + std::to_string(width);
    bench::add(name, 1, [=](benchmark::State& state) { measure_vgg(state, width); });
    rows.push_back(bench::vgg_row(
        bench::text("examples/vgg of width %td, 2 ranks on 2 threads", width), name, 0.85));
  }
  for (bool const sum : {false, true})
    bench::add_sizes(rows,
                     bench::text("what 2 members on 2 threads take from each other, %s",
                                 sum ? "sum of terms" : "shard"),
                     sum ? "sum" : "shard", 3, [=](benchmark::State& state, std::size_t bytes) {
                       measure_exchange(state, sum, bytes);
                     });
  return bench::run(argc, argv, rows);
}
