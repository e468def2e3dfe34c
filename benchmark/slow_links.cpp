// SPDX-License-Identifier: Apache-2.0
// Groups of ranks that share layers, on threads with artificially slowed links.
//
// Four ranks on four threads train a small network on 16 images each: as four replicas, as two
// groups of 2, and as one group of 4, with as many microbatches as members. Values know which
// thread has made them; a thread that takes a value of another thread sleeps first. So each message
// takes the same time, whatever its size. Steps of the three alternate.

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/engine/groups.hpp>
#include <stagger/partition/layer_split.hpp>
#include <stagger/stagger.hpp>

#include <vgg/small.hpp>

#include "support/rows.hpp"

namespace {

namespace sg = stagger;

constexpr int ranks = 4;
constexpr std::size_t images = 16 * ranks;
constexpr int rounds = 5;
constexpr int steps = 4;  // of a round
constexpr std::array sizes{1, 2, 4};

std::chrono::microseconds delay{};
std::atomic<std::uint64_t> sleeps{0};

/// A tensor that takes its time from one thread to another.
struct Message {
  using Of = sg::detail::Columns<sg::Tensor<float>>;
  sg::Tensor<float> values;
  std::thread::id maker{};

  void made() { maker = std::this_thread::get_id(); }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return values.bytes(); }
  [[nodiscard]] std::size_t rows() const noexcept { return values.rows(); }
  void resize_rows(Message const& like, std::size_t n) { values.resize_rows(like.values, n); }
  void copy_rows(std::size_t at, Message const& from, std::size_t first, std::size_t n) {
    values.copy_rows(at, from.values, first, n);
  }
  [[nodiscard]] std::size_t columns() const { return Of::count(values); }
  void resize_block(Message const& like, sg::Block block) {
    Of::resize(values, like.values, block);
  }
  void copy_block(sg::Block at, Message const& from, sg::Block first, sg::Block size) {
    take(at, from, first, size, false);
  }
  void add_block(sg::Block at, Message const& from, sg::Block first, sg::Block size) {
    take(at, from, first, size, true);
  }

 private:
  void take(sg::Block at, Message const& from, sg::Block first, sg::Block size, bool adds) {
    if (from.maker != std::this_thread::get_id()) {
      std::this_thread::sleep_for(delay);
      sleeps.fetch_add(1);
    }
    sg::detail::BlockSource const source{&from.values, first, at.columns, size.columns, adds};
    Of::take(values, at.rows, size.rows, &source, 1);
  }
};

/// A layer of tensors, as one of messages.
template <class Layer> struct Linked : Layer {
  using Input = Message;
  using Output = Message;
  using Saved = typename Layer::Saved;
  explicit Linked(Layer layer) : Layer(std::move(layer)) {}

  void forward(sg::Context& context, Message const& x, Message& y, Saved& saved) const {
    Layer::forward(context, x.values, y.values, saved);
    y.made();
  }
  void backward_input(sg::Context& context, Message const& x, Message const& dy, Message& dx,
                      Saved& saved) const {
    Layer::backward_input(context, x.values, dy.values, dx.values, saved);
    dx.made();
  }
  void backward_weight(sg::Context& context, Message const& x, Message const& dy,
                       Saved& saved) const
    requires sg::HasBackwardWeight<Layer>
  {
    Layer::backward_weight(context, x.values, dy.values, saved);
  }
  [[nodiscard]] Linked part(int member, int members, sg::SplitBy by) const
    requires sg::SplittableLayer<Layer>
  {
    return Linked(Layer::part(member, members, by));
  }
};

struct CrossEntropy {
  using policy_tag = sg::LossTag;
  using Target = sg::Tensor<std::int32_t>;
  sg::loss::CrossEntropy<float> of{};
  [[nodiscard]] double terms(Target const& target) const { return of.terms(target); }
  [[nodiscard]] double value(sg::Context& context, Message const& y, Target const& target) const {
    return of.value(context, y.values, target);
  }
  double value_and_gradient(sg::Context& context, Message const& y, Target const& target,
                            double scale, Message& dy) const {
    double const sum = of.value_and_gradient(context, y.values, target, scale, dy.values);
    dy.made();
    return sum;
  }
};

