// SPDX-License-Identifier: Apache-2.0
#include <stagger/cuda/loopback.hpp>

#include "catch.hpp"

#include <algorithm>
#include <chrono>
#include <vector>

#include <stagger/cuda/tensor.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/schedule/zero_bubble_h1.hpp>

#include "engine/typed_oracle.hpp"
#include "kernels.hpp"
#include "skip.hpp"
#include "stages.hpp"

using namespace small_model;

TEST_CASE("gpu/Loopback: host functions on streams give the bits of typed loops, also as a graph",
          "[gpu]") {
  if (no_gpu()) return;
  bool const capture = GENERATE(false, true);
  auto const data = batches(10, 6, true);
  auto const course = expected_course(data, true);
  for (auto const& schedule :
       {made(sg::schedule::OneFOneB{}), made(sg::schedule::ZeroBubbleH1{})}) {
    sg::cuda::Loopback device;
    device.work = sg::cuda::Work::host;
    device.capture = capture;
    sg::Options options;
    options.clip_norm = clip;
    auto train = pipeline(device, even_cuts(4), schedule, options);
    REQUIRE(first_difference(train, data, course) == -1);
  }
}

TEST_CASE("gpu/Loopback: kernels of four stages pass tensors on in order", "[gpu]") {
  if (no_gpu()) return;
  auto run = sg::Pipeline{AddOne{}, AddOne{}, AddOne{}, AddOne{}}.with(sg::cuda::Loopback{});
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

TEST_CASE("gpu/Loopback: replicas cut tensors by rows and put them together again", "[gpu]") {
  if (no_gpu()) return;
  sg::Options options;
  options.replicas = {2, {3, 1}, 1, {1, 5, 2}};
  auto run =
      sg::Pipeline{AddOne{}, AddOne{}, AddOne{}, AddOne{}}.with(sg::cuda::Loopback{}, options);
  auto const x = inputs(16, 1U << 20U);
  std::vector<sg::cuda::Tensor<>> y(16);
  std::vector<float> got(1U << 20U);
  for (int turn = 0; turn < 20; ++turn) {
    sg::run(run.predict(x, y));
    for (auto const& one : y) {
      REQUIRE(one.size() == got.size());
      one.download(got);
      sg::cuda::check(cudaStreamSynchronize(nullptr), "download");
      REQUIRE(std::count(got.begin(), got.end(), 5.0F) == static_cast<std::ptrdiff_t>(got.size()));
    }
  }
}

TEST_CASE("gpu/Loopback: a kernel that spins is an error in time", "[gpu]") {
  if (no_gpu()) return;
  sg::cuda::Pinned<int> open(1);
  open.data()[0] = 0;
  auto const start = std::chrono::steady_clock::now();
  {
    sg::Options options;
    options.deadline_s = 1;
    auto const x = inputs(2, 256);
    std::vector<sg::cuda::Tensor<>> y(2);
    auto run =
        sg::Pipeline{AddOne{}, Spin{open.data()}, AddOne{}}.with(sg::cuda::Loopback{}, options);
    try {
      sg::run(run.predict(x, y));
      FAIL("the step ended");
    } catch (sg::Error const& error) {
      CHECK(error.code() == sg::Errc::deadline);
    }
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(2));
    *static_cast<int volatile*>(open.data()) = 1;  // so that memory can be freed
    sg::cuda::check(cudaDeviceSynchronize(), "end the kernel");
  }
}

TEST_CASE("gpu/Loopback: the host enqueues the next step while a kernel holds the device up",
          "[gpu]") {
  if (no_gpu()) return;
  sg::cuda::Pinned<int> open(1);
  int volatile& gate = *open.data();
  gate = 1;
  auto const x = inputs(4, 1024);
  std::vector<std::vector<sg::cuda::Tensor<>>> y(3);
  for (auto& outputs : y) outputs.resize(4);
  sg::Options options;
  options.deadline_s = 30;
  auto run =
      sg::Pipeline{AddOne{}, Spin{open.data()}, AddOne{}}.with(sg::cuda::Loopback{}, options);
  for (auto& outputs : y) sg::run(run.predict(x, outputs));  // memory is there from now on
  gate = 0;
  auto first = sg::enqueue(run.predict(x, y[0]));
  auto second = sg::enqueue(run.predict(x, y[1]));
  CHECK_FALSE(first.done());
  CHECK_FALSE(second.done());
  gate = 1;
  auto third = sg::enqueue(run.predict(x, y[2]));
  CHECK(first.done());
  run.settle();
  CHECK(second.done());
  CHECK(third.done());
}

TEST_CASE("gpu/Loopback: steps that nobody waits for come in order", "[gpu]") {
  if (no_gpu()) return;
  sg::cuda::Loopback device;
  device.ahead = 3;
  auto run = sg::Pipeline{AddOne{}, AddOne{}, AddOne{}}.with(device);
  std::vector<std::vector<sg::cuda::Tensor<>>> values;
  values.push_back(inputs(4, 1U << 16U));
  values.resize(21);
  for (std::size_t turn = 0; turn < 20; ++turn) {  // each reads what the one before has written
    values[turn + 1].resize(4);
    static_cast<void>(sg::enqueue(run.predict(values[turn], values[turn + 1])));
  }
  run.settle();
  std::vector<float> got(1U << 16U);
  for (auto const& one : values[20]) {
    one.download(got);
    sg::cuda::check(cudaStreamSynchronize(nullptr), "download");
    CHECK(got.front() == 61);
    CHECK(got.back() == 61);
  }
}

TEST_CASE("gpu/device: more memory than there is is refused with what would fit", "[gpu]") {
  if (no_gpu()) return;
  sg::cuda::MemoryNeed need;
  need.in_flight_bytes = std::uint64_t{1} << 30U;
  need.in_flight = 4096;
  try {
    sg::cuda::select_device(0, need);
    FAIL("4 TiB fit");
  } catch (sg::Error const& error) {
    CHECK(std::string(error.what()).find("it fits with") != std::string::npos);
  }
  CHECK_THROWS_AS(sg::cuda::Tensor<>({std::size_t{1} << 40U}), sg::cuda::Error);
}
