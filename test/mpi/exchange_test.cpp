// SPDX-License-Identifier: Apache-2.0
#include <stagger/mpi/detail/exchange.hpp>
#include <stagger/mpi/detail/pieces.hpp>

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "catch.hpp"

namespace exchange_test {

// Each assertion holds in every process.

using stagger::mpi::detail::Exchange;

TEST_CASE("mpi/Exchange: every process gets what a definition of each call says", "[mpi]") {
  Exchange all(MPI_COMM_WORLD, 60);
  int const n = all.size();
  constexpr double seconds = 60;
  for (std::size_t const size : {0U, 1U, 1000U, (1U << 18U) + 5U}) {  // of several pieces
    auto const value = [](int process, std::size_t i) {
      return static_cast<std::byte>(static_cast<std::size_t>(process) * 31 + i * 7);
    };
    auto const made = [&](int process) {
      std::vector<std::byte> bytes(size);
      for (std::size_t i = 0; i < size; ++i) bytes[i] = value(process, i);
      return bytes;
    };
    for (int root = 0; root < n; ++root) {
      auto bytes = made(all.rank());
      all.broadcast(bytes, root, "hear bytes", seconds);
      REQUIRE(bytes == made(root));
    }
    for (int from = 0; from < n; ++from) {
      int const to = (from + 1) % n;
      if (n == 1) break;
      auto bytes = made(all.rank());
      if (all.rank() == from) all.send(bytes, to, "take bytes", seconds);
      if (all.rank() == to) all.receive(bytes, from, "send bytes", seconds);
      REQUIRE(bytes == made(all.rank() == to ? from : all.rank()));
    }
  }
  std::vector<std::byte> parts(static_cast<std::size_t>(3 * n));
  for (std::size_t i = 0; i < 3; ++i)
    parts[static_cast<std::size_t>(3 * all.rank()) + i] = static_cast<std::byte>(all.rank() + 1);
  all.all_gather(parts, "gather", seconds);
  for (std::size_t i = 0; i < parts.size(); ++i)
    REQUIRE(parts[i] == static_cast<std::byte>(i / 3 + 1));
  std::array<double, 2> most{static_cast<double>(all.rank()), static_cast<double>(-all.rank())};
  all.maximum(most, "compare", seconds);
  REQUIRE(most == std::array<double, 2>{static_cast<double>(n - 1), 0});
}

TEST_CASE("mpi/each_piece: what an int does not count goes in pieces that it counts", "[mpi]") {
  using namespace stagger::mpi::detail;
  constexpr std::size_t beyond = std::size_t{1} << 31U;
  for (std::size_t const size : {std::size_t{0}, std::size_t{7}, most_in_a_call, beyond - 1, beyond,
                                 3 * beyond + 5, (beyond << 8U) + 1}) {
    std::size_t next = 0;
    std::size_t pieces = 0;
    each_piece(size, most_in_a_call, [&](std::size_t at, std::size_t count) {
      CHECK(at == next);
      CHECK(count_for(count) > 0);
      next = at + count;
      ++pieces;
    });
    CHECK(next == size);
    CHECK(pieces == (size + most_in_a_call - 1) / most_in_a_call);
  }
  CHECK(count_for(beyond - 1) == 0x7fffffff);
  CHECK_THROWS_WITH(
      count_for(beyond + 3),
      "one call of MPI takes at most 2147483647 elements, not 2147483651; give it pieces");
}

TEST_CASE("mpi/Exchange: messages of one call progress together, however many there are", "[mpi]") {
  Exchange all(MPI_COMM_WORLD, 60);
  constexpr std::size_t bytes = std::size_t{1} << 20U;
  auto const n = static_cast<std::size_t>(all.size());
  std::byte* const memory = all.memory(2 * n * bytes);
  std::vector<Exchange::Message> messages;
  for (std::size_t p = 0; p < n; ++p) {
    if (static_cast<int>(p) == all.rank()) continue;
    std::fill_n(memory + p * bytes, bytes, static_cast<std::byte>(all.rank() * 16 + int(p)));
    messages.push_back({static_cast<int>(p), true, memory + p * bytes, bytes});
    messages.push_back({static_cast<int>(p), false, memory + (n + p) * bytes, bytes});
  }
  all.swap(messages, "swap bytes", 60);
  for (std::size_t p = 0; p < n; ++p) {
    if (static_cast<int>(p) == all.rank()) continue;
    REQUIRE(memory[(n + p) * bytes] == static_cast<std::byte>(int(p) * 16 + all.rank()));
    REQUIRE(memory[(n + p + 1) * bytes - 1] == static_cast<std::byte>(int(p) * 16 + all.rank()));
  }
}

}  // namespace exchange_test
