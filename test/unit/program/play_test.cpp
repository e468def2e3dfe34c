// SPDX-License-Identifier: Apache-2.0
#include <stagger/program/play.hpp>

#include "catch.hpp"

#include <cstdint>
#include <utility>
#include <vector>

namespace play_test {

using namespace stagger;

namespace {

/// An instruction that waits for `wait`, if its count is not 0, and gives `give`, if not negative.
void add(RankProgram& rank, Wait wait, int give) {
  Instruction in;
  if (wait.count != 0) {
    in.waits = 1;
    rank.waits.push_back(wait);
  }
  if (give >= 0) in.signal[in.signal_count++] = static_cast<std::uint16_t>(give);
  rank.code.push_back(in);
}

/// Rank 0 makes two values, rank 1 reads them; the second may be written once the first was read.
Program two_values() {
  Program program;
  program.signals = {{0, 1, 0}, {1, 0}};  // there, and free
  program.ranks.resize(2);
  add(program.ranks[0], {}, 0);
  add(program.ranks[0], {1, 1}, 0);
  add(program.ranks[1], {0, 1}, 1);
  add(program.ranks[1], {0, 2}, -1);
  return program;
}

using Order = std::vector<std::pair<std::size_t, std::size_t>>;  // ranks and instructions

Order order_of(Player& player) {
  Order order;
  while (player.next()) order.emplace_back(player.rank(), player.index());
  return order;
}

}  // namespace

TEST_CASE("program/Player: an instruction comes behind those whose signals it waits for",
          "[program]") {
  Program const program = two_values();
  Player player(program);
  CHECK(order_of(player) == Order{{0, 0}, {1, 0}, {0, 1}, {1, 1}});
  CHECK(player.blocked().empty());
  CHECK(play(program).empty());
}

TEST_CASE("program/Player: as if slots were always free, only values are waited for", "[program]") {
  Program const program = two_values();
  Player player(program, PlayedWaits::messages);
  CHECK(order_of(player) == Order{{0, 0}, {0, 1}, {1, 0}, {1, 1}});
}

TEST_CASE("program/Player: who cannot go on is named, with what it waits for", "[program]") {
  Program program = two_values();
  program.ranks[0].waits[0].count = 2;  // the first value is read once
  auto const blocked = play(program);
  REQUIRE(blocked.size() == 2);
  CHECK(blocked[0].rank == 0);
  CHECK(blocked[0].instruction == 1);
  CHECK(blocked[0].wait == Wait{1, 2});
  CHECK(blocked[1].rank == 1);
  CHECK(blocked[1].instruction == 1);
  CHECK(blocked[1].wait == Wait{0, 2});
}

}  // namespace play_test
