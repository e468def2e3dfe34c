// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The data that a GPU keeps of an iteration: the numbers that are copied to it before and
///         back after, in one block for each direction, and the times of its actions.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include <stagger/cuda/kernels.hpp>
#include <stagger/cuda/stream.hpp>
#include <stagger/cuda/tensor.hpp>
#include <stagger/program/program.hpp>

namespace stagger::cuda::detail {

/// The numbers of the step and of the optimizer are copied to the GPU; losses and the norm of the
/// gradients are copied back.
class Iteration {
 public:
  /// Allocates what a program needs. Nothing is freed before the end.
  /// @param slots      iterations that may be in flight: each has a block of host memory of its own
  /// @param processes  of the pipeline; 0: this one
  /// @param seen       see GradientScale
  template <class Machine>
  [[gnu::cold]] void load(Machine const& machine, ParameterKernels const* kernels,
                          std::size_t slots, int processes, double* seen) {
    processes_ = processes;
    seen_ = seen;
    auto const up = [](std::size_t bytes) { return (bytes + 15) / 16 * 16; };
    std::size_t const ranks = machine.program().ranks.size();
    optimizer_bytes_ = machine.model.optimizer.enqueued_bytes;
    scales_ = 2 * up(sizeof(StepNumbers)) + up(optimizer_bytes_);
    losses_ = scales_ + ranks * sizeof(GradientScale);
    if (non_finite_.size() < ranks) {
      non_finite_.resize({ranks});
      check(cudaMemset(non_finite_.data(), 0, ranks * sizeof(NonFiniteMemory)),
            "clear memory of the GPU");
      check(cudaStreamSynchronize(nullptr), "wait for the GPU");
    }
    int const microbatches = machine.program().microbatches;
    auto const& parts = machine.options().replicas.parts();
    int replicas = 1;  // that may compute a loss of one microbatch
    for (auto const& part : parts) replicas = std::max(replicas, part.replicas);
    loss_count_ = static_cast<std::size_t>(microbatches) * static_cast<std::size_t>(replicas);
    bytes_ = up(losses_ + loss_count_ * sizeof(double));
    host_.resize(slots * bytes_);
    device_.resize({bytes_});
    places_.resize(ranks);
    std::size_t const scratch = kernels == nullptr ? 0 : kernels->scratch_size;
    if (scratch_.size() < ranks * scratch) scratch_.resize({ranks * scratch});
    for (std::size_t r = 0; r < ranks; ++r) {
      StepPlace& of_rank = places_[r];
      of_rank.numbers = reinterpret_cast<StepNumbers*>(device_.data());
      of_rank.optimizer = device_.data() + 2 * up(sizeof(StepNumbers));
      of_rank.scale = reinterpret_cast<GradientScale*>(device_.data() + scales_) + r;
      of_rank.losses = reinterpret_cast<double*>(device_.data() + losses_);
      if (r < parts.size()) of_rank.losses += parts[r].replica * microbatches;
      of_rank.scratch = scratch == 0 ? nullptr : scratch_.data() + r * scratch;
      of_rank.kernels = kernels;
      of_rank.refused = &refused_;
      of_rank.loss_on_device = &loss_on_device_;
    }
    passes_ = places_;
    for (StepPlace& of_rank : passes_) ++of_rank.numbers;
    loss_on_device_ = false;
  }

  [[nodiscard]] StepPlace const& place(std::size_t rank) const noexcept { return places_[rank]; }
  /// The same for the updates of stages that count each pass of a step as a step.
  [[nodiscard]] StepPlace const& pass(std::size_t rank) const noexcept { return passes_[rank]; }

  /// Writes the numbers that kernels of this iteration will read.
  /// @param steps  NonFiniteSteps
  template <class Machine, class Steps>
  void put(Machine const& machine, Steps const& steps, std::size_t slot) noexcept {
    refused_ = cudaSuccess;
    StepNumbers const numbers{steps.steps(), machine.options().seed};
    GradientScale scale;
    scale.period = steps.period();
    scale.skips = steps.skips() ? 1 : 0;
    scale.processes = steps.looks() && machine.program().flushes ? processes_ : 0;
    scale.seen = seen_;
    std::byte* const to = host_.data() + slot * bytes_;
    std::int64_t const passes = machine.program().flushes ? machine.program().microbatches : 1;
    StepNumbers const of_passes{passes * numbers.steps, numbers.seed};
    std::memcpy(to, &numbers, sizeof numbers);
    std::memcpy(to + sizeof numbers, &of_passes, sizeof of_passes);
    if (optimizer_bytes_ != 0)
      std::memcpy(to + 2 * sizeof numbers, machine.optimizer(), optimizer_bytes_);
    for (std::size_t r = 0; r < places_.size(); ++r) {
      if (steps.looks()) scale.memory = non_finite_.data() + r;
      std::memcpy(to + scales_ + r * sizeof scale, &scale, sizeof scale);
    }
    std::memset(to + losses_, 0, loss_count_ * sizeof(double));
    for (StepPlace& of_rank : places_) of_rank.steps = machine.steps();
    for (StepPlace& of_rank : passes_) of_rank.steps = passes * machine.steps();
  }
  /// The same, and enqueues their copy to the device.
  /// @param rank  any on this GPU
  template <class Machine, class Steps>
  void send(Machine const& machine, Steps const& steps, Stream const& stream, std::size_t slot,
            std::size_t rank) {
    put(machine, steps, slot);
    check(cudaMemcpyAsync(device_.data(), host_.data() + slot * bytes_, bytes_,
                          cudaMemcpyHostToDevice, stream.get()),
          "send the numbers of a step");
    if (steps.corrects() && rank < places_.size())
      check(places_[rank].kernels->begin(places_[rank].scale, places_[rank].numbers, stream.get()),
            "number a step");
  }
  /// Enqueues the copy back, after all work of the iteration. @return the result of CUDA
  [[nodiscard]] cudaError_t fetch(Stream const& stream, std::size_t slot) const noexcept {
    return cudaMemcpyAsync(host_.data() + slot * bytes_ + scales_, device_.data() + scales_,
                           bytes_ - scales_, cudaMemcpyDeviceToHost, stream.get());
  }

