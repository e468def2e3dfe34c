// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Sums over GPUs of the squares of gradients, before an update.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include <stagger/core/list.hpp>
#include <stagger/cuda/detail/distributed_state.hpp>
#include <stagger/cuda/detail/non_finite.hpp>
#include <stagger/cuda/detail/streams.hpp>
#include <stagger/cuda/kernels.hpp>

namespace stagger::cuda::detail {

/// The sums of squares of gradients, which every GPU gets before an update, and what follows from
/// them: how gradients are scaled, and whether they are finite.
/// A parameter's squares are added up on the GPU of the stage's first owner. Within a process its
/// sum is then copied to the other GPUs; between processes all GPUs are added up, of which all but
/// one have 0, so that the order does not matter.
class SquareSums {
 public:
  SquareSums(Streams& streams, ParameterKernels const* kernels, NonFiniteSteps const& non_finite)
      : streams_(streams), kernels_(kernels), non_finite_(non_finite) {}

  /// Whether the updates at the end of the step depend on the norm of all gradients.
  [[nodiscard]] bool wanted() const noexcept {
    Program const& program = machine().program();
    return program.training && program.flushes &&
           (machine().options().clip_norm.has_value() || non_finite_.looks());
  }

  /// Finds which GPU has which sums. Called once it is known which rank updates which layers.
  [[gnu::cold]] void load() {
    DistributedState const state{streams_.machine()};
    std::size_t const count = machine().model.parameter_count();
    sums_ = count + 1;
    in_passes_ = state.program().flushes && state.program().updates_early();
    for (std::size_t g = 0; g < gpus().size(); ++g) {
      gpus().select(g);
      auto& sums = gpus()[g].sums;
      sums.resize({sums_ + (in_passes_ ? count : 0)});
      if (machine().model.grouped == nullptr) continue;
      check(cudaMemset(sums.data(), 0, sums.size() * sizeof(double)),  // nobody counts copies
            "clear sums of squares");
      check(cudaStreamSynchronize(nullptr), "wait for the GPU");
    }
    own_.clear();
    std::size_t first = 0;  // parameters are numbered in layer order, and so are cells
    each_stage(state.program(), [&](int, IndexRange cells) {
      Run run{streams_.gpu_of(state.rank_of(cells.first)), first, 0};
      state.each_layer(cells.first, [&](std::size_t l, auto const*) {
        run.count += state.parameters(l).count();
      });
      first += run.count;
      if (run.count != 0) own_.push_back(run);
    });
  }

  /// Clears the sums if they are added up between processes, or over the passes of a step.
  void clear() {
    if (gpus().processes() == nullptr && !in_passes_) return;
    for (std::size_t g = 0; g < gpus().size(); ++g) {
      streams_.use(g);
      check(cudaMemsetAsync(gpus()[g].sums.data(), 0, sums_ * sizeof(double),
                            gpus()[g].main_stream.get()),
            "clear sums of squares");
    }
  }

  /// Gives all GPUs all sums, once the enqueued work of their ranks is done; ranks then wait for
  /// the sums.
  void share() const {
    if (gpus().size() == 1 && gpus().processes() == nullptr) return;
    streams_.join();
    if (gpus().processes() != nullptr) {
      gpus().processes()->all_reduce(std::span(gpus()[0].sums.data(), sums_));
    } else {
      for (std::size_t g = 1; g < gpus().size(); ++g) {
        streams_.record(gpus()[g].main_stream, streams_.event(g, streams_.numbers().start()));
        streams_.wait(gpus()[0].main_stream, streams_.event(g, streams_.numbers().start()));
      }
      for (auto const& run : own_)
        if (run.gpu != 0) copy(run, run.gpu, 0);
      for (std::size_t g = 1; g < gpus().size(); ++g)
        for (auto const& run : own_)
          if (run.gpu != g) copy(run, 0, g);
      streams_.follow(0);
    }
    streams_.fork();
  }

