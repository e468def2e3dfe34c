// SPDX-License-Identifier: Apache-2.0
#include <stagger/mpi/detail/channels.hpp>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <stdexcept>
#include <utility>
#include <vector>

#include <stagger/mpi/detail/exchange.hpp>

#include "catch.hpp"

namespace channels_test {

namespace {

namespace sg = stagger;
using sg::mpi::detail::Channels;
using sg::mpi::detail::Envelope;
using sg::mpi::detail::Stamp;

struct Came {
  int peer;
  std::uint32_t what;
  std::vector<std::byte> bytes;
};

/// Polls until so many messages have come.
std::vector<Came> receive(Channels& channels, std::uint32_t epoch, std::size_t count) {
  std::vector<Came> all;
  while (all.size() < count)
    channels.poll(epoch, [&](int peer, Envelope const& envelope, sg::ByteReader& in) {
      std::vector<std::byte> bytes(in.left());
      in.take(bytes.data(), bytes.size());
      all.push_back({peer, envelope.what, bytes});
    });
  return all;
}

void post(Channels& channels, std::uint32_t epoch, std::uint32_t what, std::size_t bytes) {
  auto message = channels.blank();
  for (std::size_t i = 0; i < bytes; ++i)
    message->payload.add(
        static_cast<std::byte>(i + what + 7 * static_cast<std::size_t>(channels.rank())));
  channels.post_to_all(std::move(message), Stamp{.epoch = epoch}, what);
}

bool as_posted(Came const& came, std::size_t bytes) {
  bool same = came.bytes.size() == bytes;
  for (std::size_t i = 0; same && i < bytes; ++i)
    same = came.bytes[i] ==
           static_cast<std::byte>(i + came.what + 7 * static_cast<std::size_t>(came.peer));
  return same;
}

}  // namespace

TEST_CASE("mpi/Channels: a message longer than MPI takes at a time arrives whole", "[mpi]") {
  Channels channels(sg::mpi::detail::duplicate(MPI_COMM_WORLD, 60), 8);
  auto const others = static_cast<std::size_t>(channels.size() - 1);
  std::size_t const sizes[] = {0, 1, 7, 8, 9, 16, 17, 100};
  for (std::uint32_t s = 0; s < std::size(sizes); ++s) post(channels, 2, s, sizes[s]);
  std::vector<std::uint32_t> next(static_cast<std::size_t>(channels.size()));
  for (auto const& came : receive(channels, 2, others * std::size(sizes))) {
    REQUIRE(came.what == next[static_cast<std::size_t>(came.peer)]++);  // in order
    REQUIRE(as_posted(came, sizes[came.what]));
  }
  channels.flush(60);
}

TEST_CASE("mpi/Channels: what a delivery throws loses no other message", "[mpi]") {
  Channels channels(sg::mpi::detail::duplicate(MPI_COMM_WORLD, 60));
  auto const others = static_cast<std::size_t>(channels.size() - 1);
  MPI_Barrier(MPI_COMM_WORLD);
  post(channels, 2, 1, 0);
  post(channels, 2, 2, 40);
  MPI_Barrier(MPI_COMM_WORLD);  // so that several have come when the first is delivered
  for (std::size_t thrown = 0; thrown < others;) try {
      channels.poll(2, [](int, Envelope const& envelope, sg::ByteReader&) {
        if (envelope.what == 1) throw std::runtime_error("refused");
      });
    } catch (std::runtime_error const&) {
      ++thrown;
    }
  post(channels, 2, 3, 5);
  std::size_t threes = 0;
  while (threes < others)
    channels.poll(2, [&](int peer, Envelope const& envelope, sg::ByteReader& in) {
      if (envelope.what != 3) return;
      REQUIRE(in.left() == 5);
      REQUIRE(peer != channels.rank());
      ++threes;
    });
  channels.flush(60);
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST_CASE("mpi/Channels: a later epoch waits, the first epoch of a round is delivered in both",
          "[mpi]") {
  Channels channels(sg::mpi::detail::duplicate(MPI_COMM_WORLD, 60));
  auto const others = static_cast<std::size_t>(channels.size() - 1);
  post(channels, 2, 10, 0);
  post(channels, 3, 11, 0);
  post(channels, 4, 12, 3);
  for (auto const& came : receive(channels, 3, 2 * others)) REQUIRE(came.what < 12);
  post(channels, 6, 13, 0);
  for (auto const& came : receive(channels, 6, others)) REQUIRE(came.what == 13);  // 12 is past
  channels.flush(60);
}

}  // namespace channels_test
