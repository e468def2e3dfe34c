// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Processes of one pipeline, played by threads.

#include <atomic>
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
  gpus.kernels = &stagger::cuda::parameter_kernels;
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

/// Process 1 leaves while process 0 still takes steps; calls of NCCL may hang then.
class Departure {
 public:
  explicit Departure(bool hangs) : hangs_(hangs) {}
  /// By process 1, which takes no step any more.
  void leave() noexcept {
    left_ = true;
    left_.notify_all();
  }
  /// By process 0, before the step that the other does not take.
  void begin() const { cuda_stand_in::abort_hangs(hangs_); }
  /// By process 0, once it has seen the error.
  void end() const {
    left_.wait(false);
    if (hangs_)
      cuda_stand_in::lose_device(cudaErrorIllegalAddress);  // what it still has is not run
    cuda_stand_in::abort_hangs(false);
  }

 private:
  bool hangs_;
  std::atomic<bool> left_{false};
};

/// What the host finds in steps of which all processes take the same.
struct Expected {
  std::vector<sg::Metrics> metrics;
  std::vector<std::byte> bits;  // of all parameters, after the last

  /// @return what is wrong with step `s`
  [[nodiscard]] std::string check(std::size_t s, sg::Metrics const& got) const {
    std::string words;
    if (got.loss != metrics[s].loss) words += "loss ";
    if (got.gradient_norm != metrics[s].gradient_norm) words += "norm ";
    return words;
  }
  /// @return what is wrong with the parameters of a process, which are gathered
  template <class Train> [[nodiscard]] std::string check_parameters(Train& train) const {
    train.gather_parameters();
    return small_model::bits(train) == bits ? "" : "parameters ";
  }
};
/// @param batch_of  (step)
template <class Host, class BatchOf> Expected expected_of(Host& host, int steps, BatchOf batch_of) {
  Expected result;
  for (int s = 0; s < steps; ++s) {
    auto const data = batch_of(s);
    result.metrics.push_back(sg::run(host.step(data)));
  }
  result.bits = small_model::bits(host);
  return result;
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
