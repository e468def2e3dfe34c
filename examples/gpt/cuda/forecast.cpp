// SPDX-License-Identifier: Apache-2.0
#include "forecast.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <stagger/cuda/gpus.hpp>
#include <stagger/cuda/stream.hpp>
#include <stagger/report/format.hpp>
#include <stagger/report/table.hpp>
#include <stagger/schedule/proof/peak_in_flight.hpp>
#include <stagger/stagger.hpp>
#include <stagger/train/profiler.hpp>

#include "../planning.hpp"
#include "../schedules.hpp"
#include "batch.hpp"
#include "layers.hpp"
#include "train.hpp"

namespace gpt::gpu {

namespace sg = stagger;

namespace {

constexpr double workspace_bytes_of_a_rank = 32.0 * (1U << 20U);

ModelShape shape_of(Settings const& s) { return {s.layers, s.width, s.heads, s.context}; }

double parameters_of(Settings const& s) {
  auto const width = static_cast<double>(s.width);
  return 12 * static_cast<double>(s.layers) * width * width +
         width * (2 * static_cast<double>(classes) + static_cast<double>(s.context));
}

/// Measures copies within the GPU, which is what messages between stages are.
sg::cluster::Link link() {
  constexpr std::size_t largest = std::size_t{1} << 24U;
  sg::cuda::Stream const stream;
  sg::cuda::Tensor<std::byte> from({largest});
  sg::cuda::Tensor<std::byte> to({largest});
  sg::cuda::TimedEvent start;
  sg::cuda::TimedEvent end;
  auto const seconds = [&](std::size_t bytes) {
    double best = 1;
    for (int turn = 0; turn < 7; ++turn) {
      start.record(stream);
      sg::cuda::check(
          cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, stream.get()),
          "copy memory");
      end.record(stream);
      sg::cuda::check(cudaStreamSynchronize(stream.get()), "copy memory");
      best = std::min(best, end.seconds_since(start));
    }
    return best;
  };
  double const small_s = seconds(64);
  double const large_s = std::max(seconds(largest), small_s + 1e-9);
  return {.alpha_s = small_s, .bytes_per_s = static_cast<double>(largest) / (large_s - small_s)};
}

template <class T>
sg::cluster::Profile measured(Settings const& s, Text const& text, int sequences, int repeats) {
  Batch batch;
  batch.inputs.resize(1);
  text.draw(static_cast<std::uint64_t>(s.seed), 0, static_cast<std::size_t>(sequences), batch);
  DeviceBatch on_device;
  upload(batch, on_device);
  auto const workspaces = std::make_shared<Workspaces<T>>(precision_of(s.precision));
  sg::cuda::Gpus device;
  device.devices = {0};
  device.kernels = &sg::cuda::parameter_kernels;
  auto train =
      sg::Pipeline{make_model<T>(shape_of(s), static_cast<std::uint64_t>(s.seed), workspaces)}.with(
          sg::partition::Even{static_cast<int>(s.chain())}, sg::schedule::GPipe{},
          sg::cuda::Enqueued<sg::optimizer::AdamW>{}, CrossEntropy<T>(workspaces), device,
          sg::Options{.deadline_s = 60, .record = true});
  return sg::Profiler({.repeats = repeats,
                       .discarded = 2,
                       .samples = sequences,
                       .name = "gpt",
                       .device = "gpu",
                       .layer_names = layer_names(s.layers)})
      .measure(train, on_device);
}

class GpuLayerTimer final : public LayerTimer {
 public:
  GpuLayerTimer(Settings const& s, Text const& text) : s_(s), text_(text), link_(link()) {}

  [[nodiscard]] sg::cluster::Profile profile(int sequences, double) override {
    return profile_on_gpu(s_, text_, sequences, 9);
  }

  /// AdamW reads four arrays and writes three, at the speed at which memory is copied.
  [[nodiscard]] std::vector<double> updates() override {
    std::vector<double> seconds;
    for (auto const& layer : profile_on_gpu(s_, text_, 1, 1).layers)
      seconds.push_back(3.5 * static_cast<double>(layer.parameter_bytes) / link_.bytes_per_s);
    return seconds;
  }

