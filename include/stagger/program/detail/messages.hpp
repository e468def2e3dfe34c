// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The slot of each message, fixed before anything runs.

#include <cstddef>
#include <cstdint>
#include <limits>

#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/list.hpp>

namespace stagger::detail {

inline constexpr std::uint32_t nowhere = std::numeric_limits<std::uint32_t>::max();

/// [microbatches] Indices in a rank's row of an event of each microbatch; `nowhere` for
/// microbatches of other ranks.
using RowIndices = List<std::uint32_t>;

/// Largest number of microbatches whose value lives at once: written at `from`, last read at `to`,
/// in one row.
[[nodiscard]] [[gnu::cold]] inline std::uint32_t most_alive(RowIndices const& from,
                                                            RowIndices const& to,
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

/// Microbatches in the order of their indices.
[[nodiscard]] [[gnu::cold]] inline List<std::uint32_t> in_order(RowIndices const& indices,
                                                                std::size_t row_length) {
  List<std::uint32_t> at(row_length, nowhere);
  for (std::size_t m = 0; m < indices.size(); ++m)
    if (indices[m] != nowhere) at[indices[m]] = static_cast<std::uint32_t>(m);
  List<std::uint32_t> result;
  for (auto m : at)
    if (m != nowhere) result.push_back(m);
  return result;
}

/// The values that pass over one edge, or that a rank keeps for itself, one for each microbatch.
///
/// They are numbered in the producer's order. Slots are reused in the consumer's order of release:
/// of n slots, message k takes the one that the (k - n)-th release freed. So a schedule may release
/// in any order, and the slot of each message is known before anything runs.
struct Messages {
  std::uint32_t slots = 0;
  List<std::uint16_t> slot;             ///< [microbatches]
  List<std::uint32_t> number;           ///< [microbatches] in the producer's order
  List<std::uint32_t> releases_needed;  ///< [microbatches] how many releases must precede the write
  RowIndices release;                   ///< [releases] index in the consumer's row

  Messages() = default;
  /// Assigns slots: at least `wanted`, and more if the orders of producer and consumer need them.
  /// @param produced  [microbatches] indices in the producer's row
  /// @param last_use  [microbatches] indices in the consumer's row
  [[gnu::cold]] Messages(RowIndices const& produced, std::size_t producer_length,
                         RowIndices const& last_use, std::size_t consumer_length,
                         std::uint32_t wanted) {
    auto const order = in_order(produced, producer_length);
    auto const releases = in_order(last_use, consumer_length);
    auto const count = static_cast<std::uint32_t>(order.size());
    slot.resize(produced.size());
    number.resize(produced.size());
    releases_needed.resize(produced.size());
    release.resize(count);
    for (std::uint32_t k = 0; k < count; ++k) {
      number[order[k]] = k;
      release[k] = last_use[releases[k]];
    }
    slots = std::min(wanted, count);
    for (std::uint32_t k = 0; k < count; ++k)  // the one released k-th must have a slot by then
      if (number[releases[k]] > k) slots = std::max(slots, number[releases[k]] - k + 1);
    for (std::uint32_t k = 0; k < count; ++k) {
      bool const first_use = k < slots;
      slot[order[k]] = first_use ? static_cast<std::uint16_t>(k) : slot[releases[k - slots]];
      releases_needed[order[k]] = first_use ? 0 : k - slots + 1;
    }
  }
};

}  // namespace stagger::detail