  /// [loss_count()] the losses that kernels of this device have computed; otherwise 0.
  [[nodiscard]] double const* losses(std::size_t slot) const noexcept {
    return reinterpret_cast<double const*>(host_.data() + slot * bytes_ + losses_);
  }
  /// One for each microbatch and replica of the last stage, replica by replica.
  [[nodiscard]] std::size_t loss_count() const noexcept { return loss_count_; }
  [[nodiscard]] bool has_losses() const noexcept { return loss_on_device_; }
  /// What a rank has found.
  [[nodiscard]] GradientScale scale(std::size_t rank, std::size_t slot) const noexcept {
    GradientScale scale;
    std::memcpy(&scale, host_.data() + slot * bytes_ + scales_ + rank * sizeof scale, sizeof scale);
    return scale;
  }

  /// The error of a call that CUDA refused after the step was decided.
  [[nodiscard]] cudaError_t refused() const noexcept { return refused_; }

 private:
  static_assert(sizeof(StepNumbers) == 16);
  std::size_t loss_count_ = 0;
  std::size_t optimizer_bytes_ = 0;
  std::size_t bytes_ = 0;   // of a block
  std::size_t scales_ = 0;  // offsets in both blocks
  std::size_t losses_ = 0;
  Pinned<std::byte> host_;  // [slots][bytes_]
  Tensor<std::byte> device_;
  Tensor<double> scratch_;              // [ranks] each with what a kernel needs
  Tensor<NonFiniteMemory> non_finite_;  // [ranks]
  std::vector<StepPlace> places_;       // [ranks]
  std::vector<StepPlace> passes_;       // [ranks]
  cudaError_t refused_ = cudaSuccess;
  bool loss_on_device_ = false;
  int processes_ = 0;
  double* seen_ = nullptr;
};

/// The times at which a device carried out the actions of a recorded step, by timed events. They
/// are made when a step is first recorded; steps that are not recorded cost nothing.
class Timeline {
 public:
  /// @param origin  the stream whose first moment is time 0
  void begin(Stream const& origin) {
    marks_.clear();
    used_ = 0;
    mark(origin);
  }

  /// Whether an instruction has a time: an action, or a sum of gradients.
  [[nodiscard]] static bool shows(Instruction const& in) noexcept {
    return computes(in.op) || has_group(in.op);
  }

  /// Runs the function that enqueues an action, between two events of its stream.
  template <class Enqueue>
  void action(std::size_t rank, Instruction const& in, Stream const& stream, Enqueue enqueue) {
    mark(stream);
    enqueue();
    mark(stream);
    marks_.push_back({rank, &in});
  }

  /// Delivers the times once the device is done.
  template <class Machine> [[gnu::cold]] void finish(Machine& machine) {
    auto const since_start = [this](std::size_t event) {
      return events_[event].seconds_since(events_[0]);
    };
    for (std::size_t k = 0; k < marks_.size(); ++k) {
      auto& rank = machine.ranks()[marks_[k].rank];
      Instruction const& in = *marks_[k].in;
      if (!computes(in.op)) {
        machine.gradient_groups()->note(machine, rank, in, since_start(2 * k + 1),
                                        since_start(2 * k + 2));
        continue;
      }
      if (rank.record) record(rank, in, since_start(2 * k + 1), since_start(2 * k + 2));
    }
  }

 private:
  struct Mark {
    std::size_t rank;
    Instruction const* in;
  };
  void mark(Stream const& stream) {
    if (used_ == events_.size()) events_.emplace_back();
    events_[used_++].record(stream);
  }

  std::vector<TimedEvent> events_;  // the start, then two for each action in the order of issue
  std::size_t used_ = 0;
  std::vector<Mark> marks_;
};

}  // namespace stagger::cuda::detail