  /// settings.threads devices like this GPU, each with its share of the memory, since all ranks run
  /// on it.
  [[nodiscard]] sg::cluster::Cluster cluster() override {
    auto const found = sg::cuda::select_device(0);
    sg::cluster::Cluster result{
        .name = found.name, .devices = {}, .intra = {link_}, .inter = link_};
    result.devices.assign(
        static_cast<std::size_t>(s_.threads),
        {.kind = "gpu", .memory_bytes = found.free_bytes / static_cast<std::uint64_t>(s_.threads)});
    return result;
  }

 private:
  Settings const& s_;
  Text const& text_;
  sg::cluster::Link link_;
};

}  // namespace

void require_kernels() {
  constexpr int least = 80;  // compute capability that CMakeLists.txt compiles the kernels for
  auto const found = sg::cuda::select_device(0);
  if (found.compute_capability < least)
    throw sg::Error(sg::Errc::bad_configuration,
                    "GPU 0 (" + found.name + ") has compute capability " +
                        std::to_string(found.compute_capability / 10) + "." +
                        std::to_string(found.compute_capability % 10) +
                        ", and the kernels need 8.0 or more; leave --device cuda out");
}

sg::cuda::MemoryNeed memory_need(Settings const& s) {
  double const element = s.precision == "bf16" ? 2 : 4;
  auto const layers = static_cast<double>(s.layers);
  auto const width = static_cast<double>(s.width);
  auto const replicas = static_cast<double>(s.replicas);
  double const rows =  // per replica
      std::ceil(static_cast<double>(s.batch) / static_cast<double>(s.microbatches) / replicas) *
      static_cast<double>(s.context);
  double const shares = static_cast<double>(s.heads) * static_cast<double>(s.context);
  // HalfBlock::Saved and the input of each half block; `Workspace` has what the blocks of a rank share.
  // Each member of a group has norms and inputs of its own, and a share of the projections'.
  auto const members = static_cast<double>(s.tensor_parallel);
  double const inputs = members == 1 ? 1 : 3 * members;
  double const whole = members == 1 ? 4 : 8 * members;
  double const saved = s.recompute ? layers * rows * inputs * width
                                   : layers * rows * ((15 + whole) * width + shares);
  double const shared =
      rows * (3 * width + (4 * width + shares) / members) + (element < 4 ? 4 * width * width : 0);
  auto const table = Schedule::named(s.schedule, s.chunks, s.microbatches)
                         .table({.ranks = static_cast<int>(s.ranks()),
                                 .microbatches = static_cast<int>(s.microbatches),
                                 .chunks = static_cast<int>(s.chunks)});
  int pairs = 0;  // of a stage and a microbatch that is in flight there
  for (int const peak : sg::schedule::peak_in_flight(table)) pairs += peak;
  auto const bytes = [](double count) { return static_cast<std::uint64_t>(count); };
  sg::cuda::MemoryNeed need;
  need.fixed_bytes =
      bytes((12 + 4 * replicas) * parameters_of(s) +  // each replica has its own gradients
            replicas * members * static_cast<double>(s.ranks()) *
                (element * shared + workspace_bytes_of_a_rank));
  need.in_flight_bytes = bytes(replicas * element * saved);
  need.in_flight = static_cast<int>((pairs + s.stages - 1) / s.stages);
  return need;
}

Forecast forecast(Settings const& s, Text const& text) {
  GpuLayerTimer layers(s, text);
  return planned_by(s, layers);
}

std::string compared(Forecast const& f, double step_s, double fastest_s) {
  std::string text = compared_times(f, step_s, fastest_s).str();
  if (f.plan.stages.size() > 1) text += "predicted for a GPU for each stage; here they share one\n";
  return text;
}

}  // namespace gpt::gpu

namespace gpt {

stagger::cluster::Profile profile_on_gpu(Settings const& s, Text const& text, int sequences,
                                         int repeats) {
  gpu::require_kernels();
  return s.precision == "bf16" ? gpu::measured<__nv_bfloat16>(s, text, sequences, repeats)
                               : gpu::measured<float>(s, text, sequences, repeats);
}

}  // namespace gpt
