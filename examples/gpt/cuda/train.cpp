// SPDX-License-Identifier: Apache-2.0
#include "train.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <stagger/cuda/gpus.hpp>
#include <stagger/engine/groups.hpp>
#include <stagger/partition/layer_split.hpp>
#include <stagger/stagger.hpp>

#include "../run.hpp"
#include "batch.hpp"
#include "forecast.hpp"
#include "layers.hpp"
#include "layers/by_work.hpp"

namespace gpt {

namespace {

constexpr sg::optimizer::AdamW adam{.beta2 = 0.98, .weight_decay = 0.05};
using DeviceAdam = sg::cuda::Enqueued<sg::optimizer::AdamW>;
using gpu::DeviceBatch;

sg::Options options_of(Settings const& s) {
  return {.clip_norm = s.clip,
          .seed = static_cast<std::uint64_t>(s.seed),
          .deadline_s = 60,
          .recompute = s.recompute};
}

sg::partition::Cuts cuts_of(RunConfig const& config) {
  if (config.planned) return config.planned->cuts;
  Settings const& s = config.s;
  return {
      ByWork{work_of(shape_of(s)), static_cast<int>(s.stages)}.cuts(static_cast<int>(s.chain()))};
}

/// Largest relative differences between host and GPU, which sum in different orders; tf32 and bf16
/// also have fewer digits.
struct Tolerance {
  double loss;
  double norm;
};
Tolerance tolerance_of(std::string const& precision) {
  if (precision == "fp32") return {1e-5, 1e-3};
  return precision == "tf32" ? Tolerance{2e-3, 1e-2} : Tolerance{1e-2, 5e-2};
}

template <class T>
auto make_pipeline(RunConfig const& config, std::shared_ptr<gpu::Workspaces<T>> const& workspaces,
                   sg::cuda::GraphCounts* counts) {
  Settings const& s = config.s;
  sg::cuda::Gpus device;
  device.devices = {0};
  device.capture = s.graph;
  device.counts = counts;
  device.kernels = &sg::cuda::parameter_kernels;
  sg::Options options = options_of(s);
  options.replicas = replicas_of(config);
  sg::partition::LayerSplit<> const split{
      .group = static_cast<int>(s.tensor_parallel), .over = cuts_of(config), .threshold = 0};
  return sg::Pipeline{
      gpu::make_model<T>(shape_of(s), static_cast<std::uint64_t>(s.seed), workspaces)}
      .with(split, schedule_of(config), DeviceAdam{adam}, gpu::CrossEntropy<T>(workspaces), device,
            options);
}

template <class T>
using DeviceTrainer = decltype(make_pipeline<T>(std::declval<RunConfig const&>(),
                                                std::shared_ptr<gpu::Workspaces<T>>(), nullptr));

/// Runs each step on the host as well, from the parameters that the GPU has before it.
template <class T> class HostComparison {
 public:
  explicit HostComparison(RunConfig const& config)
      : host_(sg::Pipeline{
            make_model<float>(shape_of(config.s), static_cast<std::uint64_t>(config.s.seed))}
                  .on_one_device(adam, CrossEntropy<float>{}, options_of(config.s))),
        tolerance_(tolerance_of(config.s.precision)) {}

  void start(DeviceTrainer<T>&) const noexcept {}

  /// Copies the parameters from the GPU before a step.
  void begin_step(DeviceTrainer<T>& train) {
    auto const from = train.parameters();
    auto const to = host_.parameters();
    for (std::size_t i = 0; i < from.size(); ++i) {
      std::copy(from[i].value.begin(), from[i].value.end(), to[i].value.begin());
      for (std::size_t k = 0; k < 2; ++k)
        std::copy(from[i].state[k].begin(), from[i].state[k].end(), to[i].state[k].begin());
    }
    host_.resume(train.steps());
  }

  /// @return  a sentence about the difference; empty if host and GPU agree
  [[nodiscard]] std::string difference(DeviceTrainer<T>& train, Batch const& batch,
                                       sg::Metrics const& gpu) {
    host_.optimizer().rate = train.optimizer().rate;
    auto const host = host_.step(batch);
    double const loss = std::abs(gpu.loss - host.loss) / host.loss;
    double const norm = std::abs(gpu.gradient_norm - host.gradient_norm) / host.gradient_norm;
    worst_loss_ = std::max(worst_loss_, loss);
    worst_norm_ = std::max(worst_norm_, norm);
    if (loss <= tolerance_.loss && norm <= tolerance_.norm) return "";
    char line[256];
    std::snprintf(line, sizeof line,
                  "step %lld has loss %.9g and norm %.9g on the GPU, %.9g and %.9g on the host; "
                  "tolerated are %g and %g of them",
                  static_cast<long long>(host_.steps()), gpu.loss, gpu.gradient_norm, host.loss,
                  host.gradient_norm, tolerance_.loss, tolerance_.norm);
    return line;
  }

  void report() const {
    std::printf("host and GPU agree: losses within %.2g, norms of gradients within %.2g\n",
                worst_loss_, worst_norm_);
  }

 private:
  decltype(sg::Pipeline{make_model<float>(ModelShape{}, 0)}.on_one_device(
      adam, CrossEntropy<float>{}, sg::Options{})) host_;
  Tolerance tolerance_;
  double worst_loss_ = 0;
  double worst_norm_ = 0;
};

/// All ranks on GPU 0, each on a stream of its own.
/// @tparam T  type of activations: float or __nv_bfloat16
template <class T> class GpuPlatform {
 public:
  using Trainer = DeviceTrainer<T>;
  using Comparison = HostComparison<T>;

  explicit GpuPlatform(Settings const& s)
      : workspaces_(std::make_shared<gpu::Workspaces<T>>(gpu::precision_of(s.precision))),
        graph_(s.graph) {
    gpu::require_kernels();
  }

  void require_memory(Settings const& s) const {
    static_cast<void>(sg::cuda::select_device(0, gpu::memory_need(s)));
  }

  [[nodiscard]] Trainer make(RunConfig const& config) {
    return make_pipeline<T>(config, workspaces_, &counts_);
  }

  [[nodiscard]] bool is_first_process() const noexcept { return true; }
  [[nodiscard]] bool none_interrupted() const noexcept { return interrupted == 0; }
  [[nodiscard]] bool any_process(bool here) const noexcept { return here; }
  [[nodiscard]] std::string describe_devices(RunConfig const& config) const {
    return sg::counted(config.s.ranks(), "stream") + " of GPU 0 in " + config.s.precision;
  }

  [[nodiscard]] Forecast forecast(Settings const& s, Text const& text) const {
    return gpu::forecast(s, text);
  }
  [[nodiscard]] std::string compared(Forecast const& forecast, Record const& record,
                                     Trainer&) const {
    return gpu::compared(forecast, record.step_s(), record.fastest_s());
  }

  /// With graphs, few steps are timed, since a timed step is not replayed as a graph.
  [[nodiscard]] std::int64_t recorded_steps(Settings const& s) const noexcept {
    return s.graph ? 5 : static_cast<std::int64_t>(Record::kept);
  }

  [[nodiscard]] sg::Metrics step(Trainer& train, Batch const& batch, bool recorded) {
    gpu::upload(batch, batch_);
    double const begin_s = now_s();
    auto const metrics = sg::run(train.step(batch_));
    double const wall_s = now_s() - begin_s;
    ++taken_;
    if (taken_ <= settling || (graph_ && recorded)) return metrics;
    double bytes = 0;
    for (auto const& tokens : batch.inputs) bytes += static_cast<double>(tokens.size());
    bytes_ += bytes;
    wall_s_ += wall_s;
    return metrics;
  }

  [[nodiscard]] double held_out_loss(Trainer& train, Batch const& batch) const {
    DeviceBatch on_device;
    gpu::upload(batch, on_device);
    train.record(false);
    return sg::run(train.evaluate(on_device)).loss;
  }

  [[nodiscard]] float const* logits(Trainer& train, Tokens const& window) {
    gpu::upload(window, window_[0]);
    (void)sg::run(train.predict(window_, logits_));
    logits_here_.resize(logits_[0].size());
    sg::cuda::check(cudaMemcpy(logits_here_.data(), logits_[0].data(),
                               logits_here_.size() * sizeof(T), cudaMemcpyDeviceToHost),
                    "fetch what the model predicts");
    logits_as_float_.assign(logits_here_.begin(), logits_here_.end());
    return logits_as_float_.data();
  }

  void report(Settings const& s) const {
    if (wall_s_ > 0 && !s.compare)
      std::printf("%s bytes of text per second, in %s\n",
                  sg::report::format_count(bytes_ / wall_s_).c_str(), s.precision.c_str());
    if (s.graph)
      std::printf(
          "graph: %llu recorded, %llu made, %llu taken over, %llu replayed; the steps of the table "
          "were enqueued, since a graph has no times of its actions\n",
          static_cast<unsigned long long>(counts_.captures),
          static_cast<unsigned long long>(counts_.instantiations),
          static_cast<unsigned long long>(counts_.updates),
          static_cast<unsigned long long>(counts_.replays));
  }

 private:
  static constexpr int settling = 3;  // steps until memory is allocated and the graph captured

  std::shared_ptr<gpu::Workspaces<T>> workspaces_;
  bool graph_;
  sg::cuda::GraphCounts counts_;
  DeviceBatch batch_;
  std::vector<gpu::DeviceTokens> window_{1};
  std::vector<typename Trainer::Output> logits_{1};
  std::vector<T> logits_here_;
  std::vector<float> logits_as_float_;
  int taken_ = 0;
  double bytes_ = 0;
  double wall_s_ = 0;
};

}  // namespace

Outcome train_on_gpu(Settings const& settings, char const* sources) {
  listen_for_interrupts();
  if (settings.precision == "bf16") return Run<GpuPlatform<__nv_bfloat16>>(settings, sources)();
  return Run<GpuPlatform<float>>(settings, sources)();
}

}  // namespace gpt
