// SPDX-License-Identifier: Apache-2.0
#include <stagger/nccl/rendezvous.hpp>

#include "catch.hpp"

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "cuda_stand_in/stand_in.hpp"

namespace sg = stagger;
namespace si = cuda_stand_in;

namespace {

/// A port that was free a moment ago.
int free_port() {
  sg::nccl::detail::Socket const socket(::socket(AF_INET6, SOCK_STREAM, 0));
  ::sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  ::socklen_t size = sizeof any;
  REQUIRE(::bind(socket.get(), reinterpret_cast<::sockaddr*>(&any), sizeof any) == 0);
  REQUIRE(::getsockname(socket.get(), reinterpret_cast<::sockaddr*>(&any), &size) == 0);
  return ntohs(any.sin6_port);
}

sg::collective::Launch launch(int rank, int size, char const* address, int port) {
  sg::collective::Launch result;
  result.launcher = "a test";
  result.rank = rank;
  result.size = size;
  result.address = address;
  result.port = port;
  return result;
}

/// Each rank on a thread, the last first.
std::vector<std::optional<sg::nccl::Invitation>> all(int ranks, std::string const& address,
                                                     int port,
                                                     sg::nccl::Rendezvous const& options) {
  std::vector<std::optional<sg::nccl::Invitation>> got(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = ranks - 1; r >= 0; --r)
    threads.emplace_back([&, r] {
      got[static_cast<std::size_t>(r)] =
          sg::nccl::invite(launch(r, ranks, address.c_str(), port), options);
    });
  for (auto& thread : threads) thread.join();
  return got;
}

void require_one_id(std::vector<std::optional<sg::nccl::Invitation>> const& got) {
  for (auto const& one : got) {
    REQUIRE(one.has_value());
    CHECK(std::memcmp(&one->id, &got[0]->id, sizeof one->id) == 0);
  }
}

sg::Errc refused(sg::collective::Launch const& who, sg::nccl::Rendezvous const& options) {
  try {
    static_cast<void>(sg::nccl::invite(who, options));
  } catch (sg::Error const& error) {
    return error.code();
  }
  FAIL("accepted");
  return {};
}

}  // namespace

TEST_CASE("nccl/rendezvous: over TCP every rank gets rank 0's id, whoever starts first", "[nccl]") {
  si::Session const session;
  require_one_id(all(5, "localhost", free_port(), {}));
}

TEST_CASE("nccl/rendezvous: through a file every rank gets rank 0's id", "[nccl]") {
  si::Session const session;
  std::string const file = "rendezvous_test." + std::to_string(::getpid());
  sg::nccl::Rendezvous options;
  options.file = file;
  require_one_id(all(4, "", 0, options));
  std::remove(file.c_str());
}

TEST_CASE("nccl/rendezvous: who does not come, or cannot be met, is an error in time", "[nccl]") {
  si::Session const session;
  sg::nccl::Rendezvous options;
  options.deadline_s = 0.1;
  int const port = free_port();
  CHECK(refused(launch(0, 2, "localhost", port), options) == sg::Errc::deadline);
  CHECK(refused(launch(1, 2, "localhost", port), options) == sg::Errc::deadline);
  CHECK(refused(launch(1, 2, "no-such-host.invalid", port), options) == sg::Errc::deadline);
  CHECK(refused(launch(1, 2, "", 0), options) == sg::Errc::bad_configuration);
  options.file = "no/such/folder/file";
  CHECK(refused(launch(0, 2, "", 0), options) == sg::Errc::io);
  CHECK(refused(launch(1, 2, "", 0), options) == sg::Errc::deadline);
  sg::nccl::detail::Socket const taken(::socket(AF_INET6, SOCK_STREAM, 0));
  ::sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  any.sin6_port = htons(static_cast<std::uint16_t>(port));
  REQUIRE(::bind(taken.get(), reinterpret_cast<::sockaddr*>(&any), sizeof any) == 0);
  REQUIRE(::listen(taken.get(), 1) == 0);
  CHECK(refused(launch(0, 2, "localhost", port), options) == sg::Errc::io);
}
