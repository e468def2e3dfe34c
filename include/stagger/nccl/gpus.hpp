// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Device policy: the ranks of one pipeline on several GPUs, joined by NCCL.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include <stagger/engine/make_session.hpp>
#include <stagger/nccl/detail/host_memory.hpp>
#include <stagger/nccl/gpus_backend.hpp>
#include <stagger/nccl/rendezvous.hpp>

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
  static constexpr DeviceTraits traits{.obeys_placement = true,
                                       .parameter_memory = true,
                                       .meets_types = true,
                                       .enqueues_updates = true,
                                       .sums_while_running = true,
                                       .sums_by_library = true,
                                       .keeps_whole_states = true,
                                       .gathers_parameters = true,
                                       .runs_ahead = true,
                                       .captures = true};

  std::vector<int> devices{};  ///< GPUs of this process, none twice; empty: all of them, or in a
                               ///< launched program its local_device()
  cuda::ParameterKernels const* kernels =
      nullptr;         ///< see cuda::Loopback; stays as long as the pipeline
  double meet_s = 60;  ///< for all GPUs to join, and for each new connection
  std::optional<collective::Launch>
      launch{};                            ///< collective::find_launch(): one GPU in each process
  Rendezvous rendezvous{};                 ///< how the processes find each other
  Invitation const* invitation = nullptr;  ///< instead, as over MPI: invite(rank, broadcast)
  int ahead = 2;         ///< steps in flight that `enqueue(train.step(batch))` lets the host have
                         ///< behind it, at least 1; each has events and a graph of its own
  bool capture = false;  ///< record the second training iteration as one CUDA graph over all GPUs
                         ///< of the process, and replay it from then on; the same in all processes
  cuda::GraphCounts* counts =
      nullptr;  ///< told what was done with the graphs; stays as long as the pipeline
  bool shapes_change = false;  ///< from step to step, of values that go to another process

  /// How many places a placement policy may spread the ranks over: GPUs. In order, GPU g of G runs
  /// the ranks from g N / G on.
  /// @throws cuda::Error  where there is none
  [[nodiscard]] int places() const {
    if (launch) return launch->size;
    return devices.empty() ? cuda::device_count() : static_cast<int>(devices.size());
  }

  /// For Pipeline: the types of all layers.
  template <class Types> void meet() noexcept {
    wires = {detail::WireTypes<Types>::table, detail::WireTypes<Types>::count, shapes_change};
  }
  detail::Wires wires{};

  /// For the back end.
  /// @throws Error  as it says
  [[nodiscard]] [[gnu::cold]] std::shared_ptr<detail::GpuSet> meet_others(int count) const {
    if (count < places() && launch)
      raise(Errc::bad_configuration, launch->launcher, " started ", launch->size, " processes for ",
            count, " ranks; start at most one for each rank");
    std::vector<int> own = devices;
    if (launch) {
      if (own.empty()) own.push_back(local_device(*launch));
      own.resize(1);
    } else if (own.empty()) {
      own.resize(static_cast<std::size_t>(count));
      std::iota(own.begin(), own.end(), 0);
    } else {
      own.resize(static_cast<std::size_t>(count));
    }
    for (std::size_t i = 0; i < own.size(); ++i)
      if (std::find(own.begin(), own.begin() + static_cast<std::ptrdiff_t>(i), own[i]) !=
          own.begin() + static_cast<std::ptrdiff_t>(i))
        raise(Errc::bad_configuration, "GPU ", own[i],
              " is named twice; name each once, and let a placement put "
              "several ranks on it");
    auto const invited = [&] {
      if (invitation != nullptr) return *invitation;
      if (launch) return invite(*launch, rendezvous);
      return invite(0, [](std::span<std::byte>) {});
    };
    return std::make_shared<detail::GpuSet>(own, launch ? launch->rank : 0, count, invited(),
                                            meet_s);
  }

  /// Where parameters wait until a program tells which GPU wants them.
  [[nodiscard]] stagger::detail::ParameterMemory parameter_memory() const noexcept {
    return detail::staging_memory();
  }
};

}  // namespace stagger::nccl

#ifdef STAGGER_SEPARATE_COMPILATION_NCCL
namespace stagger::detail {
extern template std::shared_ptr<Session> make_session(nccl::Gpus const&, List<Layer>, Setup const&);
}
#endif
