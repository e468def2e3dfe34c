// SPDX-License-Identifier: Apache-2.0
// Peak memory of activations under 1F1B, in bytes: as counted by the stages, as held by the engine,
// and as predicted by the schedule. It must not grow with the number of microbatches.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <stagger/schedule/proof/evaluate.hpp>
#include <stagger/stagger.hpp>

#include "support/empty.hpp"
#include "support/rows.hpp"

namespace {

constexpr int ranks = 8;
constexpr int microbatch_counts[] = {8, 32, 128};
constexpr std::size_t elements = 16 * 1024;  // floats of one activation

/// A message that counts as 0 bytes, so that the engine's memory consists only of activations.
struct Signal {
  [[nodiscard]] static std::uint64_t bytes() { return 0; }
};

/// Counts the bytes that one stage keeps from forward to backward.
struct Live {
  std::uint64_t now = 0;
  std::uint64_t peak = 0;
};

struct KeepingStage {
  using Input = Signal;
  using Output = Signal;
  struct Saved {
    stagger::Tensor<> values;
    [[nodiscard]] std::uint64_t bytes() const { return values.bytes(); }
  };
  std::shared_ptr<Live> live = std::make_shared<Live>();

  void forward(stagger::Context&, Signal const&, Signal&, Saved& saved) {
    saved.values.resize({elements});
    saved.values.fill(1);
    live->now += saved.bytes();
    live->peak = std::max(live->peak, live->now);
  }
  void backward(stagger::Context&, Signal const&, Signal const&, Signal&, Saved& saved) {
    live->now -= saved.bytes();
  }
};

struct SignalLoss {
  using policy_tag = stagger::LossTag;
  using Target = int;
  double terms(int const&) const { return 1; }
  double value(stagger::Context&, Signal const&, int const&) const { return 0; }
  double value_and_gradient(stagger::Context&, Signal const&, int const&, double, Signal&) const {
    return 0;
  }
};

std::string name_of(int microbatches) { return "live/1F1B/M:" + std::to_string(microbatches); }

void add_count(int microbatches) {
  bench::add(name_of(microbatches), 1, [=](benchmark::State& state) {
    std::vector<KeepingStage> stages(ranks);
    std::vector<std::shared_ptr<Live>> live;
    for (auto const& stage : stages) live.push_back(stage.live);
    auto train = stagger::Pipeline{std::move(stages)}.with(stagger::schedule::OneFOneB{},
                                                           SignalLoss{}, stagger::host::Threads{2});
    stagger::Batch<Signal, int> batch;
    batch.inputs.resize(static_cast<std::size_t>(microbatches));
    batch.targets.resize(static_cast<std::size_t>(microbatches));
    bench::time_each(state, [&] { stagger::run(train.step(batch)); });

    auto const table =
        stagger::schedule::OneFOneB{}.table({.ranks = ranks, .microbatches = microbatches});
    auto const said =
        evaluate(table, {.each = {.activation_bytes = elements * sizeof(float)}}).peak_bytes;
    double off = 0;  // over all ranks
    for (std::size_t r = 0; r < said.size(); ++r)
      off += std::abs(static_cast<double>(live[r]->peak) - said[r]);
    std::uint64_t counted = 0;
    for (auto const& one : live) counted += one->peak;
    state.counters["said"] = std::accumulate(said.begin(), said.end(), 0.0);
    state.counters["counted"] = static_cast<double>(counted);
    state.counters["held"] = static_cast<double>(train.memory().activations);
    state.counters["off"] = off;
  });
}

}  // namespace

int main(int argc, char** argv) {
  for (int const microbatches : microbatch_counts) add_count(microbatches);
  return bench::run(argc, argv,
                    {{"peak live activations, 1F1B, 8 ranks, M=8, 32, 128", "live/1F1B/",
                      [](bench::Results const& results) {
                        bool equal = true;
                        std::string measured;
                        double const said = results.counter(name_of(microbatch_counts[0]), "said");
                        for (int const microbatches : microbatch_counts) {
                          double const counted = results.counter(name_of(microbatches), "counted");
                          equal = equal && results.counter(name_of(microbatches), "said") == said &&
                                  counted == said &&
                                  results.counter(name_of(microbatches), "held") == said &&
                                  results.counter(name_of(microbatches), "off") == 0;
                          measured += bench::text("%s%.0f", measured.empty() ? "" : ", ", counted);
                        }
                        return bench::Line{measured + " bytes",
                                           bench::text("%.0f bytes, as the schedule says", said),
                                           equal ? bench::Grade::passed : bench::Grade::failed};
                      }}});
}
