// SPDX-License-Identifier: Apache-2.0
#include <stagger/nccl/communicator.hpp>

#include "catch.hpp"

#include <array>
#include <optional>

#include <stagger/cuda/graph.hpp>

#include "nccl/ranks.hpp"

namespace communicator_test {

using namespace nccl_ranks;
using sg::nccl::Reduction;

namespace {

using Row = std::array<float, 6>;

std::vector<Row> rows(std::size_t ranks) {
  std::vector<Row> all(ranks);
  for (std::size_t r = 0; r < ranks; ++r)
    for (std::size_t i = 0; i < 6; ++i) all[r][i] = static_cast<float>(r * 10 + i);
  return all;
}

std::span<float> span(Row& row) { return row; }

}  // namespace

TEST_CASE(
    "nccl/Communicator: collectives give what their definition says, however slowly NCCL answers",
    "[nccl]") {
  si::Session const session;
  si::in_progress_polls(GENERATE(0, 1, 7));
  si::jitter(GENERATE(0U, 3U));
  {
    Ranks ranks(3);
    ranks.join();
    CHECK(ranks[2].rank() == 2);
    CHECK(ranks[2].size() == 3);
    auto data = rows(3);
    ranks.each([&](std::size_t r, auto& c) { return c.all_reduce(span(data[r]), Reduction::sum); });
    for (auto const& row : data) CHECK(row == Row{30, 33, 36, 39, 42, 45});
    data = rows(3);
    ranks.each([&](std::size_t r, auto& c) { return c.all_reduce(span(data[r]), Reduction::max); });
    CHECK(data[0] == rows(3)[2]);
    data = rows(3);
    ranks.each([&](std::size_t r, auto& c) { return c.broadcast(span(data[r]), 1); });
    for (auto const& row : data) CHECK(row == rows(3)[1]);
    data = rows(3);
    ranks.each([&](std::size_t r, auto& c) { return c.all_gather(span(data[r])); });
    for (auto const& row : data) CHECK(row == Row{0, 1, 12, 13, 24, 25});
    ranks.finalize();
  }
  CHECK(session.left() == si::Live{});
}

TEST_CASE("nccl/Communicator: what one group holds progresses together, also with oneself",
          "[nccl]") {
  si::Session const session;
  si::in_progress_polls(GENERATE(0, 2));
  {
    Ranks ranks(3);
    auto data = rows(3);
    std::vector<Row> got(3);
    std::vector<Row> own(3);
    ranks.each([&](std::size_t r, auto& c) {  // asked for before anybody has joined
      auto group = c.group();
      c.send(group, span(data[r]), static_cast<int>((r + 1) % 3));
      c.send(group, span(data[r]), static_cast<int>(r));
      c.receive(group, span(own[r]), static_cast<int>(r));
      return c.receive(group, span(got[r]), static_cast<int>((r + 2) % 3));
    });
    for (std::size_t r = 0; r < 3; ++r) {
      CHECK(got[r] == data[(r + 2) % 3]);
      CHECK(own[r] == data[r]);
    }
    ranks.finalize();
  }
  CHECK(session.left() == si::Live{});
}

TEST_CASE("nccl/Communicator: every element type arrives as it was sent", "[nccl]") {
  si::Session const session;
  Ranks ranks(2);
  ranks.join();
  auto const carry = [&]<class T>(T value) {
    std::array<T, 2> cell{value, T{}};
    ranks.each([&](std::size_t r, auto& c) { return c.broadcast(std::span<T>(&cell[r], 1), 0); });
    CHECK(cell[1] == value);
  };
  carry(3.25);
  carry(1.5F);
  carry(std::int64_t{-7});
  carry(std::uint64_t{7});
  carry(std::int32_t{-3});
  carry(std::uint32_t{3});
  carry(std::int8_t{-1});
  carry(std::byte{200});
  STATIC_REQUIRE(sg::nccl::Element<float const>);
  STATIC_REQUIRE_FALSE(sg::nccl::Element<short>);
  ranks.finalize();
}

TEST_CASE("nccl/Communicator: a pair of sends without a group does not compile", "[nccl]") {
  auto const ungrouped = []<class C>(C& c, std::span<float> x) {
    return requires { c.send(x, 1); };
  };
  auto const grouped = []<class C>(C& c, std::span<float> x) {
    return requires(typename C::Group& group) { c.send(group, x, 1); };
  };
  sg::nccl::Communicator none;
  CHECK_FALSE(ungrouped(none, {}));
  CHECK(grouped(none, {}));
}

TEST_CASE("nccl/Communicator: split by colour and key, who has no colour has no communicator",
          "[nccl]") {
  si::Session const session;
  si::in_progress_polls(GENERATE(0, 3));
  {
    Ranks ranks(4);
    std::array<sg::nccl::Communicator, 4> parts;
    ranks.each([&](std::size_t r, auto& c) {
      return c.split(r == 3 ? -1 : static_cast<int>(r % 2), -static_cast<int>(r), parts[r]);
    });
    CHECK_FALSE(parts[3]);
    CHECK(parts[0].size() == 2);
    CHECK(parts[0].rank() == 1);
    CHECK(parts[2].rank() == 0);
    CHECK(parts[1].size() == 1);
    auto data = rows(4);
    std::vector<sg::nccl::Operation> operations;
    for (std::size_t const r : {0U, 2U})
      operations.push_back(parts[r].all_reduce(span(data[r]), Reduction::max));
    Ranks::wait(operations);
    CHECK(data[0] == rows(3)[2]);
    CHECK_THROWS_AS(parts[3].all_reduce(span(data[3]), Reduction::sum), sg::Error);
    operations.clear();
    for (std::size_t const r : {0U, 1U, 2U}) operations.push_back(parts[r].finalize());
    Ranks::wait(operations);
    ranks.finalize();
  }
  CHECK(session.left() == si::Live{});
}

TEST_CASE("nccl/Device: communicators of one device enqueue in the order in which they were asked",
          "[nccl]") {
  si::Session const session;
  si::in_progress_polls(GENERATE(0, 5));
  {
    // Two communicators over the same two devices. Rank 0 polls the second one only, rank 1 the
    // first only: with a queue for each communicator nobody would start the other's work.
    Ranks ranks(2);
    std::array<sg::nccl::Communicator, 2> second;
    ranks.each([&](std::size_t r, auto& c) { return c.split(0, 0, second[r]); });
    auto a = rows(2);
    auto b = rows(2);
    std::vector<sg::nccl::Operation> watched;
    for (std::size_t r = 0; r < 2; ++r) {
      auto first = ranks[r].all_reduce(span(a[r]), Reduction::sum);
      auto next = second[r].all_reduce(span(b[r]), Reduction::sum);
      watched.push_back(r == 0 ? next : first);
    }
    Ranks::wait(watched);
    ranks.each([&](std::size_t r, auto&) { return second[r].finalize(); });
    CHECK(a[1] == b[0]);
    ranks.finalize();
  }
  CHECK(session.left() == si::Live{});
}

TEST_CASE("nccl/Communicator: memory for its connections moves with it", "[nccl]") {
  si::Session const session;
  {
    Ranks ranks(2);
    ranks.join();
    ranks.each([](std::size_t r, auto& c) {
      int const peer = r == 0 ? 1 : 0;
      return c.connect(std::span<int const>(&peer, 1));
    });
    auto first = std::make_unique<sg::nccl::Communicator>(std::move(ranks[0]));
    sg::nccl::Communicator second;
    second = std::move(*first);
    auto const allocations = si::live().allocations;
    first.reset();
    CHECK(si::live().allocations == allocations);
    ranks[0] = std::move(second);
    ranks.finalize();
  }
  CHECK(session.left() == si::Live{});
}

TEST_CASE("nccl/Operation: on_stream is earlier than done", "[nccl]") {
  si::Session const session;
  si::in_progress_polls(4);
  Ranks ranks(2);
  ranks.join();
  auto data = rows(2);
  std::vector<sg::nccl::Operation> sums;
  std::vector<sg::nccl::Operation> enqueued;
  for (std::size_t r = 0; r < 2; ++r) {
    sums.push_back(ranks[r].all_reduce(span(data[r]), Reduction::sum));
    enqueued.push_back(sums.back().on_stream());
  }
  Ranks::wait(enqueued);
  Ranks::wait(sums);
  CHECK(data[0] == Row{10, 12, 14, 16, 18, 20});
  ranks.finalize();
}

TEST_CASE("nccl/Communicator: connected edges are captured into a graph and replayed", "[nccl]") {
  si::Session const session;
  Ranks ranks(2);
  ranks.join();
  ranks.each([](std::size_t r, auto& c) {
    int const peer = 1 - static_cast<int>(r);
    return c.connect(std::span<int const>(&peer, 1));
  });
  std::array<float, 2> from{1, 2};
  std::array<float, 2> to{};
  std::vector<sg::cuda::Graph> graphs(2);
  sg::cuda::GraphCounts counts;
  for (std::size_t r = 0; r < 2; ++r)
    graphs[r].capture(ranks.all[r]->stream, counts, [&] {
      auto& c = ranks[r];
      auto group = c.group();
      c.send(group, std::span<float>(&from[r], 1), 1 - static_cast<int>(r));
      auto operation =
          c.receive(group, std::span<float>(&to[r], 1), 1 - static_cast<int>(r)).on_stream();
      group.submit();
      while (!operation.poll()) {
      }
    });
  for (int turn = 1; turn <= 3; ++turn) {
    from = {static_cast<float>(turn), static_cast<float>(-turn)};
    for (std::size_t r = 0; r < 2; ++r) graphs[r].replay(ranks.all[r]->stream, counts);
    for (auto const& rank : ranks.all)
      while (!rank->stream.idle()) {
      }
    CHECK(to[0] == static_cast<float>(-turn));
    CHECK(to[1] == static_cast<float>(turn));
  }
  graphs.clear();  // NCCL lets no communicator go before
  ranks.finalize();
}

}  // namespace communicator_test
