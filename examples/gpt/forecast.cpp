// SPDX-License-Identifier: Apache-2.0
#include "forecast.hpp"

#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/host/probe.hpp>
#include <stagger/program/lay_out.hpp>
#include <stagger/report/format.hpp>
#include <stagger/report/table.hpp>
#include <stagger/stagger.hpp>
#include <stagger/train/footprint.hpp>
#include <stagger/train/planned.hpp>
#include <stagger/train/profiler.hpp>

#include "model/model.hpp"
#include "planning.hpp"

namespace gpt {

namespace sg = stagger;

namespace {

auto make_one(Settings const& s) {
  return sg::Pipeline{make_model<float>({s.layers, s.width, s.heads, s.context},
                                        static_cast<std::uint64_t>(s.seed))}
      .on_one_device(CrossEntropy<float>{}, sg::optimizer::AdamW{});
}
using One = decltype(make_one(std::declval<Settings const&>()));

/// Measures the time to add one byte of gradients to another array, in seconds.
double add_s() {
  std::vector<float> to(1U << 20), from(1U << 20, 1.0F);
  double best = 1;
  for (int pass = 0; pass < 9; ++pass) {
    auto const begin = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
    std::atomic_signal_fence(std::memory_order_seq_cst);
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return (best + 1e-9 * to.back()) / static_cast<double>(to.size() * sizeof(float));
}

/// Measures the link between two threads; a typical one if the machine is too busy to measure it.
sg::cluster::Link link() {
  for (int attempt = 0; attempt < 3; ++attempt) {
    try {
      return sg::host::probe(0.3).link();
    } catch (sg::Error const&) {  // noise: the times do not grow with the number of bytes
    }
  }
  std::fputs(
      "gpt: warning: the machine is too busy to measure how fast threads pass bytes on; 1 us "
      "and 5 GB/s are taken\n",
      stderr);
  return {.alpha_s = 1e-6, .bytes_per_s = 5e9};
}

/// The threads of this machine as devices of a cluster. One replica of a stage adds up the
/// gradients of all.
sg::cluster::Cluster machine(int threads) {
  auto cluster = sg::host::this_machine({}, threads);
  cluster.intra.front() = link();
  if (threads < 2) return cluster;
  double const each = add_s();
  auto& rate = cluster.intra.front().all_reduce_bytes_per_s;
  rate.assign(2, 1e9);
  for (int r = 2; r <= threads; ++r) rate.push_back(2 / (r * each));
  return cluster;
}

/// Measures the layers of the model on all threads at once, as they run in a pipeline: threads
/// share caches, memory bandwidth and, on some machines, cores.
class HostLayerTimer final : public LayerTimer {
 public:
  HostLayerTimer(Settings const& s, Text const& text) : s_(s), text_(text) {
    for (std::int64_t t = 0; t < s.threads; ++t) ones_.push_back(make_one(s));
  }

  /// Times of the layers for a microbatch of `sequences`: the mean over the threads' medians.
  [[nodiscard]] sg::cluster::Profile profile(int sequences, double budget_s) override {
    auto const batch = some(sequences);
    auto once = measure(batch, sequences, {.repeats = 1, .discarded = 1});
    double pass_s = 0;
    for (auto const& l : once.layers) pass_s += l.forward_s + l.backward_s;
    int const repeats =
        std::clamp(static_cast<int>(budget_s / std::max(pass_s, 1e-9)), pass_s > 2 ? 1 : 5, 200);
    return measure(batch, sequences, {.repeats = repeats, .discarded = pass_s > 2 ? 0 : 1});
  }

  /// @return  [layers] seconds of an optimizer step
  [[nodiscard]] std::vector<double> updates() override {
    std::vector<std::vector<double>> all(ones_.size());
    together([&](std::size_t t) {
      all[t] = sg::Profiler({.repeats = 9, .discarded = 2}).update_seconds(ones_[t]);
    });
    std::vector<double> mean(all.front().size());
    for (auto const& one : all)
      for (std::size_t l = 0; l < mean.size(); ++l)
        mean[l] += one[l] / static_cast<double>(all.size());
    return mean;
  }

  [[nodiscard]] sg::cluster::Cluster cluster() override {
    return machine(static_cast<int>(s_.threads));
  }

  /// Memory of each layer for a microbatch of `sequences`.
  [[nodiscard]] sg::Footprint const& footprint(std::size_t sequences) {
    auto const known = footprints_.find(sequences);
    if (known != footprints_.end()) return known->second;
    auto const batch = some(static_cast<int>(sequences));
    return footprints_[sequences] =
               sg::Profiler().footprint(ones_.front(), batch.inputs[0], batch.targets[0]);
  }

 private:
  [[nodiscard]] Batch some(int sequences) const {
    Batch batch;
    batch.inputs.resize(1);
    text_.draw(static_cast<std::uint64_t>(s_.seed), 0, static_cast<std::size_t>(sequences), batch);
    return batch;
  }

  template <class Work> void together(Work work) {
    std::barrier start(static_cast<std::ptrdiff_t>(ones_.size()));
    auto const run = [&](std::size_t t) {
      start.arrive_and_wait();
      work(t);
    };
    std::vector<std::jthread> others;
    for (std::size_t t = 1; t < ones_.size(); ++t) others.emplace_back(run, t);
    run(0);
  }

  [[nodiscard]] sg::cluster::Profile measure(Batch const& batch, int sequences,
                                             sg::ProfilerOptions options) {
    options.samples = sequences;
    options.name = "gpt";
    std::vector<sg::cluster::Profile> all(ones_.size());
    together([&](std::size_t t) {
      all[t] = sg::Profiler(options).measure(ones_[t], batch.inputs[0], batch.targets[0]);
    });
    auto mean = all.front();
    for (std::size_t l = 0; l < mean.layers.size(); ++l) {
      auto& of = mean.layers[l];
      of.forward_s = of.backward_s = 0;
      of.backward_weight_s.reset();
      for (auto const& one : all) {
        of.forward_s += one.layers[l].forward_s / static_cast<double>(all.size());
        of.backward_s += one.layers[l].backward_s / static_cast<double>(all.size());
      }
    }
    return mean;
  }

  Settings const& s_;
  Text const& text_;
  std::vector<One> ones_;  // [threads]
  std::map<std::size_t, sg::Footprint> footprints_;
};

[[nodiscard]] sg::Memory memory_of(sg::plan::Plan const& p, Settings const& s,
                                   HostLayerTimer& timer) {
  auto const run = sg::planned(p);
  auto const program =
      sg::lay_out(run.schedule.table({.ranks = static_cast<int>(p.stages.size()),
                                      .microbatches = run.microbatches}),
                  {.recompute = run.options.recompute, .replicas = &run.options.replicas});
  auto const M = static_cast<std::size_t>(p.microbatches);
  auto const batch = static_cast<std::size_t>(s.batch);
  std::vector<std::size_t> rows;
  for (std::size_t m = 0; m < M; ++m) rows.push_back(batch / M + (m < batch % M ? 1 : 0));
  return sg::predicted_memory(
      program, run.cuts.first_layers, sg::optimizer::AdamW::states, rows,
      [&](std::size_t n) -> sg::Footprint const& { return timer.footprint(n); });
}

std::string difference(std::uint64_t predicted, std::uint64_t measured) {
  if (predicted == measured) return "exact";
  auto const more = static_cast<long long>(measured) - static_cast<long long>(predicted);
  return (more > 0 ? "+" : "") + std::to_string(more) + " B";
}

}  // namespace

Forecast forecast(Settings const& s, Text const& text) {
  HostLayerTimer timer(s, text);
  auto result = planned_by(s, timer);
  result.memory = memory_of(result.plan, s, timer);
  return result;
}

std::string compared(Forecast const& f, double step_s, double fastest_s, sg::Memory const& memory) {
  auto table = compared_times(f, step_s, fastest_s);
  auto const bytes = [&](char const* what, std::uint64_t predicted, std::uint64_t measured) {
    table.add({what, sg::report::format_bytes(static_cast<double>(predicted)),
               sg::report::format_bytes(static_cast<double>(measured)),
               difference(predicted, measured)});
  };
  bytes("parameters, gradients, states", f.memory.parameters, memory.parameters);
  bytes("activations", f.memory.activations, memory.activations);
  bytes("their gradients", f.memory.gradients, memory.gradients);
  bytes("scratch", f.memory.scratch, memory.scratch);
  std::string text = table.str();
  double load = 0;
  if (::getloadavg(&load, 1) == 1)
    text += "load of the machine " + sg::report::format_fixed(load, 1) + ", processors " +
            std::to_string(std::max(1U, std::thread::hardware_concurrency())) + "\n";
  return text;
}

}  // namespace gpt
