// SPDX-License-Identifier: Apache-2.0
#include <stagger/cuda/gpus.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <stagger/collective/all_reduce.hpp>
#include <stagger/engine/groups.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/nccl/gpus.hpp>
#include <stagger/partition/layer_split.hpp>
#include <stagger/placement/explicit_map.hpp>
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

TEST_CASE("gpu/Gpus: groups of ranks share layers, as a loop adds up their numbers", "[gpu]") {
  if (no_gpu()) return;
  int const most = GENERATE(1, 2);
  if (most > 1 && one_gpu()) return;
  auto const update = GENERATE(sg::partition::Update::accumulate, sg::partition::Update::each_pass);
  int const members = GENERATE(2, 3);
  bool const pairs = GENERATE(false, true);
  constexpr std::size_t layers = 5;
  constexpr std::size_t width = 70;
  constexpr std::size_t rows = 6;
  constexpr std::size_t microbatches = 2;
  constexpr float rate = 1.0F / 64;  // so that no sum is rounded
  std::vector<int> place;
  for (int m = 0; m < members; ++m) place.push_back(m == 0 ? 0 : most - 1);
  if (members > most && most > 1) return;  // a GPU for each, or one for all
  auto train =
      sg::Pipeline{sg::Sequential{AddBias{width, false}, AddBias{width}, AddBias{width},
                                  AddBias{width}, AddBias{width}}}
          .with(
              sg::partition::LayerSplit<>{
                  .group = members, .threshold = 0, .pairs = pairs, .update = update},
              HalfSquare{},
              sg::cuda::Gpus{
                  .devices = gpus(most), .kernels = &sg::cuda::parameter_kernels, .capture = pairs},
              sg::cuda::Enqueued<sg::optimizer::Sgd>{{.rate = rate}},
              sg::placement::ExplicitMap{place},
              sg::Options{.replicas = sg::Replicas::even(&members, 1)});
  sg::cuda::select_device(0);
  std::vector<float> x(rows * width);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>((i / width + i) % 4);
  sg::Batch<sg::cuda::Tensor<>, sg::cuda::Tensor<>> batch;
  for (std::size_t m = 0; m < microbatches; ++m) {
    batch.inputs.emplace_back(std::initializer_list<std::size_t>{rows, width});
    batch.inputs.back().upload(x);
    batch.targets.emplace_back(std::initializer_list<std::size_t>{rows, width});
  }
  sg::cuda::check(cudaStreamSynchronize(nullptr), "upload");
  std::vector<std::vector<float>> bias(layers, std::vector<float>(width));
  bool const each_pass = update == sg::partition::Update::each_pass;
  for (int step = 0; step < 3; ++step) {
    sg::run(train.step(batch));
    for (std::size_t c = 0; c < width; ++c) {
      float all = 0;  // what the front layer adds up
      for (std::size_t m = 0; m < microbatches; ++m) {
        float sum = 0;
        for (std::size_t r = 0; r < rows; ++r) {
          sum += x[r * width + c];
          for (auto const& one : bias) sum += one[c];
        }
        all += sum;
        for (std::size_t l = 1; l < layers && each_pass; ++l) bias[l][c] -= rate * sum;
      }
      for (std::size_t l = 0; l < (each_pass ? 1 : layers); ++l) bias[l][c] -= rate * all;
    }
    auto const states = train.parameters();
    REQUIRE(states.size() == layers);
    for (std::size_t l = 0; l < layers; ++l) {
      auto const values = states[l].values<float>();
      REQUIRE(std::equal(values.begin(), values.end(), bias[l].begin(), bias[l].end()));
    }
  }
}

TEST_CASE("gpu/Gpus: replicas that share the optimizer's state out have the bits of others",
          "[gpu]") {
  if (no_gpu()) return;
  constexpr int replicas = 2;
  int const most = GENERATE(1, 2);  // GPUs
  if (most > 1 && one_gpu()) return;
  bool const capture = GENERATE(false, true);
  constexpr std::size_t width = 70;
  constexpr std::size_t rows = 6;
  std::vector<int> place;
  for (int r = 0; r < replicas; ++r) place.push_back(r % most);
  std::vector<std::vector<float>> found[2];
  std::uint64_t states[2];
  for (bool const shards : {false, true}) {
    sg::Options options{.replicas = {replicas}};
    options.clip_norm = 0.5;
    auto train = sg::Pipeline{sg::Sequential{AddBias{width, false}, AddBias{width}}}.with(
        HalfSquare{},
        sg::cuda::Gpus{
            .devices = gpus(most), .kernels = &sg::cuda::parameter_kernels, .capture = capture},
        sg::cuda::Enqueued<sg::optimizer::AdamW>{{.rate = 0.01}},
        sg::collective::AllReduce<>{.shard_optimizer = shards, .measured_steps = 0},
        sg::placement::ExplicitMap{place}, options);
    sg::cuda::select_device(0);
    sg::Batch<sg::cuda::Tensor<>, sg::cuda::Tensor<>> batch;
    for (std::size_t m = 0; m < 2; ++m) {
      std::vector<float> x(rows * width);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>((i + m) % 7) / 3;
      batch.inputs.emplace_back(std::initializer_list<std::size_t>{rows, width});
      batch.inputs.back().upload(x);
      batch.targets.emplace_back(std::initializer_list<std::size_t>{rows, width});
      sg::cuda::check(cudaStreamSynchronize(nullptr), "upload");
    }
    for (int step = 0; step < 4; ++step) sg::run(train.step(batch));
    for (auto const& state : train.parameters()) {
      auto const values = state.values<float>();
      found[shards].emplace_back(values.begin(), values.end());
    }
    states[shards] = train.memory().optimizer_state;
  }
  CHECK((found[true] == found[false]));
  CHECK(states[false] == static_cast<std::uint64_t>(most) * states[true]);
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
