// SPDX-License-Identifier: Apache-2.0
// Groups of ranks that share layers, on threads.
//
//   vgg        a step of examples/vgg on 2 ranks on 2 threads, as one group that shares the dense
//              layers and as 2 replicas; steps of both alternate
//   exchange   2 ranks on 2 threads: from the end of the last member's layer to the beginning of the
//              last member's next one, where each takes a value of n bytes that both have columns
//              of (shard) or terms (sum)
//   copy       one memcpy of n bytes on each of 2 threads at once, from the vector that the other
//              has just written; measurements of both alternate
// The rows compare medians.

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/engine/groups.hpp>
#include <stagger/partition/layer_split.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/stagger.hpp>

#include "support/rows.hpp"
#include "vgg/images.hpp"
#include "vgg/model/model.hpp"

namespace {

namespace sg = stagger;
using Clock = std::chrono::steady_clock;

constexpr int rounds = 21;

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

/// @param group  1: two replicas
auto train_vgg(vgg::ModelShape const& shape, int group) {
  return sg::Pipeline{vgg::make_model<float>(shape, 1)}.with(
      sg::partition::LayerSplit{.group = group}, sg::schedule::OneFOneB{},
      sg::optimizer::Sgd{.rate = 0.01}, sg::loss::CrossEntropy<float>{}, sg::host::Threads{2},
      sg::Options{.replicas = {2}});
}

void measure_vgg(benchmark::State& state, std::ptrdiff_t width, std::size_t images) {
  vgg::ModelShape const shape{.width = width, .minibatch = {images, 2}};
  auto const data = vgg::make_textures(1, 100, 10);
  vgg::Batch batch;
  data.training.draw(1, 0, shape.minibatch, batch);
  auto shared = train_vgg(shape, 2);
  auto copies = train_vgg(shape, 1);
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

/// Seconds from the start of the first thread to the end of the last.
double copy_s(std::size_t bytes, std::array<std::array<std::vector<char>, 2>, 2>& all) {
  std::array<Clock::time_point, 2> begun, ended;
  std::barrier together(2);
  std::vector<std::thread> running;
  for (std::size_t t = 0; t < 2; ++t)
    running.emplace_back([&, t] {
      all[t][0].assign(bytes, static_cast<char>(t));
      all[t][1].resize(bytes);
      together.arrive_and_wait();
      begun[t] = Clock::now();
      std::memcpy(all[t][1].data(), all[1 - t][0].data(), bytes);
      benchmark::ClobberMemory();
      ended[t] = Clock::now();
    });
  for (auto& thread : running) thread.join();
  return seconds(std::max(ended[0], ended[1]) - std::min(begun[0], begun[1]));
}

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
  std::array<std::array<std::vector<char>, 2>, 2> vectors;
  for ([[maybe_unused]] auto _ : state) {
    std::vector<double> exchanges, copies;
    for (int round = -2; round < rounds; ++round) {
      sg::run(train.evaluate(batch));
      double const copied = copy_s(bytes, vectors);
      if (round < 0) continue;
      exchanges.push_back(seconds(std::max(times.began[0], times.began[1]) -
                                  std::max(times.ended[0], times.ended[1])));
      copies.push_back(copied);
    }
    state.SetIterationTime(bench::median(exchanges));
    state.counters["of_copy"] = bench::median(copies) / bench::median(exchanges);
  }
}

bench::Row vgg_row(std::string const& name, std::ptrdiff_t width) {
  return {
      bench::text("examples/vgg of width %td, 2 ranks on 2 threads, a group of 2 against 2 "
                  "replicas",
                  width),
      name, [=](bench::Results const& results) {
        double const share = results.counter(name, "of_replicas");
        return bench::Line{
            bench::text("%.1f ms, %.1f ms: %.2f of their throughput, median of the ratios; the "
                        "paper's cluster 0.95",
                        1e3 * results.time_s(name), results.counter(name, "replicas_ms"), share),
            "at least 0.85", share >= 0.85 ? bench::Grade::passed : bench::Grade::failed};
      }};
}

bench::Row exchange_row(std::string const& all, std::vector<int> const& sizes) {
  return {"what 2 members on 2 threads take from each other, " + all + ", 1, 4, 16, 64 MiB", all,
          [=](bench::Results const& results) {
            std::string times;
            double least = std::numeric_limits<double>::max();
            for (int const mib : sizes) {
              std::string const name = all + "/MiB:" + std::to_string(mib);
              double const share = results.counter(name, "of_copy");
              least = std::min(least, share);
              times += bench::text("%s%.2f ms (%.0f %%)", times.empty() ? "" : ", ",
                                   1e3 * results.time_s(name), 100 * share);
            }
            return bench::Line{times, "at least 85 % of the copy",
                               least >= 0.85 ? bench::Grade::passed : bench::Grade::failed};
          }};
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<bench::Row> rows;
  for (std::ptrdiff_t const width : {8, 64}) {
    std::string const name = "vgg/width:" + std::to_string(width);
    bench::add(name, 1,
               [=](benchmark::State& state) { measure_vgg(state, width, width == 8 ? 32 : 16); });
    rows.push_back(vgg_row(name, width));
  }
  std::vector<int> const sizes{1, 4, 16, 64};
  for (bool const sum : {false, true}) {
    std::string const all = sum ? "sum" : "shard";
    for (int const mib : sizes)
      bench::add(all + "/MiB:" + std::to_string(mib), 3, [=](benchmark::State& state) {
        measure_exchange(state, sum, static_cast<std::size_t>(mib) << 20U);
      });
    rows.push_back(exchange_row(all, sizes));
  }
  return bench::run(argc, argv, rows);
}
