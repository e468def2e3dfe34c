// SPDX-License-Identifier: Apache-2.0
#include <stagger/cuda/detail/routes.hpp>

#include "catch.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <stagger/program/lay_out.hpp>
#include <stagger/schedule/named.hpp>

namespace routes_test {

namespace sg = stagger;
using sg::cuda::detail::Routes;

namespace {

/// What one place does, in its order: an instruction of a rank, or one end of a message.
struct Operation {
  enum class Kind : std::uint8_t { instruction, send, receive } kind = Kind::instruction;
  std::size_t rank = 0;
  std::size_t index = 0;
  std::uint32_t signal = 0;  // of a message, and its channel
  std::pair<int, int> channel;
};

/// Carries out the operations of all places. Every place does one after the other, and holds at a
/// message until the other end has come to it.
struct Player {
  sg::Program const& program;
  Routes const& routes;
  std::vector<int> const& place;
  std::vector<std::vector<Operation>> operations;
  std::string fault;

  explicit Player(sg::Program const& p, Routes const& r, std::vector<int> const& places)
      : program(p), routes(r), place(places) {
    operations.resize(static_cast<std::size_t>(*std::max_element(place.begin(), place.end())) + 1);
    for (auto const& issue : routes.order) {
      auto const& in = program.ranks[issue.rank].code[issue.index];
      at(issue.rank).push_back({Operation::Kind::instruction, issue.rank, issue.index, 0, {}});
      for (unsigned g = 0; g < in.signal_count; ++g) {
        auto const number = routes.route_of[in.signal[g]];
        if (number == Routes::none) continue;
        auto const& route = routes.all[number];
        auto const channel = routes.channels[route.channel];
        at(route.sender)
            .push_back({Operation::Kind::send, route.sender, issue.index, in.signal[g], channel});
        at(route.receiver)
            .push_back(
                {Operation::Kind::receive, route.receiver, issue.index, in.signal[g], channel});
      }
    }
  }
  std::vector<Operation>& at(std::size_t rank) {
    return operations[static_cast<std::size_t>(place[rank])];
  }

  /// @return whether all places came to their end
  bool play() {
    std::vector<std::size_t> next(operations.size());
    std::vector<std::uint32_t> given(program.signals.size());
    std::vector<std::size_t> wait(program.ranks.size());
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t p = 0; p < operations.size(); ++p) {
        if (next[p] == operations[p].size()) continue;
        Operation const& operation = operations[p][next[p]];
        if (operation.kind == Operation::Kind::instruction) {
          carry_out(operation, given, wait);
          ++next[p];
          moved = true;
          continue;
        }
        if (operation.kind == Operation::Kind::receive) continue;  // moved by its sender
        auto const other = static_cast<std::size_t>(operation.channel.second);
        if (next[other] == operations[other].size()) continue;
        Operation const& receive = operations[other][next[other]];
        if (receive.kind != Operation::Kind::receive || receive.channel != operation.channel)
          continue;
        if (receive.signal != operation.signal) fault += "a message meets another; ";
        ++given[operation.signal];
        ++next[p];
        ++next[other];
        moved = true;
      }
    }
    for (std::size_t p = 0; p < operations.size(); ++p)
      if (next[p] != operations[p].size()) return false;
    return true;
  }

  void carry_out(Operation const& operation, std::vector<std::uint32_t>& given,
                 std::vector<std::size_t>& wait) {
    auto const& rank = program.ranks[operation.rank];
    auto const& in = rank.code[operation.index];
    for (unsigned n = 0; n < in.waits; ++n) {
      auto const& w = rank.waits[wait[operation.rank]++];
      auto const& ends = program.signals[w.signal];
      bool const message = routes.route_of[w.signal] != Routes::none;
      bool const here = place[static_cast<std::size_t>(ends.sender)] == place[operation.rank];
      if ((message || here) && given[w.signal] < w.count) fault += "an action comes too early; ";
    }
    for (unsigned g = 0; g < in.signal_count; ++g)
      if (routes.route_of[in.signal[g]] == Routes::none) ++given[in.signal[g]];
  }
};

/// Whether no value is taken into a slot that its place has not done with.
bool slots_are_free(sg::Program const& program, Routes const& routes) {
  std::map<std::size_t, bool> busy;  // events of slots
  for (auto const& issue : routes.order) {
    auto const& in = program.ranks[issue.rank].code[issue.index];
    for (unsigned g = 0; g < in.signal_count; ++g) {
      auto const number = routes.route_of[in.signal[g]];
      if (number == Routes::none) continue;
      auto const& route = routes.all[number];
      bool& slot = busy[route.first_slot + (route.forward ? in.y : in.dx)];
      if (std::exchange(slot, true)) return false;
    }
    if (!sg::computes(in.op) || !routes.last_uses[issue.rank][issue.index]) continue;
    if (routes.route_into[in.cell] != Routes::none)
      busy[routes.all[routes.route_into[in.cell]].first_slot + in.x] = false;
    if (routes.route_back_to[in.cell] != Routes::none)
      busy[routes.all[routes.route_back_to[in.cell]].first_slot + in.dy] = false;
  }
  return true;
}

}  // namespace

TEST_CASE(
    "cuda/Routes: places that hold at every message come to their end, whatever is placed "
    "where",
    "[cuda]") {
  for (auto const& entry : sg::schedule::catalog) {
    if (!entry.trains) continue;
    for (int const ranks : {2, 4}) {
      for (int const microbatches : {4, 8}) {
        sg::schedule::Table table;
        try {
          table = sg::schedule::Named{std::string(entry.name)}.table({ranks, microbatches});
        } catch (sg::Error const&) {
          continue;  // a shape that it does not allow
        }
        auto const program = sg::lay_out(table);
        auto const count = program.ranks.size();
        for (std::size_t turn = 1; turn <= count; ++turn) {
          std::vector<int> place;
          for (std::size_t r = 0; r < count; ++r)
            place.push_back(static_cast<int>(r * turn % count));
          CAPTURE(entry.name, ranks, microbatches, turn);
          Routes const routes(program, place);
          std::size_t instructions = 0;
          for (auto const& rank : program.ranks) instructions += rank.code.size();
          REQUIRE(routes.order.size() == instructions);
          Player player(program, routes, place);
          REQUIRE(player.play());
          REQUIRE(player.fault.empty());
          REQUIRE(slots_are_free(program, routes));
        }
      }
    }
  }
}

}  // namespace routes_test
