// SPDX-License-Identifier: Apache-2.0
#include "train.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include <stagger/cuda/loopback.hpp>
#include <stagger/report/format.hpp>
#include <stagger/report/progress.hpp>
#include <stagger/stagger.hpp>

#include "../by_work.hpp"
#include "../schedules.hpp"
#include "../text.hpp"
#include "layers.hpp"

namespace gpt {

namespace sg = stagger;

namespace {

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

constexpr sg::optimizer::AdamW adam{.beta2 = 0.98, .weight_decay = 0.05};
using DeviceAdam = sg::cuda::Enqueued<sg::optimizer::AdamW, gpu::LaunchAdam>;
using DeviceBatch = sg::Batch<gpu::DeviceTokens, gpu::DeviceTokens>;

ModelShape shape_of(Settings const& s) { return {s.layers, s.width, s.heads, s.context}; }

sg::Options options_of(Settings const& s) {
  return {.clip_norm = s.clip,
          .seed = static_cast<std::uint64_t>(s.seed),
          .deadline_s = 60,
          .recompute = s.recompute};
}

/// Host and GPU multiply in another order, and a GPU with fewer digits where it is asked to.
struct Tolerance {
  double loss;
  double norm;
};
Tolerance tolerance_of(std::string const& precision) {
  if (precision == "fp32") return {1e-5, 1e-3};
  return precision == "tf32" ? Tolerance{2e-3, 1e-2} : Tolerance{1e-2, 5e-2};
}

/// Into the memory that it had before, which a graph has the addresses of.
void upload(Batch const& from, DeviceBatch& to) {
  auto const copy = [](Tokens const& host, gpu::DeviceTokens& device) {
    device.resize_like(host);
    sg::cuda::check(cudaMemcpy(device.data(), host.data(), host.size(), cudaMemcpyHostToDevice),
                    "copy a batch");
  };
  to.inputs.resize(from.inputs.size());
  to.targets.resize(from.targets.size());
  for (std::size_t m = 0; m < from.inputs.size(); ++m) {
    copy(from.inputs[m], to.inputs[m]);
    copy(from.targets[m], to.targets[m]);
  }
  sg::cuda::check(cudaStreamSynchronize(nullptr), "copy a batch");
}

/// The same training on the host, each step from where the GPU stands.
class HostBeside {
 public:
  explicit HostBeside(Settings const& s)
      : host_(sg::Pipeline{make_model<float>(shape_of(s), static_cast<std::uint64_t>(s.seed))}
                  .on_one_device(adam, CrossEntropy<float>{}, options_of(s))),
        tolerance_(tolerance_of(s.precision)) {}

  /// Takes over the parameters of a step that is about to be taken.
  template <class Trainer> void start(Trainer& train) {
    auto const from = train.parameters();
    auto const to = host_.parameters();
    for (std::size_t i = 0; i < from.size(); ++i) {
      std::copy(from[i].value.begin(), from[i].value.end(), to[i].value.begin());
      for (std::size_t k = 0; k < 2; ++k)
        std::copy(from[i].state[k].begin(), from[i].state[k].end(), to[i].state[k].begin());
    }
    host_.resume(train.steps());
  }

  /// @return  what does not agree, in words; empty: nothing
  [[nodiscard]] std::string difference(Batch const& batch, double rate, sg::Metrics const& gpu) {
    host_.optimizer().rate = rate;
    auto const host = host_.step(batch);
    double const loss = std::abs(gpu.loss - host.loss) / host.loss;
    double const norm = std::abs(gpu.gradient_norm - host.gradient_norm) / host.gradient_norm;
    worst_loss_ = std::max(worst_loss_, loss);
    worst_norm_ = std::max(worst_norm_, norm);
    if (loss <= tolerance_.loss && norm <= tolerance_.norm) return "";
    char words[256];
    std::snprintf(words, sizeof words,
                  "step %lld has loss %.9g and norm %.9g on the GPU, %.9g and %.9g on the host; "
                  "tolerated are %g and %g of them",
                  static_cast<long long>(host_.steps()), gpu.loss, gpu.gradient_norm, host.loss,
                  host.gradient_norm, tolerance_.loss, tolerance_.norm);
    return words;
  }

  void report() const {
    std::printf("host and GPU agree: losses within %.2g, norms of gradients within %.2g\n",
                worst_loss_, worst_norm_);
  }

