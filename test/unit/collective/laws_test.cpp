// SPDX-License-Identifier: Apache-2.0
#include "collective/laws.hpp"

#include <array>
#include <stdexcept>
#include <string>
#include <vector>

#include <stagger/collective/grouping.hpp>
#include <stagger/collective/in_process.hpp>

#include "catch.hpp"
#include "collective/ranks.hpp"
#include "sanitized.hpp"

using namespace stagger;
using namespace stagger::collective;
using collective_test::coded;
using collective_test::on_threads;
using collective_test::patience_s;
using collective_test::thrown_by;

TEST_CASE("collective/laws: every law holds between threads, with 1 to 5 ranks", "[collective]") {
  for (auto const& law : collective_test::laws<InProcessCommunicator>) {
    for (int ranks = 1; ranks <= 5; ++ranks) {
      if (sanitized && ranks != 3 && ranks != 4) continue;  // a power of two, and none
      std::vector<std::string> faults(static_cast<std::size_t>(ranks));
      on_threads(ranks, [&](InProcessCommunicator& c) {
        faults[static_cast<std::size_t>(c.rank())] = law.check(c);
      });
      for (auto const& fault : faults) {
        INFO(law.name << " on " << ranks << " ranks");
        REQUIRE(fault == "");
      }
    }
  }
}

TEST_CASE("collective/agree: a rank that does not come is a deadline, one that left is named",
          "[collective]") {
  std::array<std::string, 2> words;
  on_threads(2, [&](InProcessCommunicator& c) {
    if (c.rank() == 1) return;
    words[0] = thrown_by([&] { agree(c, std::vector<Fact>{library_fact()}, patience_s); });
  });
  REQUIRE(words[0].find(coded(Errc::peer_failed)) == 0);
  REQUIRE(words[0].find("rank 1 left") != std::string::npos);
}

TEST_CASE("collective/digest: is that of FNV-1a with 64 bits", "[collective]") {
  static_assert(digest("") == 0xcbf29ce484222325u);
  static_assert(digest("a") == 0xaf63dc4c8601ec8cu);
  static_assert(digest("foobar") == 0x85944171f73967e8u);
}

TEST_CASE("collective/Decision: all ranks hold the groups that one rank measured", "[collective]") {
  std::array<std::vector<LayerGroup>, 3> groups;
  on_threads(3, [&](InProcessCommunicator& c) {
    // Each rank measures other times; alone it would draw another conclusion.
    std::vector<double> const times(6, 1e-3 * (1 + 50 * c.rank()));
    std::vector<std::uint64_t> const bytes(6, 1000);
    Decision<LayerGroup> decision;
    decision.decide(
        c,
        [&] {
          return grouping::Optimal{}.groups({0.01, times, bytes}, {5e-3, 1e-9});
        },
        patience_s);
    groups[static_cast<std::size_t>(c.rank())] = decision.values();
  });
  std::vector<double> const times(6, 1e-3);
  std::vector<std::uint64_t> const bytes(6, 1000);
  auto const want = grouping::Optimal{}.groups({0.01, times, bytes}, {5e-3, 1e-9});
  for (auto const& g : groups) REQUIRE(g == want);
}

TEST_CASE("collective/Decision: a measurement that throws ends every rank with its words",
          "[collective]") {
  std::array<std::string, 3> words;
  on_threads(
      3,
      [&](InProcessCommunicator& c) {
        Decision<int> decision;
        words[static_cast<std::size_t>(c.rank())] = thrown_by([&] {
          decision.decide(
              c, []() -> std::vector<int> { throw Error(Errc::bad_data, "no clock"); }, patience_s);
        });
      },
      true);
  REQUIRE(words[0] == coded(Errc::bad_data) + "no clock");
  for (int r : {1, 2}) {
    REQUIRE(words[static_cast<std::size_t>(r)].find(coded(Errc::peer_failed)) == 0);
    REQUIRE(words[static_cast<std::size_t>(r)].find("the decision of rank 0 failed: no clock") !=
            std::string::npos);
  }
}

