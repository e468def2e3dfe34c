// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The well-known all-reduce algorithms as lists of steps, to hold their cost formulas
///         against.
/// @source S. Shi, X. Chu, B. Li, "MG-WFBP: Efficient Data Communication for Distributed
/// Synchronous SGD",
///         INFOCOM 2019, table II; R. Thakur, R. Rabenseifner, W. Gropp, IJHPCA 2005.

#include <cstddef>
#include <cstdint>

#include <stagger/collective/alpha_beta.hpp>

namespace collective_steps {

using namespace stagger;

using collective::Algorithm;

/// A contiguous piece of a vector, in elements: [first, last).
struct Slice {
  std::size_t first = 0;
  std::size_t last = 0;

  [[nodiscard]] constexpr std::size_t size() const noexcept { return last - first; }
};

/// Piece `part` of `count` elements cut into `parts`; sizes differ by at most one, longer ones
/// first.
[[nodiscard]] constexpr Slice slice(std::size_t count, int part, int parts) noexcept {
  auto const n = static_cast<std::size_t>(parts);
  auto const k = static_cast<std::size_t>(part);
  std::size_t const first = count / n * k + (k < count % n ? k : count % n);
  return {first, first + count / n + (k < count % n ? 1 : 0)};
}

/// What a rank does with what it receives in a step.
enum class Arrival : std::uint8_t {
  copy,          ///< overwrite the range
  add,           ///< combine with the range, own value first
  exchange_add,  ///< the same, but the range is sent away in this very step: receive beside it
};

/// One step of one rank: at most one message out and one in, both of which end before the next
/// step.
struct Step {
  int to = -1;  ///< rank, or -1 for no message
  Slice out{};  ///< elements sent
  int from = -1;
  Slice in{};  ///< elements received
  Arrival arrival = Arrival::copy;
};

/// Range that a rank owns after `level` halvings.
[[nodiscard]] constexpr Slice halved(std::size_t count, int rank, int ranks, int level) noexcept {
  Slice s{0, count};
  for (int i = 0, d = ranks / 2; i < level; ++i, d /= 2) {
    std::size_t const middle = s.first + s.size() / 2;
    if ((rank & d) != 0)
      s.first = middle;
    else
      s.last = middle;
  }
  return s;
}

/// Levels of a binomial tree over the ranks.
[[nodiscard]] constexpr int levels(int ranks) noexcept {
  int count = 0;
  for (int reached = 1; reached < ranks; reached *= 2) ++count;
  return count;
}

/// Number of steps each rank takes; one message after the other, so `a` of the cost line is this
/// times the start-up of one message.
[[nodiscard]] constexpr int step_count(Algorithm algorithm, int ranks) noexcept {
  if (ranks < 2) return 0;
  switch (algorithm) {
    case Algorithm::ring:
      return 2 * (ranks - 1);
    case Algorithm::recursive_doubling:
      return levels(ranks);
    case Algorithm::halving_doubling:
    case Algorithm::tree:
      return 2 * levels(ranks);
    case Algorithm::slices:
      break;
  }
  return 0;
}

/// Step `index` of a rank for a vector of `count` elements.
/// @pre  0 <= rank < ranks, 0 <= index < step_count(algorithm, ranks), a supported number of ranks
[[nodiscard]] constexpr Step step(Algorithm algorithm, int rank, int ranks, std::size_t count,
                                  int index) noexcept {
  Slice const all{0, count};
  switch (algorithm) {
    case Algorithm::ring: {
      bool const reduce = index < ranks - 1;
      int const s = reduce ? index : index - (ranks - 1);
      auto const chunk = [&](int c) { return slice(count, (c + 2 * ranks) % ranks, ranks); };
      int const sent = reduce ? rank - s : rank + 1 - s;
      return {(rank + 1) % ranks, chunk(sent), (rank + ranks - 1) % ranks, chunk(sent - 1),
              reduce ? Arrival::add : Arrival::copy};
    }
    case Algorithm::recursive_doubling: {
      int const peer = rank ^ (1 << index);
      return {peer, all, peer, all, Arrival::exchange_add};
    }
    case Algorithm::halving_doubling: {
      int const half = levels(ranks);
      bool const reduce = index < half;
      int const level = reduce ? index + 1 : 2 * half - index;  // halvings that part the two
      int const peer = rank ^ (ranks >> level);
      Slice const mine = halved(count, rank, ranks, level);
      Slice const theirs = halved(count, peer, ranks, level);
      if (reduce) return {peer, theirs, peer, mine, Arrival::add};
      return {peer, mine, peer, theirs, Arrival::copy};
    }
    case Algorithm::tree: {
      int const half = levels(ranks);
      bool const reduce = index < half;
      int const bit = 1 << (reduce ? index : 2 * half - 1 - index);
      if ((rank & (bit - 1)) != 0) return {};  // waits below this level
      bool const lower = (rank & bit) == 0;
      int const peer = rank ^ bit;
      if (peer >= ranks) return {};
      if (lower == reduce) return {-1, {}, peer, all, reduce ? Arrival::add : Arrival::copy};
      return {peer, all, -1, {}, Arrival::copy};
    }
    case Algorithm::slices:
      break;
  }
  return {};
}

}  // namespace collective_steps
