// SPDX-License-Identifier: Apache-2.0
#include "cuda/layers.hpp"

#include "catch.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include <stagger/cuda/gpus.hpp>
#include <stagger/engine/groups.hpp>
#include <stagger/partition/even.hpp>
#include <stagger/partition/layer_split.hpp>
#include <stagger/schedule/zero_bubble_h1.hpp>
#include <stagger/stagger.hpp>

#include "cuda_stand_in/stand_in.hpp"

namespace model_test {

namespace sg = stagger;
namespace si = cuda_stand_in;

namespace {

constexpr gpt::ModelShape shape{3, 12, 2, 7};
constexpr std::uint64_t seed = 3;
constexpr sg::optimizer::AdamW adam{.rate = 1e-2, .beta2 = 0.98, .weight_decay = 0.05};
using DeviceAdam = sg::cuda::Enqueued<sg::optimizer::AdamW>;

/// Microbatches of unequal sizes, two of them.
sg::Batch<gpt::Tokens, gpt::Tokens> text(std::uint64_t step) {
  sg::Batch<gpt::Tokens, gpt::Tokens> batch;
  for (std::size_t m = 0; m < 2; ++m) {
    gpt::Tokens x({3 - m, 7});
    gpt::Tokens t({3 - m, 7});
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<std::uint8_t>(sg::random_bits(1, {step, m, i / 2}) % 256);
      t[i] = static_cast<std::uint8_t>(sg::random_bits(2, {step, m, i}) % 256);
    }
    batch.inputs.push_back(std::move(x));
    batch.targets.push_back(std::move(t));
  }
  return batch;
}

using DeviceBatch = sg::Batch<gpt::gpu::DeviceTokens, gpt::gpu::DeviceTokens>;

void upload(sg::Batch<gpt::Tokens, gpt::Tokens> const& from, DeviceBatch& to) {
  to.inputs.resize(from.inputs.size());
  to.targets.resize(from.inputs.size());
  auto const copy = [](gpt::Tokens const& host, gpt::gpu::DeviceTokens& device) {
    device.resize_like(host);
    REQUIRE(cudaMemcpy(device.data(), host.data(), host.size(), cudaMemcpyHostToDevice) ==
            cudaSuccess);
  };
  for (std::size_t m = 0; m < from.inputs.size(); ++m) {
    copy(from.inputs[m], to.inputs[m]);
    copy(from.targets[m], to.targets[m]);
  }
}

sg::Options options(double clip) {
  sg::Options result;
  result.clip_norm = clip;
  return result;
}

/// @param members  ranks that share each half block
template <class T> auto on_device(int stages, bool capture, double clip, int members = 1) {
  auto const workspaces = std::make_shared<gpt::gpu::Workspaces<T>>(gpt::gpu::Precision::fp32);
  sg::cuda::Gpus device;
  device.devices = {0};
  device.capture = capture;
  device.kernels = &sg::cuda::parameter_kernels;
  sg::Options own = options(clip);
  std::vector<int> const counts(static_cast<std::size_t>(stages), members);
  if (members > 1) own.replicas = sg::Replicas::even(counts.data(), counts.size());
  return sg::Pipeline{gpt::gpu::make_model<T>(shape, seed, workspaces)}.with(
      sg::partition::LayerSplit{
          .group = members, .over = sg::partition::Even{stages}, .threshold = 0},
      sg::schedule::ZeroBubbleH1{}, gpt::gpu::CrossEntropy<T>(workspaces), DeviceAdam{adam}, device,
      own);
}

auto on_host(double clip) {
  return sg::Pipeline{gpt::make_model<float>(shape, seed)}.on_one_device(
      adam, gpt::CrossEntropy<float>{}, options(clip));
}

/// |a - b| / |b|
double distance(std::span<float const> a, std::span<float const> b) {
  double difference = 0;
  double length = 1e-30;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    length += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / length);
}

std::span<float const> floats(std::span<std::byte const> bytes) {
  return {reinterpret_cast<float const*>(bytes.data()), bytes.size() / sizeof(float)};
}

/// Takes steps on both. Each starts where the host stands.
template <class T> void compare(int stages, bool capture, double tolerance, int members = 1) {
  for (double const clip : {1e9, 0.5}) {
    CAPTURE(stages, capture, clip, members);
    auto host = on_host(clip);
    auto train = on_device<T>(stages, capture, clip, members);
    DeviceBatch batch;
    for (std::uint64_t s = 0; s < 3; ++s) {
      auto const data = text(s);
      upload(data, batch);
      auto const here = host.step(data);
      auto const there = sg::run(train.step(batch));
      CHECK(there.terms == here.terms);
      CHECK(std::abs(there.loss - here.loss) < tolerance * here.loss);
      CHECK(std::abs(there.gradient_norm - here.gradient_norm) <
            4 * tolerance * here.gradient_norm);
      auto const a = train.parameters();
      auto const b = host.parameters();
      REQUIRE(a.size() == b.size());
      for (std::size_t i = 0; i < a.size(); ++i) {
        CAPTURE(s, a[i].name);
        REQUIRE(a[i].name == b[i].name);
        // The first moment is a sum of gradients: each parameter's gradient is checked by itself.
        // That of the keys' bias is zero but for rounding.
        auto m = floats(a[i].state[0]);
        auto n = floats(b[i].state[0]);
        if (a[i].name.find("qkv.bias") != std::string::npos) {
          m = m.subspan(2 * 12);
          n = n.subspan(2 * 12);
        }
        CHECK(distance(m, n) < 8 * tolerance);
        std::copy(b[i].value.begin(), b[i].value.end(), a[i].value.begin());
        for (std::size_t k = 0; k < 2; ++k)
          std::copy(b[i].state[k].begin(), b[i].state[k].end(), a[i].state[k].begin());
      }
    }
  }
}

}  // namespace

TEST_CASE("gpt_cuda/model: layers of the GPU have the losses and gradients of the host's",
          "[gpt_cuda]") {
  si::Session const session;
  compare<float>(1, false, 1e-5);
  compare<float>(3, true, 1e-5);
}

TEST_CASE("gpt_cuda/model: members of a group that share half blocks have them, too",
          "[gpt_cuda]") {
  si::Session const session;
  compare<float>(1, false, 1e-5, 2);
  compare<float>(2, true, 1e-5, 2);
}

TEST_CASE("gpt_cuda/model: halves with masters in single precision stay near the host's",
          "[gpt_cuda]") {
  si::Session const session;
  compare<__nv_bfloat16>(2, false, 1.5e-2);
}

TEST_CASE("gpt_cuda/model: any cut, recorded or not, has the same bits", "[gpt_cuda]") {
  si::Session const session;
  std::vector<std::byte> expected;
  for (int const stages : {1, 2, 8}) {
    for (bool const capture : {false, true}) {
      auto train = on_device<float>(stages, capture, 0.5);
      DeviceBatch batch;
      upload(text(0), batch);
      for (std::uint64_t s = 0; s < 4; ++s) {
        upload(text(s), batch);
        sg::run(train.step(batch));
      }
      std::vector<std::byte> bits;
      for (auto const& p : train.parameters())
        bits.insert(bits.end(), p.value.begin(), p.value.end());
      if (expected.empty()) expected = bits;
      CHECK((bits == expected));
    }
  }
}

}  // namespace model_test
