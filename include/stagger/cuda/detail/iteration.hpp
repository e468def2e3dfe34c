// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What goes to the GPU before an iteration and comes back after it, in one block each way.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <new>
#include <vector>

#include <stagger/cuda/kernels.hpp>
#include <stagger/cuda/tensor.hpp>
#include <stagger/engine/machine.hpp>

namespace stagger::cuda::detail {

/// Step numbers and the optimizer's go there; the scale of gradients lies beside them; losses and
/// the norm come back.
class Iteration {
 public:
  /// Makes room for what a program needs. Never gives back.
  /// @param turns  iterations that may be in flight: each has a block of host memory of its own
  [[gnu::cold]] void load(stagger::detail::Machine const& machine, ParameterKernels const* kernels,
                          std::size_t turns = 1) {
    auto const up = [](std::size_t bytes) { return (bytes + 15) / 16 * 16; };
    ranks_ = machine.program().ranks.size();
    optimizer_bytes_ = machine.enqueued_bytes();
    scales_ = up(sizeof(StepNumbers)) + up(optimizer_bytes_);
    losses_ = scales_ + ranks_ * sizeof(GradientScale);
    auto const microbatches = static_cast<std::size_t>(machine.program().microbatches);
    auto const& parts = machine.options().replicas.parts();
    loss_count_ = microbatches;
    for (auto const& part : parts)
      loss_count_ = std::max(loss_count_, microbatches * static_cast<std::size_t>(part.replicas));
    bytes_ = up(losses_ + loss_count_ * sizeof(double));
    host_.resize(turns * bytes_);
    device_.resize({bytes_});
    places_.resize(ranks_);
    for (std::size_t r = 0; r < ranks_; ++r) {
      StepPlace& of_rank = places_[r];
      of_rank.numbers = reinterpret_cast<StepNumbers const*>(device_.data());
      of_rank.optimizer = device_.data() + up(sizeof(StepNumbers));
      of_rank.scale = reinterpret_cast<GradientScale*>(device_.data() + scales_) + r;
      of_rank.losses = reinterpret_cast<double*>(device_.data() + losses_);
      if (r < parts.size())
        of_rank.losses += static_cast<std::size_t>(parts[r].replica) * microbatches;
      of_rank.kernels = kernels;
      of_rank.refused = &refused_;
      of_rank.loss_on_device = &loss_on_device_;
    }
    loss_on_device_ = false;
  }

  [[nodiscard]] StepPlace const& place(std::size_t rank) const noexcept { return places_[rank]; }

  /// Writes down what kernels of this iteration will find.
  void put(stagger::detail::Machine const& machine, std::size_t turn) noexcept {
    refused_ = cudaSuccess;
    StepNumbers const numbers{machine.steps(), machine.options().seed};
    std::byte* const to = host_.data() + turn * bytes_;
    std::memcpy(to, &numbers, sizeof numbers);
    if (optimizer_bytes_ != 0) std::memcpy(to + 16, machine.optimizer(), optimizer_bytes_);
    for (std::size_t r = 0; r < ranks_; ++r)
      ::new (to + scales_ + r * sizeof(GradientScale)) GradientScale();
    std::memset(to + losses_, 0, loss_count_ * sizeof(double));
    for (StepPlace& of_rank : places_) of_rank.steps = numbers.steps;
  }
  /// And enqueues its way to the device.
  void send(stagger::detail::Machine const& machine, Stream const& stream, std::size_t turn = 0) {
    put(machine, turn);
    check(cudaMemcpyAsync(device_.data(), host_.data() + turn * bytes_, bytes_,
                          cudaMemcpyHostToDevice, stream.get()),
          "send the numbers of a step");
  }

  /// Enqueues the way back, behind all work of the iteration. @return what CUDA did
  [[nodiscard]] cudaError_t bring_back(Stream const& stream, std::size_t turn) const noexcept {
    return cudaMemcpyAsync(host_.data() + turn * bytes_ + scales_, device_.data() + scales_,
                           bytes_ - scales_, cudaMemcpyDeviceToHost, stream.get());
  }
  /// The same for an iteration that may still be refused.
  void fetch(Stream const& stream, std::size_t turn) const {
    check(bring_back(stream, turn), "fetch the loss of a step");
  }

