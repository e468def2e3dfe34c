// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Device policy: a whole pipeline on one GPU, every rank a stream.

#include <cstdint>
#include <limits>

#include <stagger/cuda/detail/parameter_memory.hpp>
#include <stagger/cuda/streams.hpp>
#include <stagger/engine/make_session.hpp>

namespace stagger::cuda {

/// All ranks on one GPU. The calling thread enqueues every rank's actions in the program's order
/// and waits for the device at the end of the step alone, or, with `enqueue` in place of `run`,
/// when `ahead` steps are in flight; what one rank must await from another is
/// a cudaStreamWaitEvent. Ranks share the GPU's memory, so a message is a slot that one writes and
/// another reads, as on host threads.
///
/// @code
///     GraphCounts counts;
///     auto train = Pipeline{...}.with(cuda::Loopback{.device = 0, .capture = true, .counts =
///     &counts});
/// @endcode
struct Loopback {
  using policy_tag = DeviceTag;
  using Backend = StreamsBackend;
  static constexpr DeviceTraits traits{.parameter_memory = true,
                                       .enqueues_updates = true,
                                       .sums_while_running = true,
                                       .runs_ahead = true,
                                       .captures = true};

  int device = 0;  ///< GPU, 0 <= device < device_count()
  Work work = Work::enqueue;
  bool capture =
      false;  ///< record the second training iteration as a CUDA graph and replay it from then on
  Ranges ranges{};  ///< announce each action to a profiler; nvtx_ranges() of nvtx.hpp
  GraphCounts* counts =
      nullptr;  ///< told what was done with the graph; stays as long as the pipeline
  ParameterKernels const* kernels =
      nullptr;  ///< for gradients, where they are clipped or a stage has two owners; likewise

  int ahead = 2;  ///< steps in flight that `enqueue(train.step(batch))` lets the host have behind
                  ///< it, at least 1; each has events and a graph of its own

  /// How many places a placement policy may spread the ranks over: as many as there are ranks.
  [[nodiscard]] int places() const noexcept { return std::numeric_limits<int>::max(); }

  [[nodiscard]] StreamsOptions options() const noexcept {
    return {device, work, capture, ranges, counts, kernels, ahead};
  }

  /// Where the engine keeps parameters: with the kernels that use them.
  /// @throws Error  where there is no such GPU
  [[nodiscard]] stagger::detail::ParameterMemory parameter_memory() const {
    if (work == Work::host) return {};
    static_cast<void>(select_device(device));
    return detail::parameter_memory(device);
  }
};

}  // namespace stagger::cuda

#ifdef STAGGER_SEPARATE_COMPILATION_CUDA
namespace stagger::detail {
extern template std::shared_ptr<Session> make_session(cuda::Loopback const&, List<Layer>,
                                                      Setup const&);
}
#endif
