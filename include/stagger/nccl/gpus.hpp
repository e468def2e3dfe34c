// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Device policy: ranks in several processes with a GPU each, joined by NCCL.

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include <stagger/cuda/gpus_backend.hpp>
#include <stagger/engine/make_session.hpp>
#include <stagger/nccl/detail/processes.hpp>
#include <stagger/nccl/rendezvous.hpp>

namespace stagger::nccl {

/// Device policy: every process runs its ranks on one GPU, as `cuda::Gpus` does, and takes the same
/// steps with the same batches. A value for a rank of another process is transferred by a send and
/// a receive of NCCL, on a stream for each pair of processes and each direction; its type has a
/// `cuda::Wire`. Without a launcher there is one process with one GPU.
///
/// @code
///     auto train = Pipeline{...}.with(nccl::Gpus{.launch = collective::find_launch()}, ...);
/// @endcode
struct Gpus {
  using policy_tag = DeviceTag;
  using Backend = cuda::GpusBackend;
  static constexpr DeviceTraits traits{.obeys_placement = true,
                                       .needs_every_place = true,
                                       .parameter_memory = true,
                                       .takes_layer_types = true,
                                       .enqueues_updates = true,
                                       .sums_while_running = true,
                                       .sums_by_library = true,
                                       .shards_states = true,
                                       .gathers_parameters = true,
                                       .runs_ahead = true,
                                       .captures = true};
  static_assert(stagger::detail::device_features(traits) ==
                stagger::detail::feature::of_gpus_apart);

  std::optional<collective::Launch> launch{};  ///< collective::find_launch()
  int device = -1;                             ///< GPU of this process; below 0: its local_device()
  // As in cuda::Gpus. `capture` and `ahead` must be equal in all processes.
  cuda::ParameterKernels const* kernels = nullptr;
  bool capture = false;
  cuda::GraphCounts* counts = nullptr;
  int ahead = 2;
  cuda::Ranges ranges{};
  double join_deadline_s = 60;  ///< > 0: for all processes to join, and for each new connection
  Rendezvous rendezvous{};      ///< how the processes find each other
  Invitation const* invitation = nullptr;  ///< replaces `rendezvous`: invite(rank, broadcast)
  bool shapes_change = false;  ///< from step to step, of values that go to another process
  /// Whether the first step after a program is loaded fails if processes are given different batches;
  /// a program is loaded before the first step of training, evaluation or prediction, and when the
  /// number of microbatches changes or one of the three follows another. What is compared are digests
  /// of numbers, vectors and host tensors, and of types with `fields()`; of views, of other types and
  /// of tensors on a GPU, the sizes. A container of your own that has iterators must own memory of
  /// the host.
  bool check_batches = true;
  cuda::detail::Wires wires{};
  stagger::detail::BatchContents contents{};

  /// How many places a placement policy may spread the ranks over: the processes. By default
  /// process p of P runs the ranks from p N / P on.
  [[nodiscard]] int places() const noexcept { return launch ? launch->size : 1; }

  /// `Pipeline::with` names the types of all layers here, so that the device knows what it sends.
  template <class Layers> void use_layers() noexcept {
    wires = {cuda::detail::WireTypes<Layers>::table, cuda::detail::WireTypes<Layers>::count,
             shapes_change};
  }

  /// Likewise the types of a batch.
  template <class Input, class Target> void use_batches() noexcept {
    contents = stagger::detail::batch_contents<Input, Target>;
  }

  /// For the back end.
  [[nodiscard]] cuda::detail::GpusOptions options() const noexcept {
    return {kernels,
            capture,
            ranges,
            counts,
            ahead,
            wires,
            check_batches ? contents : stagger::detail::BatchContents{}};
  }
  /// @param count  processes that have ranks
  /// @throws Error deadline for processes that do not arrive, and other errors of the rendezvous;
  ///         bad_configuration for a deadline that is not above 0
  [[nodiscard]] [[gnu::cold]] std::shared_ptr<cuda::detail::GpuSet> open(int count,
                                                                         double deadline_s) const {
    stagger::detail::require_deadline("Gpus::join_deadline_s", join_deadline_s);
    if (count < places())
      raise(Errc::bad_configuration, launch->launcher, " started ", launch->size, " processes for ",
            count, " ranks; start at most one for each rank");
    int const own = device >= 0 ? device : launch ? local_device(*launch) : 0;
    auto gpus = std::make_shared<cuda::detail::GpuSet>(std::span(&own, 1));
    if (places() > 1)
      gpus->join(std::make_unique<detail::Processes>(
          (*gpus)[0], launch->rank, launch->size,
          invitation != nullptr ? *invitation : invite(*launch, rendezvous), join_deadline_s,
          deadline_s));
    return gpus;
  }

  /// Where parameters lie until a program determines which process needs them.
  [[nodiscard]] stagger::detail::ParameterMemory parameter_memory() const noexcept {
    return cuda::detail::staging_memory();
  }
};

}  // namespace stagger::nccl

#ifdef STAGGER_SEPARATE_COMPILATION_NCCL
namespace stagger::detail {
extern template std::shared_ptr<Session> make_session(nccl::Gpus const&, List<Layer>, Setup&);
}
#endif