  /// Hands over what came back.
  /// @param losses  [parts][microbatches] overwritten if they are the device's; may be null
  /// @return the norm of the gradients
  double results(std::size_t turn, double* losses) const noexcept {
    std::byte const* const from = host_.data() + turn * bytes_;
    if (loss_on_device_ && losses != nullptr)
      std::memcpy(losses, from + losses_, loss_count_ * sizeof(double));
    GradientScale scale;
    std::memcpy(&scale, from + scales_, sizeof scale);
    return scale.norm;
  }

  /// Makes a call that a decided step depends on, once more if it is refused.
  template <class Call> void insist(Call call) noexcept {
    if (refused_ != cudaSuccess || call() == cudaSuccess) return;
    static_cast<void>(cudaGetLastError());
    refused_ = call();
  }

  /// What came back, [loss_count()]: losses that kernels of this device have computed, else 0.
  [[nodiscard]] double const* losses(std::size_t turn) const noexcept {
    return reinterpret_cast<double const*>(host_.data() + turn * bytes_ + losses_);
  }
  /// One for each microbatch and replica of the last stage, replica by replica.
  [[nodiscard]] std::size_t loss_count() const noexcept { return loss_count_; }
  [[nodiscard]] bool has_losses() const noexcept { return loss_on_device_; }
  [[nodiscard]] double gradient_norm(std::size_t rank, std::size_t turn) const noexcept {
    GradientScale scale;
    std::memcpy(&scale, host_.data() + turn * bytes_ + scales_ + rank * sizeof scale, sizeof scale);
    return scale.norm;
  }

  /// What CUDA refused after the step was decided.
  [[nodiscard]] cudaError_t refused() const noexcept { return refused_; }

 private:
  static_assert(sizeof(StepNumbers) == 16);
  std::size_t ranks_ = 0;
  std::size_t loss_count_ = 0;
  std::size_t optimizer_bytes_ = 0;
  std::size_t bytes_ = 0;   // of a block
  std::size_t scales_ = 0;  // offsets in both blocks
  std::size_t losses_ = 0;
  Pinned<std::byte> host_;  // [turns][bytes_]
  Tensor<std::byte> device_;
  std::vector<StepPlace> places_;  // [ranks]
  cudaError_t refused_ = cudaSuccess;
  bool loss_on_device_ = false;
};

/// What a graph was recorded with: the objects of a batch, byte by byte, since they hold the
/// addresses that its kernels were given, and the weights of its terms.
class Shown {
 public:
  [[nodiscard]] bool same(stagger::detail::StepArguments const& now, std::size_t count) const {
    std::size_t at = 0;
    bool same = true;
    each(now, count, [&](void const* from, std::size_t bytes) {
      same = same && at + bytes <= bytes_.size() && std::memcmp(&bytes_[at], from, bytes) == 0;
      at += bytes;
    });
    return same && at == bytes_.size();
  }
  [[gnu::cold]] void remember(stagger::detail::StepArguments const& now, std::size_t count) {
    bytes_.clear();
    each(now, count, [&](void const* from, std::size_t bytes) {
      auto const* const first = static_cast<std::byte const*>(from);
      bytes_.insert(bytes_.end(), first, first + bytes);
    });
  }

 private:
  template <class Visit>
  static void each(stagger::detail::StepArguments const& now, std::size_t count, Visit visit) {
    for (auto const* places : {&now.inputs, &now.targets, &now.outputs}) {
      visit(&places->first, sizeof places->first);
      if (places->first != nullptr && count * places->stride != 0)
        visit(places->first, count * places->stride);
    }
    if (now.scales != nullptr) visit(now.scales, count * sizeof(double));
  }
  std::vector<std::byte> bytes_;
};

}  // namespace stagger::cuda::detail
