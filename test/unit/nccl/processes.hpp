// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Processes of one pipeline, played by threads.

#include <cstddef>
#include <exception>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <stagger/nccl/gpus.hpp>

#include "cuda/enqueued_model.hpp"

namespace processes {

namespace sg = stagger;

/// What all processes are given.
inline sg::nccl::Gpus a_process() {
  sg::nccl::Gpus gpus;
  gpus.kernels = &enqueued_model::kernels;
  return gpus;
}

/// Process `rank` of `size`, with GPU `rank`; all else as in `gpus`.
inline sg::nccl::Gpus process(sg::nccl::Gpus gpus, int rank, int size,
                              sg::nccl::Invitation const& invitation) {
  sg::collective::Launch launch;
  launch.launcher = "the test";
  launch.rank = rank;
  launch.size = size;
  gpus.device = rank;
  gpus.launch = launch;
  gpus.invitation = &invitation;
  return gpus;
}

inline sg::nccl::Invitation invitation() {
  return sg::nccl::invite(0, [](std::span<std::byte>) {});
}

/// Carries `body(Gpus, process)` out in every process.
/// @return  what it answers in each: what was wrong
template <class Body>
[[nodiscard]] std::vector<std::string> in_processes(int count, sg::nccl::Gpus const& gpus,
                                                    Body body) {
  auto const invited = invitation();
  std::vector<std::string> wrong(static_cast<std::size_t>(count));
  std::vector<std::thread> processes;
  for (int p = 0; p < count; ++p)
    processes.emplace_back([&, p] {
      try {
        sg::cuda::check(cudaSetDevice(p), "select a GPU");
        wrong[static_cast<std::size_t>(p)] = body(process(gpus, p, count, invited), p);
      } catch (std::exception const& error) {
        wrong[static_cast<std::size_t>(p)] = error.what();
      }
    });
  for (auto& process : processes) process.join();
  return wrong;
}

}  // namespace processes
