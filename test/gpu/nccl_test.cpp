// SPDX-License-Identifier: Apache-2.0
#include <stagger/nccl/communicator.hpp>
#include <stagger/nccl/detail/processes.hpp>

#include "catch.hpp"

#include <optional>
#include <string>
#include <vector>

#include "in_time.hpp"
#include "kernels.hpp"
#include "skip.hpp"

namespace sg = stagger;

namespace {

constexpr double longest_wait_s = 60;

sg::nccl::Invitation invitation() {
  return sg::nccl::invite(0, [](std::span<std::byte>) {});
}

std::vector<float> values(sg::cuda::Tensor<> const& tensor) {
  std::vector<float> host(tensor.size());
  tensor.download(host);
  sg::cuda::check(cudaStreamSynchronize(nullptr), "download");
  return host;
}

sg::cuda::Tensor<> on_device(std::vector<float> const& host) {
  sg::cuda::Tensor<> tensor({host.size()});
  tensor.upload(host);
  sg::cuda::check(cudaStreamSynchronize(nullptr), "upload");
  return tensor;
}

std::span<float> span(sg::cuda::Tensor<>& tensor) { return {tensor.data(), tensor.size()}; }

}  // namespace

TEST_CASE("gpu/Communicator: one rank joins, sends to itself, reduces, splits and finalizes",
          "[gpu]") {
  if (no_gpu()) return;
  sg::nccl::Device device(0);
  sg::cuda::Stream const stream(sg::cuda::Priority::message);
  sg::nccl::Communicator one(device, invitation(), 1, 0, stream);
  one.joined().wait(longest_wait_s);
  auto x = on_device({1, 2, 3, 4});
  auto y = on_device({0, 0, 0, 0});
  {
    auto group = one.group();
    one.send(group, span(x), 0);
    auto received = one.receive(group, span(y), 0);
    group.submit();
    received.wait(longest_wait_s);
  }
  CHECK(values(y) == std::vector<float>{1, 2, 3, 4});
  sg::nccl::Communicator part;
  one.split(0, 0, part).wait(longest_wait_s);
  CHECK(part.size() == 1);
  part.all_reduce(span(y), sg::nccl::Reduction::max).wait(longest_wait_s);
  part.finalize().wait(longest_wait_s);
  one.finalize().wait(longest_wait_s);
}

TEST_CASE("gpu/Communicator: a peer that never comes is an error in time", "[gpu]") {
  if (no_gpu()) return;
  sg::nccl::Device device(0);
  sg::cuda::Stream const stream;
  sg::nccl::Communicator alone(device, invitation(), 2, 0, stream);
  fails_in_time(sg::Errc::deadline, 2, [&] { alone.joined().wait(2); });
  alone.abort("the other rank is missing");
  CHECK(alone.gone(longest_wait_s));
}

TEST_CASE("gpu/Communicator: two ranks on one GPU are refused in time", "[gpu]") {
  if (no_gpu()) return;
  sg::nccl::Device device(0);
  sg::cuda::Stream const stream;
  auto const id = invitation();
  // Each with an order of its own: one alone would wait for the first to join.
  sg::nccl::Device other(0);
  sg::nccl::Communicator first(device, id, 2, 0, stream);
  sg::nccl::Communicator second(other, id, 2, 1, stream);
  auto a = first.joined();
  auto b = second.joined();
  ncclResult_t result = ncclSuccess;  // NCCL's words for it differ from version to version
  fails_in_time(sg::Errc::device, longest_wait_s, [&] {
    try {
      sg::nccl::Operation both[] = {a, b};
      sg::nccl::detail::wait_for_all(both, longest_wait_s);
    } catch (sg::nccl::Error const& error) {
      result = error.result();
      throw;
    }
  });
  CHECK(result == ncclInvalidUsage);
}

TEST_CASE("gpu/Communicator: a send to oneself that nothing receives is refused", "[gpu]") {
  if (no_gpu()) return;
  sg::nccl::Device device(0);
  sg::cuda::Stream const stream;
  sg::nccl::Communicator one(device, invitation(), 1, 0, stream);
  one.joined().wait(longest_wait_s);
  auto x = on_device({1});
  fails_in_time(sg::Errc::device, longest_wait_s, [&] {
    auto group = one.group();
    auto sent = one.send(group, span(x), 0);
    group.submit();
    sent.wait(longest_wait_s);
  });
}

TEST_CASE("gpu/Communicator: behind a kernel that spins, a collective is an error in time",
          "[gpu]") {
  if (no_gpu()) return;
  sg::nccl::Device device(0);
  sg::cuda::Stream const stream;
  sg::nccl::Communicator one(device, invitation(), 1, 0, stream);
  one.joined().wait(longest_wait_s);
  sg::cuda::Pinned<int> open(1);
  open.data()[0] = 0;
  auto x = on_device({1});
  gpu_kernels::spin(open.data(), stream.get());
  auto sum = one.all_reduce(span(x), sg::nccl::Reduction::sum);
  fails_in_time(sg::Errc::deadline, 1, [&] { sum.wait(1); });
  *static_cast<int volatile*>(open.data()) = 1;
  sum.wait(longest_wait_s);
  one.finalize().wait(longest_wait_s);
}
