// SPDX-License-Identifier: Apache-2.0
#include <stagger/program/group_gradients.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

#include <stagger/engine/setup.hpp>
#include <stagger/program/check_program.hpp>
#include <stagger/program/lay_out.hpp>
#include <stagger/program/shared_checks.hpp>
#include <stagger/program/version_passes.hpp>
#include <stagger/schedule/dual_pipe.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/schedule/zero_bubble_h1.hpp>
#include <stagger/staleness/synchronous.hpp>

#include "slow_player.hpp"

namespace group_gradients_test {

using namespace stagger;

namespace {

List<GradientGroup> groups_of(int stages, int each) {
  List<GradientGroup> groups;
  for (int s = 0; s < stages; ++s)
    for (int g = each; g-- > 0;) groups.push_back({s, g, g + 1 == each ? GradientGroup::all : g});
  return groups;
}

std::size_t count(Program const& program, Op op) {
  std::size_t count = 0;
  for (auto const& rank : program.ranks)
    for (auto const& in : rank.code) count += in.op == op ? 1 : 0;
  return count;
}

}  // namespace

TEST_CASE("program/group_gradients: stages with two owners are added up in parts, by both",
          "[program]") {
  auto const table = schedule::DualPipe{}.table({4, 8});
  Program const plain = lay_out(table);
  REQUIRE(count(plain, Op::hand_in) > 0);
  std::mt19937 random(1);
  for (int const each : {1, 2, 5})
    for (bool const chain : {false, true}) {
      auto const groups = groups_of(table.stages, each);
      Program grouped = group_gradients(plain, groups, {.chain_squares = chain});
      detail::drop_unawaited(grouped);
      LayOutOptions options;
      options.groups = &groups;
      options.grouping.chain_squares = chain;
      options.shared = &detail::shared_passes;
      CAPTURE(each, chain);
      auto const cells = plain.cells.size();
      auto const parts = static_cast<std::size_t>(each);
      CHECK(count(grouped, Op::hand_in) == 0);
      CHECK(count(grouped, Op::reduce) == cells * parts);
      CHECK(count(grouped, Op::backward_part) + count(grouped, Op::backward_weight_part) ==
            (each == 1 ? 0 : cells * parts));
      CHECK(grouped.ranks.size() == 2 * plain.ranks.size());
      CHECK_NOTHROW(require_sound(grouped, table, options));
      slow_player::Player player(grouped, options);
      CHECK(player.same_actions(table));
      for (int i = 0; i < 5; ++i) CHECK(player.refute(random) == "");
    }
}

TEST_CASE("program/group_gradients: a program whose stages have one owner each stays as it is",
          "[program]") {
  Program const plain = lay_out(schedule::OneFOneB{}.table({3, 4}));
  auto const groups = groups_of(3, 2);
  Program const same = group_gradients(plain, groups);
  CHECK(same.groups == groups);
  REQUIRE(same.ranks.size() == plain.ranks.size());
  for (std::size_t r = 0; r < plain.ranks.size(); ++r) {
    auto const& a = plain.ranks[r].code;
    auto const& b = same.ranks[r].code;
    CHECK(std::equal(a.begin(), a.end(), b.begin(), b.end(), [](auto const& x, auto const& y) {
      return x.op == y.op && x.microbatch == y.microbatch && x.signal_count == y.signal_count;
    }));
    // `update` waits as before; `finish` waits for nobody.
    CHECK(plain.ranks[r].waits == same.ranks[r].waits);
  }
}

TEST_CASE(
    "program/group_gradients: a worker pushes each group behind its part of the last backward",
    "[program]") {
  LayOutOptions options;
  staleness::Synchronous const in_step;
  options.staleness = detail::staleness_model<true>(in_step);
  options.grouping.push = true;
  options.shared = &detail::shared_passes;
  std::mt19937 random(1);
  for (bool const split : {false, true}) {
    auto const table =
        split ? schedule::ZeroBubbleH1{}.table({2, 3}) : schedule::OneFOneB{}.table({2, 3});
    for (int const each : {1, 3}) {
      CAPTURE(split, each);
      auto const groups = groups_of(2, each);
      options.groups = &groups;
      Program const program = lay_out(table, options);
      CHECK_NOTHROW(require_sound(program, table, options));
      slow_player::Player player(program, options);
      for (int i = 0; i < 5; ++i) CHECK(player.refute(random) == "");
      for (std::size_t r = 0; r < 2; ++r) {
        Op const last = split       ? (each == 1 ? Op::backward_weight : Op::backward_weight_part)
                        : each == 1 ? Op::backward
                                    : Op::backward_part;
        std::vector<Op> expected;
        for (int g = 0; g < each; ++g) {
          expected.push_back(last);
          expected.push_back(Op::push);
        }
        for (Op const op : {Op::finish, Op::update, Op::pull}) expected.push_back(op);
        std::vector<Op> end;
        std::vector<int> pushed;
        for (auto const& in : program.ranks[r].code) {
          end.push_back(in.op);
          if (in.op == Op::push) pushed.push_back(in.group);
        }
        REQUIRE(end.size() >= expected.size());
        end.erase(end.begin(), end.end() - static_cast<std::ptrdiff_t>(expected.size()));
        CHECK(end == expected);
        std::vector<int> in_order;
        for (int g = 0; g < each; ++g) in_order.push_back(static_cast<int>(r) * each + g);
        CHECK(pushed == in_order);
      }
    }
  }
}

TEST_CASE("program/group_gradients: a worker's reducers push each group once all parts are there",
          "[program]") {
  auto const table = schedule::DualPipe{}.table({4, 8});
  LayOutOptions options;
  staleness::Synchronous const in_step;
  options.staleness = detail::staleness_model<true>(in_step);
  options.grouping.push = options.grouping.push_sums = true;
  options.shared = &detail::shared_passes;
  for (int const each : {1, 3}) {
    auto const groups = groups_of(table.stages, each);
    options.groups = &groups;
    Program const program = lay_out(table, options);
    CHECK_NOTHROW(require_sound(program, table, options));
    CHECK(count(program, Op::push) == groups.size());
    for (std::size_t r = 0; r < program.ranks.size(); ++r) {
      std::size_t wait = 0;
      for (std::size_t i = 0; i < program.ranks[r].code.size(); ++i) {
        Instruction const& in = program.ranks[r].code[i];
        wait += in.waits;
        if (in.op != Op::push) continue;
        CAPTURE(each, r, i);
        REQUIRE(program.ranks[r].reducer_for >= 0);
        REQUIRE(in.waits == 1);
        Program early = program;  // the push does not wait for the other owner's part
        auto& waits = early.ranks[r].waits;
        for (std::size_t w = wait; w < waits.size(); ++w) waits[w - 1] = waits[w];
        waits.resize(waits.size() - 1);
        early.ranks[r].code[i].waits = 0;
        CHECK_THROWS_WITH(require_sound(early, table, options),
                          Catch::Matchers::Contains("before it is computed"));
        if (i + 1 < program.ranks[r].code.size() || in.signal_count == 0) continue;
        Program late = program;  // ranks finish when there is a sum, which is pushed later
        std::size_t reduce = i;
        while (late.ranks[r].code[reduce].op != Op::reduce ||
               late.ranks[r].code[reduce].group != in.group)
          --reduce;
        late.ranks[r].code[reduce].add_signal(in.signal[0]);
        late.ranks[r].code[i].signal_count = 0;
        CHECK_THROWS_WITH(require_sound(late, table, options),
                          Catch::Matchers::Contains("and pushed if groups are"));
      }
    }
  }
}

TEST_CASE("program/drop_unawaited: a signal is given as often as a rank waits for it",
          "[program]") {
  Program program = lay_out(schedule::GPipe{}.table({2, 4}));
  auto& rank = program.ranks[0];
  auto const full = signal_of(0, EdgeSignal::forward_full);
  for (auto& in : rank.code)
    if (in.op == Op::update) in.signal[in.signal_count++] = static_cast<std::uint16_t>(full);
  detail::drop_unawaited(program);
  std::size_t given = 0;
  for (auto const& in : rank.code)
    given += static_cast<std::size_t>(std::count(
        in.signal.begin(), in.signal.begin() + in.signal_count, static_cast<std::uint16_t>(full)));
  CHECK(given == 4);
}

}  // namespace group_gradients_test
