// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What processes decide together in the middle of their steps.

#include <chrono>
#include <cstdint>
#include <span>

#include <stagger/cuda/memory.hpp>
#include <stagger/cuda/tensor.hpp>
#include <stagger/nccl/detail/gpu_set.hpp>

namespace stagger::nccl::detail {

/// Asks all processes, each of which has one GPU, a question. It has a stream and a communicator of
/// its own, so that it waits for no step that is in flight.
///
/// NCCL wants an operation to be captured by all of its ranks or by none, and a graph to be
/// replayed by all whose calls were captured with its own. Whether a step must be recorded again,
/// though, each process knows of its own batch alone.
class AnyRankFlag {
 public:
  /// Meets the other processes. @pre  no step is in flight
  /// @throws Error  deadline for those that do not come
  [[gnu::cold]] AnyRankFlag(GpuSet& gpu_set, double meet_s)
      : gpu_set_(gpu_set), stream_(on(gpu_set)), word_(1), there_({1}) {
    gpu_set[0].world.split(0, gpu_set[0].place, all_, stream_).wait(meet_s);
  }
  AnyRankFlag(AnyRankFlag const&) = delete;
  AnyRankFlag& operator=(AnyRankFlag const&) = delete;
  ~AnyRankFlag() {
    Communicator* const all[] = {&all_};
    end_together(all);
  }

  /// @return  whether any process answers yes
  /// @throws Error  deadline for those that are not asked, and for a GPU that does not answer
  [[nodiscard]] bool any(bool own, double seconds) {
    gpu_set_.select(0);
    *word_.data() = own ? 1 : 0;
    copy(there_.data(), word_.data(), cudaMemcpyHostToDevice);
    auto asked = all_.all_reduce(std::span(there_.data(), 1), Reduction::max);
    asked.wait(seconds);
    copy(word_.data(), there_.data(), cudaMemcpyDeviceToHost);
    auto const start = std::chrono::steady_clock::now();
    for (stagger::detail::Backoff backoff; !stream_.idle(); backoff.pause())
      if (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() >=
          seconds)
        asked.expire(seconds);
    return *word_.data() != 0;
  }

  void abort(char const* reason) { all_.abort(reason); }
  [[nodiscard]] bool idle() const { return stream_.idle(); }

 private:
  [[nodiscard]] static cuda::Stream on(GpuSet const& gpu_set) {
    gpu_set.select(0);
    return cuda::Stream(cuda::Priority::message);
  }
  void copy(void* to, void const* from, cudaMemcpyKind kind) const {
    cuda::check(cudaMemcpyAsync(to, from, sizeof(std::uint32_t), kind, stream_.get()),
                "copy an answer");
  }

  GpuSet& gpu_set_;
  cuda::Stream stream_;
  cuda::Pinned<std::uint32_t> word_;
  cuda::Tensor<std::uint32_t> there_;
  Communicator all_;
};

}  // namespace stagger::nccl::detail
