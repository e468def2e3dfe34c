// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The well-known all-reduce algorithms as lists of steps.
/// @source S. Shi, X. Chu, B. Li, "MG-WFBP: Efficient Data Communication for Distributed
/// Synchronous SGD",
///         INFOCOM 2019, table II; R. Thakur, R. Rabenseifner, W. Gropp, IJHPCA 2005.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

#include <stagger/collective/communicator.hpp>
#include <stagger/core/error.hpp>

namespace stagger::collective {

/// How an all-reduce is carried out. `slices` is the default: each rank adds one contiguous slice
/// in rank order and hands it to the others, so that the bits depend on nothing but the values and
/// their ranks.
enum class AllReduce : std::uint8_t { slices, ring, recursive_doubling, halving_doubling, tree };

/// The name an algorithm goes by in messages and on command lines.
[[nodiscard]] constexpr char const* name(AllReduce algorithm) noexcept {
  switch (algorithm) {
    case AllReduce::slices:
      return "slices";
    case AllReduce::ring:
      return "ring";
    case AllReduce::recursive_doubling:
      return "recursive-doubling";
    case AllReduce::halving_doubling:
      return "halving-doubling";
    case AllReduce::tree:
      return "tree";
  }
  return "unknown";
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
  friend constexpr bool operator==(Step const&, Step const&) = default;
};

namespace detail {

/// Levels of a binomial tree over n ranks: ceil(log2 n).
[[nodiscard]] constexpr int levels(int n) noexcept {
  return n < 2 ? 0 : static_cast<int>(std::bit_width(static_cast<unsigned>(n - 1)));
}

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

}  // namespace detail

/// Number of steps each rank takes; one message after the other, so `a` of the cost line is this
/// times the start-up of one message.
[[nodiscard]] constexpr int step_count(AllReduce algorithm, int ranks) noexcept {
  if (ranks < 2) return 0;
  switch (algorithm) {
    case AllReduce::ring:
      return 2 * (ranks - 1);
    case AllReduce::recursive_doubling:
      return detail::levels(ranks);
    case AllReduce::halving_doubling:
    case AllReduce::tree:
      return 2 * detail::levels(ranks);
    case AllReduce::slices:
      break;
  }
  return 0;
}

/// Refuses a number of ranks that an algorithm cannot serve.
/// @throws Error  Errc::bad_configuration
constexpr void require_supported(AllReduce algorithm, int ranks) {
  bool const pairs =
      algorithm == AllReduce::recursive_doubling || algorithm == AllReduce::halving_doubling;
  if (pairs && !std::has_single_bit(static_cast<unsigned>(ranks))) {
    throw Error(Errc::bad_configuration, std::string(name(algorithm)) +
                                             " needs a power of two ranks, there are " +
                                             std::to_string(ranks) + "; use ring or tree");
  }
}

/// Step `index` of a rank for a vector of `count` elements.
/// @pre  0 <= rank < ranks, 0 <= index < step_count(algorithm, ranks), a supported number of ranks
[[nodiscard]] constexpr Step step(AllReduce algorithm, int rank, int ranks, std::size_t count,
                                  int index) noexcept {
  Slice const all{0, count};
  switch (algorithm) {
    case AllReduce::ring: {
      bool const reduce = index < ranks - 1;
      int const s = reduce ? index : index - (ranks - 1);
      auto const chunk = [&](int c) { return slice(count, (c + 2 * ranks) % ranks, ranks); };
      int const sent = reduce ? rank - s : rank + 1 - s;
      return {(rank + 1) % ranks, chunk(sent), (rank + ranks - 1) % ranks, chunk(sent - 1),
              reduce ? Arrival::add : Arrival::copy};
    }
    case AllReduce::recursive_doubling: {
      int const peer = rank ^ (1 << index);
      return {peer, all, peer, all, Arrival::exchange_add};
    }
    case AllReduce::halving_doubling: {
      int const half = detail::levels(ranks);
      bool const reduce = index < half;
      int const level = reduce ? index + 1 : 2 * half - index;  // halvings that part the two
      int const peer = rank ^ (ranks >> level);
      Slice const mine = detail::halved(count, rank, ranks, level);
      Slice const theirs = detail::halved(count, peer, ranks, level);
      if (reduce) return {peer, theirs, peer, mine, Arrival::add};
      return {peer, mine, peer, theirs, Arrival::copy};
    }
    case AllReduce::tree: {
      int const half = detail::levels(ranks);
      bool const reduce = index < half;
      int const bit = 1 << (reduce ? index : 2 * half - 1 - index);
      if ((rank & (bit - 1)) != 0) return {};  // waits below this level
      bool const lower = (rank & bit) == 0;
      int const peer = rank ^ bit;
      if (peer >= ranks) return {};
      if (lower == reduce) return {-1, {}, peer, all, reduce ? Arrival::add : Arrival::copy};
      return {peer, all, -1, {}, Arrival::copy};
    }
    case AllReduce::slices:
      break;
  }
  return {};
}

}  // namespace stagger::collective
