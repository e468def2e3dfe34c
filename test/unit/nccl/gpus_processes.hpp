// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Processes of one pipeline, played by threads.

#include <cstddef>
#include <exception>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "gpus_model.hpp"

namespace gpus_model {

/// Process `rank` of `size`, with GPU `rank`.
inline sg::nccl::Gpus process(int rank, int size, sg::nccl::Invitation const& invitation) {
  auto gpus = on_gpus({rank});
  sg::collective::Launch launch;
  launch.launcher = "the test";
  launch.rank = rank;
  launch.size = size;
  gpus.launch = launch;
  gpus.invitation = &invitation;
  return gpus;
}

/// Carries `body(Gpus, process)` out in every process; it answers what was wrong.
template <class Body> void in_processes(int count, Body body) {
  auto const invited = sg::nccl::invite(0, [](std::span<std::byte>) {});
  std::vector<std::string> wrong(static_cast<std::size_t>(count));
  std::vector<std::thread> processes;
  for (int p = 0; p < count; ++p)
    processes.emplace_back([&, p] {
      try {
        wrong[static_cast<std::size_t>(p)] = body(process(p, count, invited), p);
      } catch (std::exception const& error) {
        wrong[static_cast<std::size_t>(p)] = error.what();
      }
    });
  for (auto& process : processes) process.join();
  for (int p = 0; p < count; ++p) {
    CAPTURE(p, wrong[static_cast<std::size_t>(p)]);
    CHECK(wrong[static_cast<std::size_t>(p)].empty());
  }
}

}  // namespace gpus_model
