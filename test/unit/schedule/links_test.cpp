// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/links.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace links_test {

namespace schedule = stagger::schedule;

namespace {

struct Sent {
  double start_s = 0;
  std::uint64_t bytes = 0;
  schedule::Direction direction = schedule::Direction::push;
};

/// When each arrives. @param sent  by their starts
std::vector<double> arrivals(schedule::Links const& links, std::vector<Sent> const& sent) {
  schedule::Transfers transfers(links);
  std::vector<double> at(sent.size(), -1);
  std::size_t next = 0;
  for (;;) {
    double const start_s =
        next < sent.size() ? sent[next].start_s : std::numeric_limits<double>::infinity();
    double const event_s = transfers.next_s();
    if (std::isinf(start_s) && std::isinf(event_s)) return at;
    double const now_s = std::min(start_s, event_s);
    if (start_s < event_s) {
      transfers.start(now_s, sent[next].bytes, sent[next].direction,
                      static_cast<std::uint32_t>(next));
      ++next;
    } else {
      transfers.advance(now_s);
    }
    for (std::uint32_t number = 0; transfers.arrived(number);) at[number] = now_s;
  }
}

/// The same in small steps: in each of them, bytes go to those that the rule names.
std::vector<double> slowly(schedule::Links const& links, std::vector<Sent> const& sent,
                           double step_s) {
  std::vector<double> at(sent.size(), -1), left, free_again{0, 0};
  for (Sent const& each : sent) left.push_back(static_cast<double>(each.bytes) * (1 + links.loss));
  std::size_t open = sent.size();
  for (std::int64_t i = 0; open != 0; ++i) {
    double const now_s = static_cast<double>(i) * step_s;
    for (std::size_t const way : {0U, 1U}) {
      std::vector<std::size_t> active;
      for (std::size_t t = 0; t < sent.size(); ++t) {
        bool const here = links.duplex == schedule::Duplex::half
                              ? way == 0
                              : (sent[t].direction == schedule::Direction::pull) == (way == 1);
        if (here && at[t] < 0 && sent[t].start_s <= now_s) active.push_back(t);
      }
      if (active.empty()) continue;
      if (links.sharing != schedule::Sharing::fair) active.erase(active.begin() + 1, active.end());
      if (links.sharing == schedule::Sharing::one_at_a_time && free_again[way] > now_s) continue;
      double const part = links.rate * step_s / static_cast<double>(active.size());
      for (std::size_t t : active) {
        left[t] -= part;
        if (left[t] > 0) continue;
        at[t] = free_again[way] = now_s + step_s + links.latency_s;
        --open;
      }
    }
  }
  return at;
}

using schedule::Direction;
using schedule::Duplex;
using schedule::Sharing;

}  // namespace

TEST_CASE("schedule/Transfers: one takes its bytes over the rate, and the latency", "[schedule]") {
  for (Sharing const sharing : {Sharing::fair, Sharing::fifo, Sharing::one_at_a_time})
    for (Duplex const duplex : {Duplex::full, Duplex::half}) {
      schedule::Links const links{
          .rate = 8, .latency_s = 0.5, .loss = 0.25, .sharing = sharing, .duplex = duplex};
      REQUIRE(arrivals(links, {{1, 64, Direction::pull}}) == std::vector<double>{11.5});
      REQUIRE(arrivals(links, {{3, 0}}) == std::vector<double>{3.5});
    }
  REQUIRE(arrivals({}, {{3, 1000}, {3, 7}, {4, 5}}) == std::vector<double>{3, 3, 4});
}