  /// Finds what a rank is to do with all gradients, for itself.
  void find_scale(std::size_t rank) const {
    streams_.use(streams_.gpu_of(rank));
    find_scale(rank, 0, machine().model.parameter_count());
  }
  /// Likewise with the gradients of a stage that it updates alone. In the passes of a step their sums
  /// are added up for the end of the step, so that all ranks learn there of a pass that has failed.
  void find_scale(std::size_t rank, Instruction const& update) const {
    auto& model = machine().model;
    IndexRange const layers = model.layers_of(update.stage);
    std::size_t const before = model.parameters_before(layers.first);
    std::size_t const first = before + (in_passes_ ? sums_ : 0);
    double* const sums = gpus()[streams_.gpu_of(rank)].sums.data();
    std::size_t end = first;
    for (std::size_t const l : layers) {
      auto& layer = model.parameters[l];
      for (std::size_t p = 0; p < layer.count(); ++p) layer.sum_squares(p, sums + end);
      end += layer.count();
    }
    if (end == first) return;
    find_scale(rank, first, end - first);
    if (in_passes_)
      check(kernels_->add(ElementType::f64, sums + before, sums + first, end - first,
                          streams_.compute(rank).get()),
            "add sums of squares");
  }
  /// What the ranks of this process have found in an iteration that is done:
  /// GradientScale::not_finite.
  [[nodiscard]] std::int64_t not_finite(std::size_t slot) const noexcept {
    std::int64_t found = 0;
    for (std::size_t r = 0; r < streams_.ranks() && found <= 0; ++r)
      if (streams_.own(r))
        if (auto const here = gpus()[streams_.gpu_of(r)].iteration.scale(r, slot).not_finite;
            here != 0)
          found = here;
    return found;
  }
  /// Likewise in any process, if stages update alone and so look alone; then all processes call it.
  [[nodiscard]] std::int64_t not_finite_anywhere(std::size_t slot) const {
    std::int64_t const found = not_finite(slot);
    if (machine().program().flushes || !non_finite_.looks() || gpus().processes() == nullptr)
      return found;
    double failed = found != 0 ? 1 : 0;
    gpus().processes()->add_up({&failed, 1});
    return failed != 0 ? 1 : 0;
  }
  /// The norm of the gradients of an iteration that is done; 0 without clipping.
  [[nodiscard]] double norm(std::size_t slot) const noexcept {
    if (!machine().options().clip_norm) return 0;
    std::size_t rank = 0;  // any of this process
    while (rank + 1 < streams_.ranks() && !streams_.own(rank)) ++rank;
    return streams_.own(rank) ? gpus()[streams_.gpu_of(rank)].iteration.scale(rank, slot).norm : 0;
  }

 private:
  struct Run {  // parameters that stand one after another
    std::size_t gpu;
    std::size_t first;
    std::size_t count;
  };

  [[nodiscard]] GpuSet& gpus() const noexcept { return streams_.gpus(); }
  [[nodiscard]] stagger::detail::Machine& machine() const noexcept { return streams_.machine(); }
  void find_scale(std::size_t rank, std::size_t first, std::size_t count) const {
    constexpr double no_limit = std::numeric_limits<double>::infinity();
    auto const& gpu = gpus()[streams_.gpu_of(rank)];
    check(kernels_->scale(gpu.sums.data() + first, count,
                          machine().options().clip_norm.value_or(no_limit),
                          gpu.iteration.place(rank).scale, streams_.compute(rank).get()),
          "find the scale of the gradients");
  }
  /// Enqueued on the first GPU's first stream.
  void copy(Run const& run, std::size_t from, std::size_t to) const {
    check(gpus().copy({gpus()[to].sums.data() + run.first, run.count * sizeof(double)}, to,
                      gpus()[from].sums.data() + run.first, from, gpus()[0].main_stream.get()),
          "copy sums of squares");
  }

  Streams& streams_;
  ParameterKernels const* kernels_;
  NonFiniteSteps const& non_finite_;
  List<Run> own_;
  std::size_t sums_ = 0;    // of parameters, and GradientScale::seen
  bool in_passes_ = false;  // some stages update in each pass of a step
};

}  // namespace stagger::cuda::detail
