// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Device policy: the ranks of one pipeline on several GPUs, joined by NCCL.

#include <cstddef>
#include <numeric>
#include <vector>

#include <stagger/nccl/detail/host_memory.hpp>
#include <stagger/nccl/gpus_backend.hpp>

namespace stagger::nccl {

/// Every rank is a stream of one of this process's GPUs. The calling thread enqueues all actions in
/// one order and waits at the end of the step alone. A value for a rank on another GPU is a send
/// and a receive of NCCL, on streams of their own for each pair of GPUs and each direction; within
/// a GPU it is a slot that both share.
///
/// Values that go from GPU to GPU have a `Wire`. Parameters lie where their stage runs; stages
/// enqueue their work, as with cuda::Work::enqueue.
///
/// @code
///     auto train = Pipeline{...}.with(nccl::Gpus{.devices = {0, 1}}, cuda::Enqueued<...>{...});
/// @endcode
struct Gpus {
  using policy_tag = DeviceTag;
  using Backend = GpusBackend;

  std::vector<int> devices{};  ///< GPUs of this process, none twice; empty: all
  cuda::ParameterKernels const* kernels =
      nullptr;         ///< see cuda::Loopback; stays as long as the pipeline
  double meet_s = 60;  ///< for all GPUs to join, and for each new connection

  /// How many places a placement policy may spread the ranks over: GPUs. In order, GPU g of G runs
  /// the ranks from g N / G on.
  /// @throws cuda::Error  where there is none
  [[nodiscard]] int places() const {
    return devices.empty() ? cuda::device_count() : static_cast<int>(devices.size());
  }

  /// For Pipeline: the types of all layers.
  template <class Types> void meet() noexcept {
    wires = detail::WireTypes<Types>::table;
    wire_count = detail::WireTypes<Types>::count;
  }
  detail::WireType const* wires = nullptr;
  std::size_t wire_count = 0;

  /// Where parameters wait until a program tells which GPU wants them.
  [[nodiscard]] stagger::detail::ParameterMemory parameter_memory() const noexcept {
    return detail::waiting_room();
  }
};

}  // namespace stagger::nccl
