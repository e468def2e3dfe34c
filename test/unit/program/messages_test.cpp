// SPDX-License-Identifier: Apache-2.0
#include <stagger/program/detail/messages.hpp>

#include "catch.hpp"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace messages_test {

using stagger::detail::in_order;
using stagger::detail::Messages;
using stagger::detail::most_alive;
using stagger::detail::nowhere;
using stagger::detail::RowIndices;

namespace {

using Random = std::mt19937;

std::size_t below(Random& random, std::size_t n) { return random() % n; }

/// Different indices in a row, of some of the microbatches; nowhere for the others.
RowIndices indices(Random& random, std::vector<bool> const& taken, std::size_t length) {
  std::vector<std::uint32_t> row(length);
  std::iota(row.begin(), row.end(), 0U);
  std::shuffle(row.begin(), row.end(), random);
  RowIndices result;
  for (bool const is : taken) {
    result.push_back(is ? row.back() : nowhere);
    row.pop_back();
  }
  return result;
}

std::vector<bool> taken(Random& random, std::size_t count) {
  std::vector<bool> is(count);
  for (std::size_t m = 0; m < count; ++m) is[m] = below(random, 4) != 0;
  return is;
}

}  // namespace

TEST_CASE("program/most_alive: as many values as at any index", "[program]") {
  Random random(1);
  for (int i = 0; i < 500; ++i) {
    std::size_t const count = 1 + below(random, 8);
    std::size_t const length = count + below(random, 8);
    auto const is = taken(random, count);
    RowIndices from = indices(random, is, length);
    RowIndices to = indices(random, is, length);
    std::uint32_t most = 0;
    for (std::size_t m = 0; m < count; ++m)
      if (is[m] && from[m] > to[m]) std::swap(from[m], to[m]);
    for (std::uint32_t at = 0; at < length; ++at) {
      std::uint32_t alive = 0;
      for (std::size_t m = 0; m < count; ++m) alive += is[m] && from[m] <= at && at <= to[m];
      most = std::max(most, alive);
    }
    REQUIRE(most_alive(from, to, length) == most);
  }
}

TEST_CASE("program/in_order: the microbatches of a row, sorted by their positions", "[program]") {
  Random random(2);
  for (int i = 0; i < 200; ++i) {
    std::size_t const count = 1 + below(random, 8);
    auto const is = taken(random, count);
    auto const at = indices(random, is, count + 3);
    auto const order = in_order(at, count + 3);
    REQUIRE(order.size() == static_cast<std::size_t>(std::count(is.begin(), is.end(), true)));
    for (std::size_t k = 0; k < order.size(); ++k) {
      REQUIRE(is[order[k]]);
      if (k > 0) REQUIRE(at[order[k - 1]] < at[order[k]]);
    }
  }
}

TEST_CASE(
    "program/Messages: a slot is free once the releases that its writer waits for have happened",
    "[program]") {
  Random random(3);
  for (int i = 0; i < 2000; ++i) {
    std::size_t const count = 1 + below(random, 9);
    std::size_t const producer = count + below(random, 5);
    std::size_t const consumer = count + below(random, 5);
    auto const is = taken(random, count);
    auto const written = indices(random, is, producer);
    auto const used = indices(random, is, consumer);
    auto const wanted = static_cast<std::uint32_t>(1 + below(random, count + 1));
    CAPTURE(i, count, wanted);
    Messages const messages(written, producer, used, consumer, wanted);
    auto const order = in_order(written, producer);
    auto const releases = in_order(used, consumer);
    REQUIRE(messages.slots <= count);
    REQUIRE(messages.slots >= std::min<std::size_t>(wanted, order.size()));
    for (std::size_t k = 0; k < order.size(); ++k) {
      auto const m = order[k];
      REQUIRE(messages.number[m] == k);
      REQUIRE(messages.slot[m] < messages.slots);
      REQUIRE(messages.release[k] == used[releases[k]]);
      // Of those who had the slot before, all are among the releases waited for.
      for (std::size_t j = 0; j < k; ++j) {
        if (messages.slot[order[j]] != messages.slot[m]) continue;
        auto const end = releases.begin() + messages.releases_needed[m];
        REQUIRE(std::find(releases.begin(), end, order[j]) != end);
      }
      // The release behind them may be of this very message, which is then there.
      REQUIRE(messages.releases_needed[releases[k]] <= k);
    }
  }
}

TEST_CASE("program/Messages: no more slots than wanted where consumer and producer agree",
          "[program]") {
  for (std::uint32_t wanted = 1; wanted <= 5; ++wanted) {
    RowIndices const row{0, 1, 2, 3, 4};
    Messages const messages(row, 5, row, 5, wanted);
    CHECK(messages.slots == wanted);
    for (std::uint32_t m = 0; m < 5; ++m) {
      CHECK(messages.slot[m] == m % wanted);
      CHECK(messages.releases_needed[m] == (m < wanted ? 0 : m - wanted + 1));
    }
  }
  RowIndices const up{0, 1, 2, 3};
  RowIndices const down{3, 2, 1, 0};  // the last is released first: all must be there by then
  CHECK(Messages(up, 4, down, 4, 1).slots == 4);
}

}  // namespace messages_test
