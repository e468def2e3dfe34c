// SPDX-License-Identifier: Apache-2.0
#include <stagger/collective/rows.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "catch.hpp"

using namespace stagger;
using namespace stagger::collective;

namespace {

/// A microbatch of rows that are all different, and not finite everywhere, so that bits count.
std::vector<float> microbatch(std::size_t rows, std::size_t width) {
  std::vector<float> x(rows * width);
  std::mt19937 random(static_cast<unsigned>(rows * 31 + width));
  for (auto& v : x) {
    std::uint32_t const bits = static_cast<std::uint32_t>(random());
    std::memcpy(&v, &bits, sizeof(v));
  }
  return x;
}

bool same_bits(std::vector<float> const& a, std::vector<float> const& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

using Parts = std::vector<std::vector<float>>;

/// What each replica holds of x, cut by hand.
Parts cut(std::vector<float> const& x, std::size_t rows, std::size_t width,
          RowShares const& shares) {
  Parts parts;
  for (int k = 0; k < shares.replicas(); ++k) {
    Slice const s = shares.rows(rows, k);
    parts.emplace_back(x.begin() + static_cast<std::ptrdiff_t>(s.first * width),
                       x.begin() + static_cast<std::ptrdiff_t>(s.last * width));
  }
  return parts;
}

/// Moves rows from one stage's replicas to the next one's by the messages, appending in the order
/// of arrival; nobody looks at row numbers on the receiving side.
Parts move_rows(Parts const& held, std::size_t rows, std::size_t width, RowShares const& from,
                RowShares const& to) {
  Parts out(static_cast<std::size_t>(to.replicas()));
  for (auto const& m : row_messages(rows, from, to)) {
    auto const& source = held[static_cast<std::size_t>(m.from)];
    Slice const local = m.within(from.rows(rows, m.from));
    auto& target = out[static_cast<std::size_t>(m.to)];
    REQUIRE(m.within(to.rows(rows, m.to)).first * width == target.size());
    target.insert(target.end(), source.begin() + static_cast<std::ptrdiff_t>(local.first * width),
                  source.begin() + static_cast<std::ptrdiff_t>(local.last * width));
  }
  return out;
}

std::vector<float> joined(Parts const& parts) {
  std::vector<float> all;
  for (auto const& p : parts) all.insert(all.end(), p.begin(), p.end());
  return all;
}

/// There and back gives the microbatch, and in between each replica holds its own rows.
void require_identity(std::size_t rows, RowShares const& a, RowShares const& b) {
  constexpr std::size_t width = 3;
  auto const x = microbatch(rows, width);
  auto const sent = cut(x, rows, width, a);
  auto const arrived = move_rows(sent, rows, width, a, b);
  auto const expected = cut(x, rows, width, b);
  for (std::size_t k = 0; k < expected.size(); ++k) REQUIRE(same_bits(arrived[k], expected[k]));
  REQUIRE(same_bits(joined(arrived), x));
  auto const back = move_rows(arrived, rows, width, b, a);
  for (std::size_t k = 0; k < sent.size(); ++k) REQUIRE(same_bits(back[k], sent[k]));
}

}  // namespace

TEST_CASE(
    "collective/rows: split and concatenation give the microbatch back for all r and r' up to 8",
    "[collective]") {
  for (int r = 1; r <= 8; ++r) {
    for (int s = 1; s <= 8; ++s) {
      for (std::size_t rows : {0u, 1u, 2u, 5u, 7u, 8u, 13u, 24u, 64u, 840u}) {
        require_identity(rows, RowShares(r), RowShares(s));
      }
    }
  }
}

TEST_CASE("collective/rows: uneven shares give the microbatch back, also beside even ones",
          "[collective]") {
  std::mt19937 random(7);
  std::vector<std::vector<std::uint32_t>> all{
      {15, 1}, {1, 15}, {1, 2, 3, 4, 5, 6, 7, 8}, {1000000007, 1}};
  for (int i = 0; i < 40; ++i) {
    std::vector<std::uint32_t> w(1 + random() % 8);
    for (auto& v : w) v = 1 + static_cast<std::uint32_t>(random() % 20);
    all.push_back(w);
  }
  for (auto const& a : all) {
    for (std::size_t rows : {0u, 1u, 3u, 16u, 17u, 64u, 120u}) {
      for (auto const& b : all) require_identity(rows, RowShares(a), RowShares(b));
      for (int r = 1; r <= 8; ++r) {
        require_identity(rows, RowShares(a), RowShares(r));
        require_identity(rows, RowShares(r), RowShares(a));
      }
    }
  }
}

TEST_CASE("collective/rows: slice k of n rows over r replicas is from k n / r to (k + 1) n / r",
          "[collective]") {
  for (std::size_t n = 0; n <= 50; ++n) {
    for (int r = 1; r <= 8; ++r) {
      for (int k = 0; k < r; ++k) {
        auto const i = static_cast<std::size_t>(k);
        auto const d = static_cast<std::size_t>(r);
        REQUIRE(RowShares(r).rows(n, k) == Slice{i * n / d, (i + 1) * n / d});
      }
    }
  }
  constexpr std::array<std::uint32_t, 2> uneven{15, 1};
  static_assert(RowShares(uneven).rows(16, 0) == Slice{0, 15});
  static_assert(RowShares(uneven).rows(16, 1) == Slice{15, 16});
  static_assert(RowShares(uneven).rows(8, 1) == Slice{7, 8});
  static_assert(RowShares(uneven).most_rows(32) == 30);
  static_assert(RowShares(3).most_rows(7) == 3);
}

TEST_CASE("collective/rows: two to three replicas take four messages, equal shares one each",
          "[collective]") {
  for (int r = 1; r <= 8; ++r) {
    for (int s = 1; s <= 8; ++s) {
      auto const n = static_cast<std::size_t>(std::lcm(r, s));
      auto const count = static_cast<int>(row_messages(n, RowShares(r), RowShares(s)).size());
      REQUIRE(count == r + s - std::gcd(r, s));
    }
  }
  auto const messages = row_messages(6, RowShares(2), RowShares(3));
  REQUIRE(messages ==
          std::vector<RowMessage>{{0, 0, {0, 2}}, {0, 1, {2, 3}}, {1, 1, {3, 4}}, {1, 2, {4, 6}}});
  for (auto const& m : row_messages(64, RowShares(5), RowShares(5))) REQUIRE(m.from == m.to);
}

TEST_CASE("collective/rows: messages are every non-empty overlap, and back they are the same",
          "[collective]") {
  for (std::size_t n = 0; n <= 30; ++n) {
    for (int r = 1; r <= 8; ++r) {
      for (int s = 1; s <= 8; ++s) {
        std::vector<RowMessage> found;  // by looking at every row
        for (std::size_t row = 0; row < n; ++row) {
          auto const owner = [&](int of) {
            int k = 0;
            while (row >= static_cast<std::size_t>(k + 1) * n / static_cast<std::size_t>(of)) ++k;
            return k;
          };
          int const from = owner(r);
          int const to = owner(s);
          if (!found.empty() && found.back().from == from && found.back().to == to)
            ++found.back().rows.last;
          else
            found.push_back({from, to, {row, row + 1}});
        }
        REQUIRE(row_messages(n, RowShares(r), RowShares(s)) == found);
        auto back = row_messages(n, RowShares(s), RowShares(r));
        for (auto& m : back) std::swap(m.from, m.to);
        REQUIRE(back == found);
      }
    }
  }
}

TEST_CASE("collective/rows: large counts do not overflow", "[collective]") {
  constexpr std::size_t huge = ~std::size_t{0};
  constexpr std::array<std::uint32_t, 3> w{2147483647u, 1, 2147483647u};
  REQUIRE(RowShares(w).rows(huge, 2).last == huge);
  REQUIRE(RowShares(8).rows(huge, 7).last == huge);
  REQUIRE(RowShares(w).rows(huge, 1) == Slice{9223372034707292159u, 9223372039002259456u});
}

TEST_CASE("collective/rows: no replica and a share of nothing are refused", "[collective]") {
  REQUIRE_THROWS_WITH(RowShares(0), "a stage has 0 replicas; give it at least one");
  std::array<std::uint32_t, 2> const w{3, 0};
  REQUIRE_THROWS_WITH(RowShares(w), Catch::Contains("share of replica 1 is 0"));
  std::array<std::uint32_t, 2> const large{4294967295u, 1};
  REQUIRE_THROWS_WITH(RowShares(large), Catch::Contains("replicas 0 to 1 add up"));
}
