// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The player of programs: goes through all instructions in an order that their waits
///         allow, and does nothing but show them to a visitor.

#include <cstddef>
#include <cstdint>
#include <span>

#include <stagger/core/list.hpp>
#include <stagger/program/program.hpp>

namespace stagger {

/// A rank that cannot go on, and what it waits for.
struct Blocked {
  int rank = 0;
  std::size_t instruction = 0;
  Wait wait;
};

/// Which waits hold up a rank that is played.
enum class Heeded : std::uint8_t {
  all,
  messages,  ///< only those for values between stages, as if there were room for all of them
};

/// Plays all ranks of a program against each other.
/// @param visit  (rank, index, Instruction const&, its waits) at each instruction, of a rank in its
///               order, and behind those whose signals it waits for
/// @return the ranks that never reach their end; empty: the program cannot deadlock, whatever
/// actions take
/// @complexity linear in the number of instructions and waits
template <class Visit>
List<Blocked> play(Program const& program, Visit&& visit, Heeded heeded = Heeded::all) {
  struct Place {
    std::size_t instruction = 0;
    std::size_t wait = 0;
    bool queued = true;
  };
  List<Place> places(program.ranks.size());
  List<std::uint32_t> given(program.signals.size());
  List<std::size_t> runnable;
  for (std::size_t r = places.size(); r-- > 0;) runnable.push_back(r);
  auto const wake = [&](std::size_t rank) {
    if (places[rank].queued) return;
    places[rank].queued = true;
    runnable.push_back(rank);
  };
  auto const unmet = [&](std::span<Wait const> waits) -> Wait const* {
    for (Wait const& wait : waits)
      if (given[wait.signal] < wait.count &&
          (heeded == Heeded::all || program.signals[wait.signal].edge >= 0))
        return &wait;
    return nullptr;
  };
  auto const waits_at = [&](std::size_t rank) {
    auto const& place = places[rank];
    auto const& code = program.ranks[rank];
    return std::span<Wait const>(code.waits.data() + place.wait,
                                 code.code[place.instruction].waits);
  };
  while (!runnable.empty()) {
    std::size_t const rank = runnable.back();
    runnable.pop_back();
    auto const& code = program.ranks[rank].code;
    auto& place = places[rank];
    for (; place.instruction < code.size(); ++place.instruction) {
      auto const& in = code[place.instruction];
      auto const waits = waits_at(rank);
      if (unmet(waits) != nullptr) break;
      visit(rank, place.instruction, in, waits);
      place.wait += in.waits;
      for (std::size_t g = 0; g < in.gives; ++g) {
        ++given[in.give[g]];
        int const taker = program.signals[in.give[g]].taker;
        if (taker != SignalEnds::everyone)
          wake(static_cast<std::size_t>(taker));
        else
          for (std::size_t r = 0; r < places.size(); ++r) wake(r);
      }
    }
    place.queued = false;
  }
  List<Blocked> stuck;
  for (std::size_t r = 0; r < places.size(); ++r)
    if (places[r].instruction != program.ranks[r].code.size())
      stuck.push_back({static_cast<int>(r), places[r].instruction, *unmet(waits_at(r))});
  return stuck;
}

/// The same without a visitor.
[[nodiscard]] [[gnu::cold]] inline List<Blocked> play(Program const& program) {
  return play(program, [](std::size_t, std::size_t, Instruction const&, std::span<Wait const>) {});
}

}  // namespace stagger