auto make_pipeline(int members) {
  return sg::Pipeline{vgg::small::make_model(
                          1, [](auto layer) { return Linked<decltype(layer)>(std::move(layer)); })}
      .with(sg::partition::LayerSplit{.group = members}, sg::optimizer::Sgd{.rate = 0.02},
            CrossEntropy{}, sg::host::Threads{ranks}, sg::Options{.replicas = {ranks}});
}
using Train = decltype(make_pipeline(1));

sg::Batch<Message, sg::Tensor<std::int32_t>> draw(vgg::small::Textures const& textures,
                                                  std::int64_t step, int members) {
  auto drawn = textures.draw(1, step, {images, static_cast<std::size_t>(members)});
  sg::Batch<Message, sg::Tensor<std::int32_t>> batch;
  for (auto& values : drawn.inputs) batch.inputs.push_back({std::move(values), {}});
  batch.targets = std::move(drawn.targets);
  return batch;
}

void measure(benchmark::State& state, int delay_us) {
  delay = std::chrono::microseconds(delay_us);
  vgg::small::Textures const textures(1);
  std::vector<Train> trains;
  for (int const members : sizes) trains.push_back(make_pipeline(members));
  for ([[maybe_unused]] auto _ : state) {
    std::array<std::vector<double>, sizes.size()> times;
    std::array<double, sizes.size()> first{}, last{};
    std::array<std::uint64_t, sizes.size()> slept{};
    std::int64_t step = 0;
    for (int round = -1; round < rounds; ++round, step += steps)
      for (std::size_t k = 0; k < sizes.size(); ++k) {
        std::uint64_t const before = sleeps.load();
        double took_s = 0;
        for (int i = 0; i < steps; ++i) {
          auto const batch = draw(textures, step + i, sizes[k]);
          double const start_s = bench::now_s();
          last[k] = sg::run(trains[k].step(batch)).loss;
          took_s += bench::now_s() - start_s;
          if (step + i == 0) first[k] = last[k];
        }
        slept[k] += sleeps.load() - before;
        if (round >= 0) times[k].push_back(took_s / steps);
      }
    for (std::size_t k = 0; k < sizes.size(); ++k) {
      std::string const group = std::to_string(sizes[k]);
      auto const traffic = trains[k].traffic();
      if (slept[k] != traffic.of(sg::TrafficKind::shared_activations).messages +
                          traffic.of(sg::TrafficKind::shared_gradients).messages)
        return state.SkipWithError("not every message was delayed once");
      state.counters["step_ms" + group] = 1e3 * bench::median(times[k]);
      state.counters["loss" + group] = last[k] / first[k];
    }
    state.SetIterationTime(bench::median(times[0]));
  }
}

bench::Row row(int delay_us) {
  std::string const name = bench::text("slow/us:%d", delay_us);
  return {bench::text("4 ranks on 4 threads, %.1f ms a message: 4 replicas, groups of 2, one of 4",
                      1e-3 * delay_us),
          name, [name](bench::Results const& results) {
            std::array<double, sizes.size()> ms{};
            bool learns = true;
            std::string measured;
            for (std::size_t k = 0; k < sizes.size(); ++k) {
              std::string const group = std::to_string(sizes[k]);
              ms[k] = results.counter(name, "step_ms" + group);
              learns = learns && results.counter(name, "loss" + group) < 1;
              measured += bench::text("%s%.0f", k == 0 ? "" : ", ", 1e3 * images / ms[k]);
            }
            double const growth = (ms[2] - ms[0]) / (ms[1] - ms[0]);
            bool const order = ms[0] < ms[1] && ms[1] < ms[2];
            return bench::Line{
                measured + bench::text(" images/s; 4 members lose %.1f times the time that 2 lose; "
                                       "%s",
                                       growth, learns ? "all learn" : "not all learn"),
                "in this order, more than 3 times",
                order && growth > 3 && learns ? bench::Grade::passed : bench::Grade::failed};
          }};
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<bench::Row> rows;
  for (int const delay_us : {200, 1000}) {
    bench::add(bench::text("slow/us:%d", delay_us), 1,
               [=](benchmark::State& state) { measure(state, delay_us); });
    rows.push_back(row(delay_us));
  }
  return bench::run(argc, argv, rows);
}
