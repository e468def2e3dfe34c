// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Which slot each message uses, fixed before anything runs.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include <stagger/core/list.hpp>

namespace stagger::detail {

inline constexpr std::uint32_t nowhere = std::numeric_limits<std::uint32_t>::max();

/// Positions, in a rank's row, of what happens to one value of each microbatch; nowhere for those
/// that another rank takes.
using Positions = List<std::uint32_t>;

/// Largest number of microbatches whose value lives at once: written at `from`, last read at `to`,
/// in one row.
[[nodiscard]] inline std::uint32_t most_alive(Positions const& from, Positions const& to,
                                              std::size_t row_length) {
  List<std::int32_t> change(row_length + 1);
  for (std::size_t m = 0; m < from.size(); ++m) {
    if (from[m] == nowhere) continue;
    ++change[from[m]];
    --change[to[m] + 1];
  }
  std::int32_t alive = 0;
  std::int32_t most = 0;
  for (std::int32_t const c : change) most = std::max(most, alive += c);
  return static_cast<std::uint32_t>(most);
}

/// Microbatches in the order of their positions.
[[nodiscard]] [[gnu::cold]] inline List<std::uint32_t> in_order(Positions const& position,
                                                                std::size_t row_length) {
  List<std::uint32_t> at(row_length, nowhere);
  for (std::size_t m = 0; m < position.size(); ++m)
    if (position[m] != nowhere) at[position[m]] = static_cast<std::uint32_t>(m);
  List<std::uint32_t> result;
  for (auto m : at)
    if (m != nowhere) result.push_back(m);
  return result;
}

/// The values that pass over one edge, or through one pool of a rank, one per microbatch.
///
/// They are numbered in the producer's order. A slot is handed on in the consumer's order of
/// release: of n slots, the (k - n)-th release makes room for message k. So a schedule may release
/// in any order, and a slot is known beforehand.
struct Messages {
  std::uint32_t slots = 0;
  List<std::uint16_t> slot;    ///< [microbatches]
  List<std::uint32_t> number;  ///< [microbatches] in the producer's order
  List<std::uint32_t>
      room;            ///< [microbatches] releases that must have happened before it is written
  Positions released;  ///< [releases] position in the consumer's row

  /// Fixes slots for at least `wanted` of them; takes more where the orders of producer and
  /// consumer demand it.
  /// @param produced  [microbatches] positions in the producer's row
  /// @param last_use  [microbatches] positions in the consumer's row
  [[gnu::cold]] Messages(Positions const& produced, std::size_t producer_length,
                         Positions const& last_use, std::size_t consumer_length,
                         std::uint32_t wanted) {
    auto const order = in_order(produced, producer_length);
    auto const releases = in_order(last_use, consumer_length);
    std::size_t const count = order.size();
    slot.resize(produced.size());
    number.resize(produced.size());
    room.resize(produced.size());
    released.resize(count);
    for (std::size_t k = 0; k < count; ++k) {
      number[order[k]] = static_cast<std::uint32_t>(k);
      released[k] = last_use[releases[k]];
    }
    slots = std::min(wanted, static_cast<std::uint32_t>(count));
    for (std::size_t k = 0; k < count;
         ++k)  // the r-th release must be of a message that has a slot by then
      if (number[releases[k]] > k)
        slots = std::max(slots, number[releases[k]] - static_cast<std::uint32_t>(k) + 1);
    for (std::size_t k = 0; k < count; ++k) {
      bool const fresh = k < slots;
      slot[order[k]] = fresh ? static_cast<std::uint16_t>(k) : slot[releases[k - slots]];
      room[order[k]] = fresh ? 0 : static_cast<std::uint32_t>(k - slots + 1);
    }
  }
  Messages() = default;
};

}  // namespace stagger::detail
