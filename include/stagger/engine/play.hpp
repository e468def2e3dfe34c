// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Plays a program without doing anything: does every rank reach its end?

#include <cstddef>
#include <cstdint>

#include <stagger/core/list.hpp>
#include <stagger/engine/program.hpp>

namespace stagger {

/// A rank that cannot go on, and what it waits for.
struct Blocked {
  int rank = 0;
  std::size_t instruction = 0;
  Wait wait;
};

/// Plays all ranks of a program against each other.
/// @return the ranks that never reach their end; empty: the program cannot deadlock, whatever
/// actions take
/// @complexity linear in the number of instructions and waits
[[nodiscard]] [[gnu::cold]] inline List<Blocked> play(Program const& program) {
  struct Place {
    std::size_t instruction = 0;
    std::size_t wait = 0;
    bool queued = true;
  };
  List<Place> places(program.ranks.size());
  List<std::uint32_t> given(program.signals.size());
  List<int> runnable;
  for (std::size_t r = places.size(); r-- > 0;) runnable.push_back(static_cast<int>(r));
  auto const wake = [&](int rank) {
    auto& place = places[static_cast<std::size_t>(rank)];
    if (!place.queued) {
      place.queued = true;
      runnable.push_back(rank);
    }
  };
  while (!runnable.empty()) {
    int const rank = runnable.back();
    runnable.pop_back();
    auto const& code = program.ranks[static_cast<std::size_t>(rank)];
    auto& place = places[static_cast<std::size_t>(rank)];
    bool blocked = false;
    for (; place.instruction < code.code.size() && !blocked;) {
      auto const& in = code.code[place.instruction];
      for (std::size_t w = place.wait; w < place.wait + in.waits && !blocked; ++w)
        blocked = given[code.waits[w].signal] < code.waits[w].count;
      if (blocked) break;
      place.wait += in.waits;
      ++place.instruction;
      for (std::size_t g = 0; g < in.gives; ++g) {
        ++given[in.give[g]];
        int const taker = program.signals[in.give[g]].taker;
        if (taker != SignalEnds::everyone)
          wake(taker);
        else
          for (std::size_t r = 0; r < places.size(); ++r) wake(static_cast<int>(r));
      }
    }
    place.queued = false;
  }
  List<Blocked> stuck;
  for (std::size_t r = 0; r < places.size(); ++r) {
    auto const& code = program.ranks[r];
    if (places[r].instruction == code.code.size()) continue;
    auto const& in = code.code[places[r].instruction];
    for (std::size_t w = places[r].wait; w < places[r].wait + in.waits; ++w)
      if (given[code.waits[w].signal] < code.waits[w].count) {
        stuck.push_back({static_cast<int>(r), places[r].instruction, code.waits[w]});
        break;
      }
  }
  return stuck;
}

}  // namespace stagger
