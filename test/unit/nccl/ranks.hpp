// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Ranks that one thread plays, each with a GPU, a stream and a communicator.

#include <chrono>
#include <cstddef>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/nccl/communicator.hpp>

#include "cuda_stand_in/stand_in.hpp"

namespace nccl_ranks {

namespace sg = stagger;
namespace si = cuda_stand_in;

inline constexpr double longest_wait_s = 30;

struct Rank {
  explicit Rank(int index) : device(index) {}
  sg::nccl::Device device;
  sg::cuda::Stream stream;
  sg::nccl::Communicator communicator;
};

struct Ranks {
  explicit Ranks(int count, bool one_device = false) {
    auto const invitation = sg::nccl::invite(0, [](std::span<std::byte>) {});
    for (int r = 0; r < count; ++r) {
      all.push_back(std::make_unique<Rank>(one_device ? 0 : r));
      auto& rank = *all.back();
      rank.communicator = sg::nccl::Communicator(rank.device, invitation, count, r, rank.stream);
    }
  }
  [[nodiscard]] sg::nccl::Communicator& operator[](std::size_t r) const {
    return all[r]->communicator;
  }
  [[nodiscard]] std::size_t size() const { return all.size(); }

  /// One call on each rank, then waits for all of them.
  template <class Call> void each(Call call, double seconds = longest_wait_s) const {
    std::vector<sg::nccl::Operation> operations;
    for (std::size_t r = 0; r < size(); ++r) operations.push_back(call(r, (*this)[r]));
    wait(operations, seconds);
  }
  void join() const {
    each([](std::size_t, auto& c) { return c.joined(); });
  }
  void finalize() const {
    each([](std::size_t, auto& c) { return c.finalize(); });
  }

  static void wait(std::vector<sg::nccl::Operation>& operations, double seconds = longest_wait_s) {
    auto const start = std::chrono::steady_clock::now();
    for (bool done = false; !done; std::this_thread::yield()) {
      done = true;
      for (auto& operation : operations) done = operation.poll() && done;
      if (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() > seconds)
        for (auto& operation : operations)
          if (!operation.poll()) operation.expire(seconds);
    }
  }

  std::vector<std::unique_ptr<Rank>> all;
};

}  // namespace nccl_ranks
