// SPDX-License-Identifier: Apache-2.0
#include <stagger/collective/in_process.hpp>

#include <cstdint>
#include <cstring>
#include <exception>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "collective/ranks.hpp"

using namespace stagger;
using namespace stagger::collective;
using collective_test::on_threads;
using collective_test::poll_all;

namespace {

/// Values whose sum depends on the order of addition.
std::vector<std::vector<float>> rough(int ranks, std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> x(static_cast<std::size_t>(ranks), std::vector<float>(count));
  for (auto& v : x) {
    for (auto& e : v) e = std::ldexp(normal(random), static_cast<int>(random() % 20) - 10);
  }
  return x;
}

/// Left to right over the ranks.
std::vector<float> sum_in_rank_order(std::vector<std::vector<float>> const& x) {
  std::vector<float> sum = x[0];
  for (std::size_t r = 1; r < x.size(); ++r) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += x[r][i];
  }
  return sum;
}

bool same_bits(std::span<float const> a, std::span<float const> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

}  // namespace

static_assert(CollectivePolicy<InProcess>);
static_assert(Communicator<InProcessCommunicator>);
static_assert(Operation<InProcessOperation>);

TEST_CASE("collective/InProcess: all-reduce adds in rank order on one thread and on many",
          "[collective]") {
  for (int n : {1, 2, 3, 4, 7}) {
    for (std::size_t count : {0U, 1U, 2U, 5U, 1000U, 100'003U}) {
      auto const input = rough(n, count, static_cast<unsigned>(n) + static_cast<unsigned>(count));
      auto const expected = sum_in_rank_order(input);
      {
        auto x = input;
        auto world = InProcess{}.connect(n);
        std::vector<InProcessOperation> ops;
        for (std::size_t r = 0; r < world.size(); ++r)
          ops.push_back(world[r].all_reduce(std::span(x[r])));
        poll_all(ops);
        for (auto const& v : x) REQUIRE(same_bits(v, expected));
      }
      {
        auto x = input;
        on_threads(n, [&](InProcessCommunicator& c) {
          c.all_reduce(std::span(x[static_cast<std::size_t>(c.rank())])).wait(20);
        });
        for (auto const& v : x) REQUIRE(same_bits(v, expected));
      }
    }
  }
}

TEST_CASE("collective/InProcess: bits are the same for every cut of a vector into calls",
          "[collective]") {
  std::mt19937 random(5);
  auto const input = rough(4, 20'000, 1);
  auto const expected = sum_in_rank_order(input);
  for (int trial = 0; trial < 10; ++trial) {
    std::vector<std::size_t> cuts{0, 20'000};
    for (int i = 0; i < 30; ++i) cuts.push_back(random() % 20'001);
    std::sort(cuts.begin(), cuts.end());
    auto x = input;
    on_threads(4, [&](InProcessCommunicator& c) {
      auto const whole = std::span(x[static_cast<std::size_t>(c.rank())]);
      std::vector<InProcessOperation> ops;  // more than can be under way at once
      for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
        ops.push_back(c.all_reduce(whole.subspan(cuts[i], cuts[i + 1] - cuts[i])));
      }
      while (!ops.empty()) {  // newest first: others must move on too
        ops.back().wait(20);
        ops.pop_back();
      }
    });
    for (auto const& v : x) REQUIRE(same_bits(v, expected));
  }
}

TEST_CASE("collective/InProcess: reduce-scatter then all-gather is all-reduce", "[collective]") {
  for (int n : {1, 2, 3, 5}) {
    for (std::size_t count : {0U, 1U, 4U, 10'007U}) {
      auto x = rough(n, count, 3);
      auto const input = x;
      auto const expected = sum_in_rank_order(x);
      on_threads(n, [&](InProcessCommunicator& c) {
        auto const mine = std::span(x[static_cast<std::size_t>(c.rank())]);
        c.reduce_scatter(mine).wait(20);
        auto const piece = slice(count, c.rank(), n);
        std::vector<float> const own(mine.begin() + static_cast<std::ptrdiff_t>(piece.first),
                                     mine.begin() + static_cast<std::ptrdiff_t>(piece.last));
        std::fill(mine.begin(), mine.end(), -1.0f);
        std::copy(own.begin(), own.end(), mine.begin() + static_cast<std::ptrdiff_t>(piece.first));
        c.barrier().wait(20);
        c.all_gather(mine).wait(20);
      });
      for (auto const& v : x) REQUIRE(same_bits(v, expected));
    }
  }
}

TEST_CASE("collective/InProcess: slices tile the vector and differ by one at most",
          "[collective]") {
  for (int parts = 1; parts <= 9; ++parts) {
    for (std::size_t count = 0; count <= 40; ++count) {
      std::size_t at = 0, least = count, most = 0;
      for (int p = 0; p < parts; ++p) {
        auto const s = slice(count, p, parts);
        REQUIRE(s.first == at);
        at = s.last;
        least = std::min(least, s.size());
        most = std::max(most, s.size());
      }
      REQUIRE(at == count);
      REQUIRE(most - least <= 1);
    }
  }
}

TEMPLATE_TEST_CASE("collective/InProcess: every element type moves and reduces", "[collective]",
                   float, double, std::int8_t, std::uint16_t, std::int32_t, std::int64_t,
                   std::uint64_t) {
  using T = TestType;
  std::vector<std::vector<T>> x(3), low(3), high(3);
  for (int r = 0; r < 3; ++r) {
    for (int i = 0; i < 50; ++i)
      x[static_cast<std::size_t>(r)].push_back(static_cast<T>((i * 7 + r * 13) % 30));
  }
  low = high = x;
  auto const input = x;
  std::vector<T> told(50), gathered(50);
  on_threads(3, [&](InProcessCommunicator& c) {
    auto const r = static_cast<std::size_t>(c.rank());
    auto a = c.all_reduce(std::span(x[r]));
    auto b = c.all_reduce(std::span(low[r]), Reduction::min);
    auto d = c.all_reduce(std::span(high[r]), Reduction::max);
    std::vector<T> heard = r == 2 ? input[2] : std::vector<T>(50);
    auto e = c.broadcast(std::span(heard), 2);
    wait_all(20, a, b, d, e);
    if (r == 0) told = heard;
  });
  CHECK(told == input[2]);
  for (std::size_t i = 0; i < 50; ++i) {
    T const v[3] = {input[0][i], input[1][i], input[2][i]};
    for (std::size_t r = 0; r < 3; ++r) {
      REQUIRE(x[r][i] == static_cast<T>(v[0] + v[1] + v[2]));
      REQUIRE(low[r][i] == std::min({v[0], v[1], v[2]}));
      REQUIRE(high[r][i] == std::max({v[0], v[1], v[2]}));
    }
  }
}

TEST_CASE("collective/InProcess: bytes travel by send, receive, broadcast and all-gather",
          "[collective]") {
  on_threads(3, [](InProcessCommunicator& c) {
    std::vector<std::byte> x(200'000, std::byte(c.rank() + 1));
    c.all_gather(std::span(x)).wait(20);
    for (int p = 0; p < 3; ++p) {
      auto const s = slice(x.size(), p, 3);
      for (std::size_t i = s.first; i < s.last; ++i) {
        if (x[i] != std::byte(p + 1)) throw std::runtime_error("wrong byte");
      }
    }
  });
}

TEST_CASE("collective/InProcess: messages of an edge arrive in order, also more than it holds",
          "[collective]") {
  std::vector<int> got;
  on_threads(2, [&](InProcessCommunicator& c) {
    constexpr int messages = 300;
    std::vector<int> x(messages);
    std::vector<InProcessOperation> ops;
    auto group = c.group();
    for (int i = 0; i < messages; ++i) {
      auto const one = std::span(x).subspan(static_cast<std::size_t>(i), 1);
      if (c.rank() == 0) {
        one[0] = i;
        ops.push_back(c.send(group, one, 1));
      } else {
        ops.push_back(c.receive(group, one, 0));
      }
    }
    group.submit();
    for (auto& op : ops) op.wait(20);
    if (c.rank() == 1) got = x;
  });
  for (int i = 0; i < 300; ++i) REQUIRE(got[static_cast<std::size_t>(i)] == i);
}

TEST_CASE("collective/InProcess: ranks of one thread exchange, and a rank may send to itself",
          "[collective]") {
  auto world = InProcess{}.connect(2);
  double a = 1, b = 2, from_a = 0, from_b = 0, again = 0;
  auto s0 = world[0].send(world[0].group(), std::span(&a, 1), 1);
  auto s1 = world[1].send(world[1].group(), std::span(&b, 1), 0);
  CHECK_FALSE(s0.poll());
  auto r0 = world[0].receive(world[0].group(), std::span(&from_b, 1), 1);
  auto r1 = world[1].receive(world[1].group(), std::span(&from_a, 1), 0);
  wait_all(5, s0, s1, r0, r1);
  CHECK(from_a == 1);
  CHECK(from_b == 2);
  auto self_send = world[0].send(world[0].group(), std::span<double const>(&a, 1), 0);
  auto self_receive = world[0].receive(world[0].group(), std::span(&again, 1), 0);
  wait_all(5, self_send, self_receive);
  CHECK(again == 1);
}

TEST_CASE("collective/InProcess: a split gives each colour a communicator ordered by key",
          "[collective]") {
  std::vector<int> size(6), rank(6), sum(6);
  on_threads(6, [&](InProcessCommunicator& c) {
    auto const me = static_cast<std::size_t>(c.rank());
    InProcessCommunicator part;
    c.split(c.rank() == 5 ? -1 : c.rank() % 2, -c.rank(), part).wait(20);
    size[me] = part.size();
    rank[me] = part.rank();
    if (!part) return;
    int value = 1 << c.rank();
    auto inner = part.all_reduce(std::span(&value, 1));
    int other = 1;
    part.barrier().wait(20);  // an operation of the part while another is under way
    inner.wait(20);
    static_cast<void>(other);
    sum[me] = value;
  });
  CHECK(size == std::vector{3, 2, 3, 2, 3, 0});
  CHECK(rank == std::vector{2, 1, 1, 0, 0, -1});
  CHECK(sum == std::vector{21, 10, 21, 10, 21, 0});
}

TEST_CASE("collective/InProcess: waiting in opposite orders on a communicator and its part ends",
          "[collective]") {
  on_threads(2, [](InProcessCommunicator& c) {
    InProcessCommunicator part;
    c.split(0, c.rank(), part).wait(20);
    int a = 1, b = 1;
    auto outer = c.all_reduce(std::span(&a, 1));
    auto inner = part.all_reduce(std::span(&b, 1));
    if (c.rank() == 0)
      outer.wait(20), inner.wait(20);
    else
      inner.wait(20), outer.wait(20);
    if (a != 2 || b != 2) throw std::runtime_error("wrong sum");
  });
}