 private:
  decltype(sg::Pipeline{make_model<float>(ModelShape{}, 0)}.on_one_device(adam,
                                                                          CrossEntropy<float>{},
                                                                          sg::Options{})) host_;
  Tolerance tolerance_;
  double worst_loss_ = 0;
  double worst_norm_ = 0;
};

template <class T> Outcome train_as(Settings const& s, char const* sources) {
  Text const text(Text::read(s.text.empty() ? own_files(sources) : s.text),
                  static_cast<std::size_t>(s.context));
  auto const precision =
      s.precision == "tf32" ? gpu::Precision::tf32
                            : (s.precision == "bf16" ? gpu::Precision::bf16 : gpu::Precision::fp32);
  auto const benches = std::make_shared<gpu::Benches<T>>(precision);
  sg::cuda::GraphCounts counts;
  sg::cuda::Loopback device;
  device.capture = s.graph;
  device.counts = &counts;
  device.kernels = &gpu::parameter_kernels();
  auto train =
      sg::Pipeline{gpu::make_model<T>(shape_of(s), static_cast<std::uint64_t>(s.seed), benches)}
          .with(ByWork{work_of(shape_of(s)), static_cast<int>(s.stages)},
                Schedule::named(s.schedule, s.chunks, s.microbatches), DeviceAdam{adam},
                gpu::CrossEntropy<T>(benches), device, options_of(s));
  std::optional<HostBeside> host;
  if (s.compare) host.emplace(s);

  Batch batch;
  Batch held_out;
  DeviceBatch on_device;
  DeviceBatch held_out_on_device;
  batch.inputs.resize(static_cast<std::size_t>(s.microbatches));
  held_out.inputs.resize(static_cast<std::size_t>(s.microbatches));
  text.held_out(std::max<std::size_t>(128, held_out.inputs.size()), held_out);
  sg::report::Progress progress(stderr, sg::report::progress_options(stderr), s.steps, 0, now_s());
  double tokens = 0;
  double settled_s = 0;
  double settled_tokens = 0;
  for (std::int64_t step = 0; step < s.steps; ++step) {
    text.draw(static_cast<std::uint64_t>(s.seed), step, static_cast<std::size_t>(s.batch), batch);
    upload(batch, on_device);
    train.optimizer().rate = s.rate_at(step);
    if (host) host->start(train);
    auto const metrics = sg::run(train.step(on_device));
    tokens += static_cast<double>(s.batch * s.context);
    progress.update(step + 1, metrics.loss, tokens, now_s());
    if (step == 2) {  // memory is allocated, the graph is recorded
      settled_s = now_s();
      settled_tokens = tokens;
    }
    std::string const difference =
        host ? host->difference(batch, train.optimizer().rate, metrics) : "";
    if (difference.empty() && std::isfinite(metrics.loss)) continue;
    progress.finish();
    std::fprintf(
        stderr, "gpt: %s\n",
        difference.empty() ? "the loss is not finite; use a smaller --rate" : difference.c_str());
    return Outcome::differs;
  }
  double const wall_s = now_s() - settled_s;
  progress.finish();
  if (host) host->report();
  if (!host && tokens > settled_tokens && settled_tokens > 0)
    std::printf("%s bytes of text per second, in %s\n",
                sg::report::format_count((tokens - settled_tokens) / wall_s).c_str(),
                s.precision.c_str());
  if (s.graph)
    std::printf("graph: %llu recorded, %llu made, %llu taken over, %llu replayed\n",
                static_cast<unsigned long long>(counts.captures),
                static_cast<unsigned long long>(counts.instantiations),
                static_cast<unsigned long long>(counts.updates),
                static_cast<unsigned long long>(counts.replays));
  upload(held_out, held_out_on_device);
  std::printf("held-out loss %.4f nats per byte\n",
              sg::run(train.evaluate(held_out_on_device)).loss);
  return Outcome::finished;
}

}  // namespace

Outcome train_on_gpu(Settings const& settings, char const* sources) {
  static_cast<void>(sg::cuda::select_device(0));
  return settings.precision == "bf16" ? train_as<__nv_bfloat16>(settings, sources)
                                      : train_as<float>(settings, sources);
}

}  // namespace gpt
