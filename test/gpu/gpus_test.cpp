// SPDX-License-Identifier: Apache-2.0
#include <stagger/cuda/gpus.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <stagger/nccl/gpus.hpp>
#include <stagger/train/pipeline.hpp>

#include "in_time.hpp"
#include "kernels.hpp"
#include "skip.hpp"
#include "stages.hpp"

namespace sg = stagger;

namespace {

/// The GPUs of this machine, at most so many.
std::vector<int> gpus(int most) {
  std::vector<int> devices;
  for (int g = 0; g < std::min(most, sg::cuda::device_count()); ++g) devices.push_back(g);
  return devices;
}

/// Whether there is one GPU only; not in the words that skip all tests.
bool one_gpu() {
  if (no_gpu()) return true;
  if (sg::cuda::device_count() > 1) return false;
  std::puts("one GPU only: left out what needs two");
  return true;
}

}  // namespace

TEST_CASE("gpu/Gpus: kernels of four stages pass tensors on in order", "[gpu]") {
  if (no_gpu()) return;
  int const most = GENERATE(1, 2, 4);
  if (most > 1 && one_gpu()) return;
  auto run = sg::Pipeline{AddOne{}, AddOne{}, AddOne{}, AddOne{}}.with(
      sg::cuda::Gpus{.devices = gpus(most)});
  auto const x = inputs(16, 1U << 20U);
  std::vector<sg::cuda::Tensor<>> y(16);
  std::vector<float> got(1U << 20U);
  for (int turn = 0; turn < 20; ++turn) {
    sg::run(run.predict(x, y));
    for (auto const& one : y) {
      one.download(got);
      sg::cuda::check(cudaStreamSynchronize(nullptr), "download");
      REQUIRE(got.front() == 5);
      REQUIRE(got.back() == 5);
    }
  }
}

TEST_CASE("gpu/Gpus: a process that never comes is an error in time", "[gpu]") {
  if (no_gpu()) return;
  auto const invitation = sg::nccl::invite(0, [](std::span<std::byte>) {});
  sg::nccl::Gpus device{.device = 0, .join_deadline_s = 2};
  device.launch = sg::collective::Launch{.launcher = "the test", .size = 2};
  device.invitation = &invitation;
  fails_in_time(sg::Errc::deadline, 2,
                [&] { static_cast<void>(sg::Pipeline{AddOne{}, AddOne{}}.with(device)); });
}

TEST_CASE("gpu/Gpus: a kernel that spins is an error in time, on one GPU and before a message",
          "[gpu]") {
  if (no_gpu()) return;
  int const most = GENERATE(1, 2);
  if (most > 1 && one_gpu()) return;
  sg::cuda::Pinned<int> open(1);
  open.data()[0] = 0;
  {
    sg::Options options;
    options.deadline_s = 1;
    auto const x = inputs(2, 256);
    std::vector<sg::cuda::Tensor<>> y(2);
    auto run = sg::Pipeline{Spin{open.data()}, AddOne{}}.with(sg::cuda::Gpus{.devices = gpus(most)},
                                                              options);
    fails_in_time(sg::Errc::deadline, 1, [&] { sg::run(run.predict(x, y)); });
    *static_cast<int volatile*>(open.data()) = 1;  // so that memory can be freed
    for (int const gpu : gpus(most)) {
      sg::cuda::select_device(gpu);
      sg::cuda::check(cudaDeviceSynchronize(), "end the kernel");
    }
  }
}
