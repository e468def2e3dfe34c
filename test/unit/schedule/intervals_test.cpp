// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/intervals.hpp>

#include <array>
#include <cstddef>
#include <random>
#include <vector>

#include "catch.hpp"

namespace intervals_test {

using stagger::schedule::Interval;

TEST_CASE("schedule/intervals: seconds that are joined and covered are those counted one by one",
          "[schedule]") {
  constexpr int end = 40;  // s
  std::mt19937 random(3);
  auto const spans = [&](int count) {
    std::vector<Interval> all;
    for (int i = 0; i < count; ++i) {
      auto const from = static_cast<int>(random() % end);
      all.emplace_back(from, from + static_cast<int>(random() % 6));
    }
    return all;
  };
  auto const seconds = [](std::vector<Interval> const& all) {
    std::array<bool, end + 6> in{};
    for (auto const& [from, to] : all)
      for (auto s = static_cast<std::size_t>(from); s < static_cast<std::size_t>(to); ++s)
        in[s] = true;
    return in;
  };
  for (int i = 0; i < 300; ++i) {
    auto const all = spans(i % 12), joined = stagger::schedule::joined(all);
    auto const in = seconds(all);
    CHECK(seconds(joined) == in);
    for (std::size_t k = 1; k < joined.size(); ++k) CHECK(joined[k - 1].second < joined[k].first);
    for (auto const& one : spans(3)) {
      double covered = 0;
      for (auto s = static_cast<std::size_t>(one.first); s < static_cast<std::size_t>(one.second);
           ++s)
        covered += in[s] ? 1 : 0;
      CHECK(stagger::schedule::covered_s(one, joined) == covered);
    }
  }
}

}  // namespace intervals_test
