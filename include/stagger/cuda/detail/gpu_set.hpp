// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The GPUs of one process that run a pipeline.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <stagger/cuda/detail/iteration.hpp>
#include <stagger/cuda/detail/processes.hpp>
#include <stagger/cuda/detail/timeline.hpp>

namespace stagger::cuda::detail {

/// One GPU of this process.
struct Gpu {
  explicit Gpu(int index) : device(select_device(index).index), pool(std::make_shared<Pool>()) {}

  int device;  // first: it is selected for all below
  std::shared_ptr<Pool> pool;
  Stream home{Priority::message};  ///< an iteration begins and ends there
  EventTable events;
  Iteration iteration;
  Timeline timeline;
  Tensor<double> sums;  ///< [parameters] of the squares of gradients
};

/// The GPUs of this process, the channels that messages take, and the groups that add up gradients.
/// Places are numbered over all processes.
class GpuSet {
 public:
  /// @param devices    GPUs of this process, none twice
  /// @throws Error     as select_device
  explicit GpuSet(std::span<int const> devices) {
    for (int const device : devices) gpus_.push_back(std::make_unique<Gpu>(device));
    for (auto& gpu : gpus_)
      for (auto const& other : gpus_)
        if (gpu != other) connect(*gpu, *other);
  }
  GpuSet(GpuSet const&) = delete;
  GpuSet& operator=(GpuSet const&) = delete;

  /// There are others, each with one GPU. @pre  size() == 1
  void join(std::unique_ptr<Processes> others) { processes_ = std::move(others); }
  /// Null: this process has all GPUs of the pipeline.
  [[nodiscard]] Processes* processes() const noexcept { return processes_.get(); }

  [[nodiscard]] std::size_t size() const noexcept { return gpus_.size(); }
  [[nodiscard]] Gpu& operator[](std::size_t gpu) const noexcept { return *gpus_[gpu]; }
  /// For messages: "the GPU", or "the GPUs".
  [[nodiscard]] char const* name() const noexcept {
    return size() == 1 && !processes_ ? "the GPU" : "the GPUs";
  }
  /// The GPU of this process at a place; size(): another process has it.
  [[nodiscard]] std::size_t at(int number) const noexcept {
    if (processes_) return number == processes_->rank() ? 0 : size();
    return static_cast<std::size_t>(number);
  }

  void select(std::size_t gpu) const { check(cudaSetDevice(gpus_[gpu]->device), "select a GPU"); }

  /// Enqueues a copy from one GPU's memory to another's.
  [[nodiscard]] cudaError_t copy(Block to, std::size_t to_gpu, void const* from,
                                 std::size_t from_gpu, cudaStream_t stream) const noexcept {
    if (reaches_all_)
      return cudaMemcpyAsync(to.data, from, to.bytes, cudaMemcpyDeviceToDevice, stream);
    return cudaMemcpyPeerAsync(to.data, gpus_[to_gpu]->device, from, gpus_[from_gpu]->device,
                               to.bytes, stream);
  }

  /// Makes those channels that are not there yet, together with all other processes. Where both
  /// places are of this process, the stream is on the GPU that receives.
  /// @return for each pair of places, the number of its channel
  [[gnu::cold]] List<std::size_t> connect(std::span<std::pair<int, int> const> wanted) {
    List<std::size_t> numbers;
    for (auto const& places : wanted) {
      std::size_t number = 0;
      while (number < channels_.size() && channels_[number].places != places) ++number;
      numbers.push_back(number);
      if (number != channels_.size()) continue;
      std::size_t gpu = at(places.second);
      if (gpu == size()) gpu = at(places.first);
      auto& channel = channels_.emplace_back(Channel{places, gpu});
      if (gpu == size()) continue;
      select(gpu);
      channel.stream = std::make_unique<Stream>(Priority::message);
    }
    if (processes_) processes_->connect(channels_);
    return numbers;
  }

  /// The same for groups.
  /// @param wanted     places of each, in the order in which they are added up
  /// @param exchanges  whether members exchange parts of gradients
  [[gnu::cold]] List<std::size_t> connect(std::span<std::vector<int> const> wanted,
                                          bool exchanges) {
    List<std::size_t> numbers;
    for (auto const& places : wanted) {
      std::size_t number = 0;
      while (number < groups_.size() && groups_[number].places != places) ++number;
      numbers.push_back(number);
      if (number != groups_.size()) continue;
      auto& group = groups_.emplace_back(ReplicaGroup{places});
      for (std::size_t i = 0; i < places.size(); ++i) {
        if (at(places[i]) == size()) continue;
        select(at(places[i]));
        group.members.push_back(std::make_unique<Member>(at(places[i]), i));
      }
    }
    if (processes_) processes_->connect(groups_, exchanges);
    return numbers;
  }

  [[nodiscard]] std::vector<Channel> const& channels() const noexcept { return channels_; }
  [[nodiscard]] std::vector<ReplicaGroup> const& groups() const noexcept { return groups_; }

  /// Brings back the losses that kernels have computed.
  /// @param losses  [replicas of the last stage][microbatches] overwritten
  void take_losses(std::size_t slot, double* losses) const noexcept {
    bool first = true;
    for (auto const& gpu : gpus_) {
      if (!processes_ && !gpu->iteration.has_losses()) continue;
      double const* const here = gpu->iteration.losses(slot);
      for (std::size_t m = 0; m < gpu->iteration.loss_count(); ++m)
        losses[m] = first ? here[m] : losses[m] + here[m];
      first = false;
    }
  }

 private:
  /// Lets one GPU reach the memory of another, so that copies take no detour by the host.
  [[gnu::cold]] void connect(Gpu& gpu, Gpu const& other) {
    check(cudaSetDevice(gpu.device), "select a GPU");
    if (!gpu.pool->share_with(other.device)) {
      reaches_all_ = false;
      return;
    }
    auto const result = cudaDeviceEnablePeerAccess(other.device, 0);
    if (result == cudaErrorPeerAccessAlreadyEnabled)
      static_cast<void>(cudaGetLastError());
    else
      check(result, "connect two GPUs");
  }

  std::vector<std::unique_ptr<Gpu>> gpus_;
  std::vector<Channel> channels_;
  std::vector<ReplicaGroup> groups_;
  bool reaches_all_ = true;               // each GPU the memory of all others
  std::unique_ptr<Processes> processes_;  // last: it uses all streams
};

}  // namespace stagger::cuda::detail
