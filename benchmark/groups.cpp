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
//   memory     heap allocations of steps of examples/vgg, and the bytes of activations under GPipe
//              over those under 1F1B
// The rows compare medians.

#include "support/counted_allocation.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <stagger/collective/all_reduce.hpp>
#include <stagger/collective/grouping.hpp>
#include <stagger/engine/groups.hpp>
#include <stagger/partition/layer_split.hpp>
#include <stagger/schedule/named.hpp>
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

/// A pipeline of one stage and a group of `members`, which sums each layer's gradients on its own.
auto group_of(int members, vgg::ModelShape const& shape, char const* schedule) {
  using stagger::collective::AllReduce;
  return sg::Pipeline{vgg::make_model<float>(shape, 1)}.with(
      sg::partition::LayerSplit{.group = members, .threshold = 0},
      sg::schedule::Named{.name = schedule}, sg::optimizer::Sgd{.rate = 0.01},
      sg::loss::CrossEntropy<float>{}, AllReduce<sg::collective::grouping::Layerwise>{},
      sg::Options{.replicas = sg::Replicas::even(&members, 1)});
}

void measure_memory(benchmark::State& state, int members) {
  auto const shape =
      vgg::ModelShape{.width = 8, .minibatch = {16, static_cast<std::size_t>(members)}};
  vgg::Batch batch;
  vgg::make_textures(1, 100, 10).training.draw(1, 0, shape.minibatch, batch);
  constexpr int steps = 10;
  std::array<double, 2> bytes{};
  double allocations = 0;
  for (std::size_t i = 0; i < 2; ++i) {
    auto train = group_of(members, shape, i == 0 ? "gpipe" : "1f1b");
    sg::run(train.step(batch));
    auto const before = bench::allocation_counts();
    for (int step = 0; step < steps; ++step) sg::run(train.step(batch));
    auto const after = bench::allocation_counts();
    allocations += static_cast<double>(after.operator_new + after.malloc - before.operator_new -
                                       before.malloc);
    bytes[i] = static_cast<double>(train.memory().activations);
  }
  for ([[maybe_unused]] auto _ : state) state.SetIterationTime(1e-9);
  state.counters["allocations"] = allocations;
  state.counters["steps"] = 2 * steps;
  state.counters["kept"] = bytes[1] / bytes[0];
}

/// Rows of what groups of examples/vgg allocate and keep, with as many microbatches as members.
void add_memory(std::vector<bench::Row>& rows) {
  for (int const members : {2, 4}) {
    std::string const name = bench::text("memory/members:%d", members);
    bench::add(name, 1, [=](benchmark::State& state) { measure_memory(state, members); });
    std::string const what = bench::text("examples/vgg, a group of %d", members);
    rows.push_back({"heap allocations per step after the first, " + what, name,
                    [=](bench::Results const& results) {
                      double const calls = results.counter(name, "allocations");
                      return bench::Line{
                          bench::text("%.0f calls of operator new and malloc in %.0f steps", calls,
                                      results.counter(name, "steps")),
                          "0", calls == 0 ? bench::Grade::passed : bench::Grade::failed};
                    }});
    rows.push_back({"activations under 1F1B over those under GPipe, " + what, name,
                    [=](bench::Results const& results) {
                      double const kept = results.counter(name, "kept");
                      bool const met = std::abs(kept * members - 1) < 0.03;
                      return bench::Line{bench::text("%.3f", kept),
                                         bench::text("1 / %d, but for 3 %%", members),
                                         met ? bench::Grade::passed : bench::Grade::failed};
                    }});
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
  add_memory(rows);
  return bench::run(argc, argv, rows);
}