TEST_CASE("collective/Decision: ranks that renew at different steps are told", "[collective]") {
  std::array<std::string, 2> words;
  on_threads(
      2,
      [&](InProcessCommunicator& c) {
        Decision<int> decision(10);
        decision.decide(
            c, [] { return std::vector<int>{1}; }, patience_s);
        words[static_cast<std::size_t>(c.rank())] = thrown_by([&] {
          decision.renew(
              c, c.rank() == 0 ? 10 : 20, [] { return false; }, [] { return std::vector<int>{}; },
              patience_s);
          c.barrier().wait(patience_s);
        });
      },
      true);
  REQUIRE(words[1].find(coded(Errc::mismatch)) == 0);
  REQUIRE(words[1].find("rank 0 renews at step 10, rank 1 renews at step 20") != std::string::npos);
  REQUIRE(words[0].find("rank 0 renews at step 10, rank 1 renews at step 20") != std::string::npos);
}

TEST_CASE("collective/largest_change: a fifth up or down is a fifth", "[collective]") {
  std::vector<double> const before{1, 2, 4};
  REQUIRE(largest_change(before, before) == 0);
  REQUIRE(largest_change(before, std::vector<double>{1, 2.4, 4}) == Approx(0.2));
  REQUIRE(largest_change(before, std::vector<double>{1, 2, 3.2}) == Approx(0.2));
  REQUIRE(largest_change(before, std::vector<double>{1, 2}) > 1e300);
  REQUIRE(largest_change(std::vector<double>{0, 1}, std::vector<double>{1e-9, 1}) > 1e300);
  REQUIRE(largest_change(std::vector<double>{0, 1}, std::vector<double>{0, 1}) == 0);
}

TEST_CASE("collective/ShardedUpdate: an error before the sums are there leaves parameters alone",
          "[collective]") {
  std::array<std::vector<float>, 3> parameters;
  std::array<std::string, 3> words;
  parameters.fill(std::vector<float>(1000, 7.0f));
  on_threads(
      3,
      [&](InProcessCommunicator& c) {
        auto& own = parameters[static_cast<std::size_t>(c.rank())];
        std::vector<float> gradients(1000, 1.0f);
        auto const step = [](OwnShard<float> s) {
          for (auto& w : s.parameters) w = 0;
        };
        ShardedUpdate<InProcessCommunicator, float, decltype(step)> update(c, step);
        update.add(std::span(gradients).first(500), std::span(own).first(500));
        if (c.rank() == 1) {
          words[1] = "gone";
          return;  // dies between its groups
        }
        update.add(std::span(gradients).last(500), std::span(own).last(500));
        update.seal();
        words[static_cast<std::size_t>(c.rank())] = thrown_by([&] { update.wait(patience_s); });
      },
      true);
  for (int r : {0, 2}) {
    REQUIRE(words[static_cast<std::size_t>(r)].find(coded(Errc::peer_failed)) == 0);
    REQUIRE(words[static_cast<std::size_t>(r)].find("rank 1") != std::string::npos);
  }
  for (auto const& p : parameters) REQUIRE(p == std::vector<float>(1000, 7.0f));
}

TEST_CASE(
    "collective/ShardedUpdate: wrong lengths, late groups and a step never sealed are refused",
    "[collective]") {
  auto world = InProcess{}.connect(1);
  auto const step = [](OwnShard<float>) {};
  ShardedUpdate<InProcessCommunicator, float, decltype(step)> update(world[0], step);
  std::vector<float> a(4), b(5);
  REQUIRE(thrown_by([&] { update.add(std::span(a), std::span(b)); }) ==
          coded(Errc::mismatch) + "a group has 4 gradients and 5 parameters; give one of each");
  update.add(std::span(a), std::span(a));
  REQUIRE(thrown_by([&] { update.wait(0.01); }).find("not sealed") != std::string::npos);
  update.seal();
  REQUIRE(thrown_by([&] { update.add(std::span(a), std::span(a)); }).find("after seal()") !=
          std::string::npos);
  update.wait(patience_s);
}
