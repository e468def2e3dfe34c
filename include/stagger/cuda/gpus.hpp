// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Device policy: the ranks of a pipeline on one GPU, or on several GPUs of this process.

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include <stagger/cuda/gpus_backend.hpp>
#include <stagger/engine/make_session.hpp>

namespace stagger::cuda {

/// Device policy: every rank is a stream of one of the GPUs. Unless a placement says otherwise, GPU
/// g of G runs the ranks from g N / G on; so on one GPU all stages run on streams of it.
///
/// The calling thread enqueues all actions in one order. It waits for the devices only at the end
/// of a step or, with `enqueue` in place of `run`, when `ahead` steps are in flight. If a rank must
/// wait for another, its stream waits for an event. Ranks of one GPU share its memory, so a message
/// between them is a slot that one writes and the other reads; from GPU to GPU it is a copy, and
/// its type has a `Wire`.
///
/// @code
///     auto train = Pipeline{...}.with(cuda::Gpus{.devices = {0}}, cuda::Enqueued<...>{...});
/// @endcode
struct Gpus {
  using policy_tag = DeviceTag;
  using Backend = GpusBackend;
  static constexpr DeviceTraits traits{.obeys_placement = true,
                                       .parameter_memory = true,
                                       .takes_layer_types = true,
                                       .enqueues_updates = true,
                                       .sums_while_running = true,
                                       .shards_states = true,
                                       .gathers_parameters = true,
                                       .runs_ahead = true,
                                       .captures = true,
                                       .outside_signals = true,
                                       .shares_layers = true};
  static_assert(stagger::detail::device_features(traits) == stagger::detail::feature::of_gpus);

  std::vector<int> devices{};  ///< GPUs of this process, none twice; empty: all of them
  ParameterKernels const* kernels =
      nullptr;  ///< for gradients, to train: needed unless Options::non_finite is ignore, nothing
                ///< is clipped, no stage has two owners or replicas, and no group shares layers;
                ///< they must live as long as the pipeline
  bool capture = false;  ///< record the second training iteration as one CUDA graph over all GPUs,
                         ///< and replay it from then on
  GraphCounts* counts =
      nullptr;      ///< counts what is done with the graphs; must live as long as the pipeline
  int ahead = 2;    ///< how many steps may be in flight after `enqueue(train.step(batch))`, >= 1;
                    ///< each has events and a graph of its own
  Ranges ranges{};  ///< announce each action to a profiler; nvtx_ranges() of nvtx.hpp
  detail::Wires wires{};

  /// How many places a placement policy may spread the ranks over: GPUs.
  /// @throws Error if there is none
  [[nodiscard]] int places() const {
    return devices.empty() ? device_count() : static_cast<int>(devices.size());
  }

  /// `Pipeline::with` names the types of all layers here, so that the device knows what it sends.
  template <class Layers> void use_layers() noexcept {
    wires = {detail::WireTypes<Layers>::table, detail::WireTypes<Layers>::count};
  }

  /// For the back end.
  [[nodiscard]] detail::GpusOptions options() const noexcept {
    return {kernels, capture, ranges, counts, ahead, wires};
  }
  /// @param count  GPUs that have ranks
  /// @throws Error for a GPU that does not exist or is named twice
  [[nodiscard]] [[gnu::cold]] std::shared_ptr<detail::GpuSet> open(int count, double) const {
    std::vector<int> own = devices;
    if (own.empty()) {
      own.resize(static_cast<std::size_t>(count));
      std::iota(own.begin(), own.end(), 0);
    }
    while (std::cmp_greater(own.size(), count)) own.pop_back();
    for (auto at = own.begin(); at != own.end(); ++at)
      if (std::find(own.begin(), at, *at) != at)
        raise(Errc::bad_configuration, "GPU ", *at,
              " is named twice; name each once, and let a placement put several ranks on it");
    return std::make_shared<detail::GpuSet>(own);
  }

  /// Where parameters lie until a program determines which GPU needs them.
  /// @throws Error if there is no such GPU
  [[nodiscard]] stagger::detail::ParameterMemory parameter_memory() const {
    if (places() > 1) return detail::staging_memory();
    return detail::parameter_memory(select_device(devices.empty() ? 0 : devices.front()).index);
  }
};

}  // namespace stagger::cuda

#ifdef STAGGER_SEPARATE_COMPILATION_CUDA
namespace stagger::detail {
extern template std::shared_ptr<Session> make_session(cuda::Gpus const&, List<Layer>, Setup&);
}
#endif