TEST_CASE("schedule/Transfers: a fair link is shared anew at each start and end", "[schedule]") {
  schedule::Links const links{.rate = 8, .latency_s = 0.25};
  REQUIRE(arrivals(links, {{0, 16}, {0, 16}}) == std::vector<double>{4.25, 4.25});
  // Half the rate until the small one is through at 2, then the whole.
  REQUIRE(arrivals(links, {{0, 24}, {0, 8}}) == std::vector<double>{4.25, 2.25});
  // Alone for 1 s, a half until 3, alone again.
  REQUIRE(arrivals(links, {{0, 24}, {1, 8}}) == std::vector<double>{4.25, 3.25});
  REQUIRE(arrivals(links, {{0, 8}, {2, 8}}) == std::vector<double>{1.25, 3.25});
}

TEST_CASE("schedule/Transfers: in turn, the next follows the bytes, or waits for the latency too",
          "[schedule]") {
  std::vector<Sent> const sent{{0, 16}, {0, 8}, {10, 8}};
  REQUIRE(arrivals({.rate = 8, .latency_s = 0.5, .sharing = Sharing::fifo}, sent) ==
          std::vector<double>{2.5, 3.5, 11.5});
  REQUIRE(arrivals({.rate = 8, .latency_s = 0.5, .sharing = Sharing::one_at_a_time}, sent) ==
          std::vector<double>{2.5, 4, 11.5});
}

TEST_CASE("schedule/Transfers: pushes and pulls share a half-duplex link, and no other",
          "[schedule]") {
  std::vector<Sent> const sent{{0, 16, Direction::push}, {0, 16, Direction::pull}};
  for (Sharing const sharing : {Sharing::fair, Sharing::fifo, Sharing::one_at_a_time})
    REQUIRE(arrivals({.rate = 8, .sharing = sharing}, sent) == std::vector<double>{2, 2});
  REQUIRE(arrivals({.rate = 8, .duplex = Duplex::half}, sent) == std::vector<double>{4, 4});
  REQUIRE(arrivals({.rate = 8, .sharing = Sharing::fifo, .duplex = Duplex::half}, sent) ==
          std::vector<double>{2, 4});
}

TEST_CASE("schedule/Transfers: arrive when a simulation in small steps says", "[schedule]") {
  std::mt19937 random(1);
  auto const below = [&](unsigned end) { return static_cast<unsigned>(random() % end); };
  constexpr double step_s = 0x1p-9;
  for (int i = 0; i < 120; ++i) {
    schedule::Links const links{.rate = 4.0 + below(8),
                                .latency_s = 0.25 * below(3),
                                .loss = 0.25 * below(3),
                                .sharing = static_cast<Sharing>(i % 3),
                                .duplex = static_cast<Duplex>(i / 3 % 2)};
    std::vector<Sent> sent;
    for (unsigned n = 1 + below(8); n-- > 0;)
      sent.push_back({0.25 * below(20), 1 + below(20), static_cast<Direction>(below(2))});
    std::sort(sent.begin(), sent.end(),
              [](Sent const& a, Sent const& b) { return a.start_s < b.start_s; });
    auto const exact = arrivals(links, sent);
    auto const slow = slowly(links, sent, step_s);
    CAPTURE(i, sent.size());
    for (std::size_t t = 0; t < sent.size(); ++t)
      REQUIRE(std::abs(exact[t] - slow[t]) <= 2 * step_s * static_cast<double>(sent.size()));
  }
}

TEST_CASE("schedule/Transfers: refuses what no link can have", "[schedule]") {
  double const nan = std::numeric_limits<double>::quiet_NaN();
  for (double const rate : {0.0, -1.0, nan})
    REQUIRE_THROWS_WITH(schedule::Transfers({.rate = rate}),
                        Catch::Matchers::Contains("Links::rate"));
  for (double const bad : {-1.0, nan, std::numeric_limits<double>::infinity()}) {
    REQUIRE_THROWS_WITH(schedule::Transfers({.latency_s = bad}),
                        Catch::Matchers::Contains("Links::latency_s"));
    REQUIRE_THROWS_WITH(schedule::Transfers({.loss = bad}),
                        Catch::Matchers::Contains("Links::loss"));
  }
}

}  // namespace links_test
