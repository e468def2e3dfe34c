// SPDX-License-Identifier: Apache-2.0
#include <stagger/nccl/communicator.hpp>

#include "catch.hpp"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

#include "nccl/ranks.hpp"

namespace communicator_fault_test {

using namespace nccl_ranks;
using sg::nccl::Reduction;

namespace {

struct Caught {
  sg::Errc code{};
  std::string words;
  bool operator==(sg::Errc other) const { return !words.empty() && code == other; }
};

template <class Body> Caught caught(Body body) {
  try {
    body();
  } catch (sg::Error const& error) {
    return {error.code(), error.what()};
  }
  return {};
}

bool has(Caught const& error, char const* words) {
  return error.words.find(words) != std::string::npos;
}

}  // namespace

TEST_CASE("nccl/invite: all ranks get rank 0's id, another version is refused by name", "[nccl]") {
  si::Session const session;
  std::vector<std::byte> wire;
  auto const broadcast = [&](std::span<std::byte> bytes) {
    if (wire.empty())
      wire.assign(bytes.begin(), bytes.end());
    else
      std::copy(wire.begin(), wire.end(), bytes.begin());
  };
  auto const first = sg::nccl::invite(0, broadcast);
  auto const second = sg::nccl::invite(1, broadcast);
  CHECK(std::memcmp(&first.id, &second.id, sizeof first.id) == 0);
  si::nccl_version(22703);
  auto const error = caught([&] { static_cast<void>(sg::nccl::invite(2, broadcast)); });
  CHECK(error == sg::Errc::bad_configuration);
  CHECK(has(error, "rank 2 runs with NCCL 2.27.3 and rank 0 with 2."));
}

TEST_CASE("nccl/fault: a peer that never comes is an error in time, and the rank can leave",
          "[nccl]") {
  si::Session const session;
  {
    sg::nccl::Device device(0);
    sg::cuda::Stream const stream;
    auto const invitation = sg::nccl::invite(0, [](std::span<std::byte>) {});
    sg::nccl::Communicator alone(device, invitation, 2, 0, stream);
    float x = 1;
    auto sum = alone.all_reduce(std::span<float>(&x, 1), Reduction::sum);
    auto const error = caught([&] { alone.joined().wait(0.05); });
    CHECK(error == sg::Errc::deadline);
    CHECK(has(error, "rank 0 of 2 waited 0.05 s to join a communicator: NCCL has not enqueued it"));
    CHECK(caught([&] { sum.wait(0.01); }) == sg::Errc::deadline);
    alone.abort("rank 1 is missing");
    CHECK(alone.gone(longest_wait_s));
    auto const after = caught([&] { sum.poll(); });
    CHECK(after == sg::Errc::cancelled);
    CHECK(has(after, "rank 1 is missing"));
  }
  CHECK(session.left().communicators == 0);
}

TEST_CASE("nccl/fault: a rank that makes no matching call is an error in time", "[nccl]") {
  si::Session const session;
  float x = 1;
  Ranks ranks(2);
  ranks.join();
  auto sum = ranks[0].all_reduce(std::span<float>(&x, 1), Reduction::sum);
  auto const error = caught([&] { sum.wait(0.05); });
  CHECK(error == sg::Errc::deadline);
  CHECK(has(error, "it is on the stream and the device has not finished it"));
  ranks[0].abort("the other one is busy");
  CHECK(ranks[0].gone(longest_wait_s));
}

TEST_CASE("nccl/fault: what NCCL refuses comes with NCCL's words", "[nccl]") {
  si::Session const session;
  si::in_progress_polls(GENERATE(0, 2));
  SECTION("two ranks on one GPU") {
    Ranks ranks(2, true);
    auto const error = caught([&] { ranks.join(); });
    CHECK(error == sg::Errc::device);
    CHECK(has(error, "give each rank a GPU of its own"));
  }
  SECTION("a send to oneself that nothing receives") {
    float x = 1;
    Ranks ranks(1);
    ranks.join();
    auto const error = caught([&] {
      auto group = ranks[0].group();
      auto operation = ranks[0].send(group, std::span<float>(&x, 1), 0);
      group.submit();
      operation.wait(longest_wait_s);
    });
    CHECK(error == sg::Errc::device);
    CHECK(has(error, "without a matching recv"));
  }
  SECTION("counts that differ") {
    std::array<float, 4> x{};
    Ranks ranks(2);
    ranks.join();
    auto const error = caught([&] {
      ranks.each([&](std::size_t r, auto& c) {
        auto group = c.group();
        return r == 0 ? c.send(group, std::span<float>(x).first(2), 1)
                      : c.receive(group, std::span<float>(x).last(1), 0);
      });
    });
    CHECK(error == sg::Errc::device);
    CHECK(has(error, "mismatched counts"));
  }
  SECTION("ranks of two versions that nobody compared") {
    auto const invitation = sg::nccl::invite(0, [](std::span<std::byte>) {});
    sg::nccl::Device a(0);
    sg::nccl::Device b(1);
    sg::cuda::Stream const stream;
    sg::nccl::Communicator first(a, invitation, 2, 0, stream);
    si::nccl_version(22703);
    sg::nccl::Communicator second(b, invitation, 2, 1, stream);
    CHECK(has(caught([&] { first.joined().wait(longest_wait_s); }), "Mismatched NCCL version"));
  }
}

TEST_CASE("nccl/fault: a call that cannot be right is refused before NCCL sees it, with its group",
          "[nccl]") {
  si::Session const session;
  si::in_progress_polls(GENERATE(0, 2));
  {
    std::array<float, 2> x{1, 2};
    Ranks ranks(2);
    ranks.join();
    auto const calls = si::calls(si::Call::group_end);
    auto error = caught([&] {
      auto group = ranks[0].group();
      ranks[0].send(group, std::span<float>(x), 1);
      auto operation = ranks[0].receive(group, std::span<float>(x), 7);
      group.submit();
      operation.wait(longest_wait_s);
    });
    CHECK(error == sg::Errc::bad_configuration);
    CHECK(has(error, "rank 0 of 2: there is no rank 7 to exchange anything with; name one from 0"));
    error = caught([&] { ranks[1].broadcast(std::span<float>(x), -1).wait(longest_wait_s); });
    CHECK(has(error, "rank 1 of 2: there is no rank -1"));
    error = caught([&] {
      ranks[0]
          .all_reduce(std::span<float>(static_cast<float*>(nullptr), 3), Reduction::sum)
          .wait(longest_wait_s);
    });
    CHECK(has(error, "a call for 3 elements has no memory"));
    CHECK(si::calls(si::Call::group_end) == calls);
    ranks.each([&](std::size_t r, auto& c) {
      return c.all_reduce(std::span<float>(&x[r], 1), Reduction::sum);
    });
    CHECK(x == std::array<float, 2>{3, 3});
    ranks.finalize();
  }
  CHECK(session.left() == si::Live{});
}

TEST_CASE("nccl/fault: an argument that NCCL itself refuses ends the communicator", "[nccl]") {
  si::Session const session;
  float x = 1;
  Ranks ranks(2);
  ranks.join();
  si::fail(si::Call::group_end, 1, ncclInvalidArgument);
  auto const error = caught(
      [&] { ranks[0].all_reduce(std::span<float>(&x, 1), Reduction::sum).wait(longest_wait_s); });
  CHECK(error == sg::Errc::device);
  CHECK(has(error, "make the communicator anew"));
  auto const calls = si::calls(si::Call::group_end);
  auto const next = caught(
      [&] { ranks[0].all_reduce(std::span<float>(&x, 1), Reduction::sum).wait(longest_wait_s); });
  CHECK(next.words == error.words);
  CHECK(si::calls(si::Call::group_end) == calls);
}

TEST_CASE("nccl/fault: an asynchronous error reaches every operation, and no call follows it",
          "[nccl]") {
  si::Session const session;
  float x = 1;
  Ranks ranks(2);
  ranks.join();
  auto first = ranks[0].all_reduce(std::span<float>(&x, 1), Reduction::sum);
  auto second = ranks[0].all_reduce(std::span<float>(&x, 1), Reduction::sum);
  si::break_communicators(0, 2, ncclRemoteError);
  auto const error = caught([&] { first.wait(longest_wait_s); });
  CHECK(error == sg::Errc::peer_failed);
  CHECK(has(error, "an injected error"));
  CHECK(caught([&] { second.wait(longest_wait_s); }) == sg::Errc::peer_failed);
  auto const calls = si::calls(si::Call::group_end);
  auto third = ranks[0].all_reduce(std::span<float>(&x, 1), Reduction::sum);
  CHECK(caught([&] { third.wait(longest_wait_s); }) == sg::Errc::peer_failed);
  CHECK(si::calls(si::Call::group_end) == calls);
}

TEST_CASE("nccl/fault: an abort that hangs blocks neither the call nor the destructor", "[nccl]") {
  si::Session const session;
  si::abort_hangs(true);
  {
    Ranks ranks(2);
    ranks.join();
    ranks[0].abort("a test");
    CHECK_FALSE(ranks[0].gone(0.05));
  }
  si::abort_hangs(false);
  while (session.left().communicators != 0) std::this_thread::yield();
}

TEST_CASE("nccl/fault: a process ends behind the aborts that are under way", "[nccl]") {
  si::Session const session;
  std::fflush(nullptr);
  pid_t const child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    {
      sg::nccl::Device device(0);
      sg::cuda::Stream const stream;
      sg::nccl::Communicator one(device, sg::nccl::invite(0, [](std::span<std::byte>) {}), 1, 0,
                                 stream);
      one.joined().wait(longest_wait_s);
      si::abort_takes(300);
    }
    while (si::aborts() == 0) std::this_thread::yield();  // the abort has begun
    std::exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) != si::exit_code_of_misuse);
}

TEST_CASE("nccl/fault: a call that fails at once leaves an error, not a hang", "[nccl]") {
  si::Session const session;
  auto const invitation = sg::nccl::invite(0, [](std::span<std::byte>) {});
  sg::nccl::Device device(0);
  sg::cuda::Stream const stream;
  si::fail(si::Call::comm_init, 1, ncclSystemError);
  CHECK(caught([&] { sg::nccl::Communicator(device, invitation, 1, 0, stream); }) ==
        sg::Errc::device);
  CHECK(caught([&] { sg::nccl::Communicator(device, invitation, 2, 2, stream); }) ==
        sg::Errc::bad_configuration);
  Ranks ranks(2);
  ranks.join();
  si::fail(si::Call::group_end, 1, ncclInternalError);
  float x = 1;
  auto sum = ranks[1].all_reduce(std::span<float>(&x, 1), Reduction::sum);
  CHECK(caught([&] { sum.wait(longest_wait_s); }) == sg::Errc::device);
  std::array<float, 3> three{};
  CHECK(has(caught([&] { ranks[0].all_gather(std::span<float>(three)); }),
            "3 elements cannot be cut into 2 equal"));
}

}  // namespace communicator_fault_test
