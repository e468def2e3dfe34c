// SPDX-License-Identifier: Apache-2.0
#include <stagger/mpi/detail/connections.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <stagger/mpi/detail/exchange.hpp>

#include "world.hpp"

namespace packing_test {

namespace {

namespace sg = stagger;
using sg::collective::detail::Message;
using sg::mpi::detail::Channels;
using sg::mpi::detail::Envelope;
using sg::mpi::detail::Packing;

/// Sizes of payloads: of many small layers, none, larger than an envelope is full with, and small.
std::vector<std::size_t> sizes() {
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i < 300; ++i) all.push_back(64 * (i % 9));
  all.push_back(5 * Packing::full);
  for (std::size_t i = 0; i < 40; ++i) all.push_back(1000 + i);
  return all;
}
std::vector<std::byte> payload(std::size_t number, std::size_t bytes) {
  std::vector<std::byte> all(bytes);
  for (std::size_t i = 0; i < bytes; ++i) all[i] = static_cast<std::byte>(i * 7 + number);
  return all;
}
/// [envelopes] how many messages each has, if it is closed as soon as it is full.
std::vector<std::size_t> envelopes() {
  std::vector<std::size_t> counts{0};
  std::size_t held = 0;
  for (std::size_t const bytes : sizes()) {
    if (held >= Packing::full) counts.push_back(0), held = 0;
    ++counts.back();
    held += sizeof(Message) + bytes;
  }
  return counts;
}

}  // namespace

TEST_CASE("mpi/Packing: small messages that wait together share an envelope", "[mpi]") {
  if (processes() == 1) return;
  Channels channels(sg::mpi::detail::duplicate(MPI_COMM_WORLD, 60), std::size_t{1} << 30U,
                    Packing::full);
  std::vector<std::size_t> const expected = envelopes();
  if (process() == 0) {
    Packing packing(channels);
    packing.open(1, 1, 7);
    auto const all = sizes();
    for (std::size_t i = 0; i < all.size(); ++i) {
      auto const bytes = payload(i, all[i]);
      packing.add({.layer = static_cast<std::uint32_t>(i), .bytes = bytes.size()}, bytes);
    }
    packing.send();
    packing.send();  // nothing
    CHECK(channels.posted().messages == expected.size());
    auto const bytes = payload(0, 8);
    packing.send({.layer = 0, .bytes = bytes.size()}, bytes);  // which waits for no other
    CHECK(channels.posted().messages == expected.size() + 1);
    channels.flush(60);
  } else if (process() == 1) {
    std::vector<std::size_t> came;
    std::size_t next = 0;
    while (came.size() < expected.size() + 1)
      channels.poll(
          Packing::always.epoch, [&](int peer, Envelope const& envelope, sg::ByteReader& in) {
            CHECK(peer == 0);
            CHECK(envelope.what == 7);
            came.push_back(0);
            while (in.left() != 0) {
              auto const message = in.take<Message>();
              REQUIRE(message.layer == next % sizes().size());
              std::vector<std::byte> bytes(message.bytes);
              in.take(bytes.data(), bytes.size());
              REQUIRE(bytes == payload(message.layer, next < sizes().size() ? sizes()[next] : 8));
              ++came.back();
              ++next;
            }
          });
    CHECK(came.back() == 1);
    came.pop_back();
    CHECK(came == expected);
    CHECK(*std::max_element(came.begin(), came.end()) > 40);
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

}  // namespace packing_test
