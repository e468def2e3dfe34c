// SPDX-License-Identifier: Apache-2.0
#include <stagger/host/asio_parameter_server.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "../train/scalar_worker.hpp"
#include "count_allocations.hpp"

namespace allocation_test {

#ifdef COUNTS_ALLOCATIONS

namespace {

namespace sg = stagger;

/// Of two workers and of their server.
template <class Model, class Make, class Take>
long allocations_of_workers(Model const& model, Make make, Take take) {
  sg::collective::ParameterServer const server({.workers = 2});
  sg::host::AsioParameterServer const listening(server, {}, scalar_worker::sgd, model);
  sg::host::RemoteParameterServer const remote({.port = listening.port()});
  auto a = make(remote.worker(0));
  auto b = make(remote.worker(1));
  return scalar_worker::allocations_of_a_round(a, b, take,
                                               [](auto body) { return allocations_of(body); });
}

}  // namespace

TEST_CASE("asio/allocation: none in a step of a worker, nor in its server, after the first",
          "[asio]") {
  int number = 0;
  scalar_worker::each_model_of_steps([&](auto const& model) {
    CAPTURE(number++);
    CHECK(allocations_of_workers(
              model, [&](auto worker) { return scalar_worker::stepping(model, worker); },
              [](auto& train, auto& batch) { return train.step(batch); }) == 0);
  });
}

TEST_CASE("asio/allocation: none in a stream of a worker, nor in its server, after the first",
          "[asio]") {
  CHECK(allocations_of_workers(
            sg::staleness::Synchronous{},
            [](auto worker) { return scalar_worker::streaming(worker); },
            [](auto& train, auto& batch) { return train.stream(batch); }) == 0);
}

namespace {

namespace remote = sg::collective::detail;

/// Workers of other processes on their way in, without a connection: the test carries messages.
class Arrivals {
 public:
  Arrivals(int workers, std::size_t elements)
      : elements_(elements),
        server_(std::make_shared<remote::ServerInProcess>(
            sg::collective::ServerOptions{.workers = workers})) {
    rules_.model_bytes = std::uint64_t{1} << 40U;
    for (int n = 0; n < workers; ++n) {
      ends_.push_back(std::make_unique<remote::ServerConnection>(server_, rules_));
      nowhere_.push_back(std::make_unique<Nowhere>());
      ends_.back()->carried_by(*nowhere_.back());
    }
  }
  /// A request to join with one layer of zeros, as docs/workers_protocol.md describes it.
  /// @param digest  of the values
  void request(int n, std::size_t elements, std::uint64_t digest) {
    sg::ByteWriter out;
    auto const u32 = [&](std::uint32_t value) { out.add(value); };
    for (std::uint32_t const each :
         {0U, static_cast<std::uint32_t>(n), 1U, 1U, 0U, 1U, 0U, 0xffffffffU, 0U, 0U, 0U, 0U, 1U})
      u32(each);
    out.add(digest);
    u32(1);
    u32(0);
    u32(1);
    out.add(std::uint64_t{elements});
    out.add(std::uint64_t{0});  // rows
    u32(1);
    out.add("w", 1);
    deliver(n, {.kind = remote::MessageKind::join, .bytes = out.size()}, out.data());
  }
  void give(int n) {
    std::vector<std::byte> const zeros(elements_ * sizeof(float));
    deliver(n, {.kind = remote::MessageKind::values, .bytes = zeros.size()}, zeros.data());
  }
  /// @return the kind of the last message that the server has for the worker; of none if there is
  ///         none
  remote::MessageKind told(int n) {
    remote::Message message;
    for (std::span<std::byte const> payload; ends_[index(n)]->next(message, payload);) continue;
    return message.kind;
  }

 private:
  struct Nowhere final : remote::Transport {
    void wake() noexcept override {}
    void close() noexcept override {}
  };
  static std::size_t index(int n) { return static_cast<std::size_t>(n); }
  void deliver(int n, remote::Message const& message, std::byte const* payload) {
    auto const buffer = ends_[index(n)]->payload_buffer(message);
    std::copy_n(payload, buffer.size(), buffer.begin());
    ends_[index(n)]->received(message);
  }

  std::size_t elements_;
  std::shared_ptr<remote::ServerInProcess> server_;
  remote::RemoteRules rules_{};
  std::vector<std::unique_ptr<Nowhere>> nowhere_{};
  std::vector<std::unique_ptr<remote::ServerConnection>> ends_{};
};

}  // namespace

TEST_CASE("asio/allocation: a server has what docs/workers.md says while workers join", "[asio]") {
  constexpr int workers = 8;
  constexpr std::size_t elements = 1U << 18U;
  constexpr std::size_t layer = elements * sizeof(float);
  constexpr std::size_t small = layer / 8;  // what is beside values
  std::vector<std::byte> const zeros(layer);
  std::uint64_t const digest = remote::values_digest(zeros);
  Arrivals all(workers, elements);
  CHECK(bytes_allocated_by([&] {
          for (int n = 0; n < workers; ++n) all.request(n, elements, digest);
        }) < small);
  REQUIRE(all.told(0) == remote::MessageKind::wanted);
  for (int n = 1; n < workers; ++n) REQUIRE(all.told(n) == remote::MessageKind{});
  // The payload in the test, the values, their copy while the layer is made, the layer, and memory
  // for its gradients before it is known that there are none; what a step may have to undo; then two
  // for the worker.
  CHECK(bytes_allocated_by([&] { all.give(0); }) < 8 * layer + small);
  CHECK(bytes_allocated_by([&] {
          for (int n = 1; n < workers; ++n) REQUIRE(all.told(n) == remote::MessageKind::joined);
        }) < (workers - 1) * 2 * layer + small);
}

TEST_CASE("asio/allocation: a request to join costs no more than its bytes", "[asio]") {
  constexpr std::size_t huge = std::size_t{1} << 36U;
  Arrivals all(2, 16);
  CHECK(bytes_allocated_by([&] { all.request(0, huge, 0); }) < 10000);
  CHECK(all.told(0) == remote::MessageKind::wanted);
  Arrivals later(2, 16);
  later.request(0, 16, remote::values_digest(std::vector<std::byte>(64)));
  later.give(0);
  REQUIRE(later.told(0) == remote::MessageKind::joined);
  // Catch's own allocations are not many either.
  CHECK(bytes_allocated_by([&] {
          REQUIRE_THROWS_WITH(later.request(1, huge, 0), Catch::Contains("train one model"));
        }) < 100000);
}

#endif

}  // namespace allocation_test
