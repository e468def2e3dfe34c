// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Which rows of a microbatch each replica of a stage works on, and the messages between
/// neighbours that are replicated differently.
/// @source S. Fan et al., "DAPPLE: A Pipelined Data Parallel Approach for Training Large Models",
///         PPoPP 2021, section 5.2: split and concatenation between stages; uneven shares are ours.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <stagger/collective/communicator.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/text.hpp>

namespace stagger::collective {

/// How the rows of every microbatch are shared out to the replicas of a stage.
///
/// Replica k of r works on rows [k n / r, (k + 1) n / r) of n. With weights w, such as 15 : 1 for a
/// fast and a slow machine, the borders are n (w_0 + ... + w_{k-1}) / (w_0 + ... + w_{r-1}),
/// rounded down. Weights are looked at, not copied; they outlive the object.
class RowShares {
 public:
  /// Even shares.
  /// @throws Error  Errc::bad_configuration for no replica
  constexpr explicit RowShares(int replicas)
      : replicas_(replicas), total_(static_cast<std::uint64_t>(replicas)) {
    if (replicas < 1) refuse_count(replicas);
  }
  /// Shares in proportion to weights, one per replica.
  /// @throws Error  Errc::bad_configuration for no replica, a weight of 0, or weights of more than
  /// 2^32 - 1
  ///                together
  constexpr explicit RowShares(std::span<std::uint32_t const> weights)
      : replicas_(static_cast<int>(weights.size())), weights_(weights) {
    if (weights.empty()) refuse_count(0);
    for (std::size_t k = 0; k < weights.size(); ++k) {
      if (weights[k] == 0) refuse_weight(k);
      total_ += weights[k];
      if (total_ > most_total) refuse_total(k);
    }
  }

  [[nodiscard]] constexpr int replicas() const noexcept { return replicas_; }

  /// Rows of `count` that a replica works on; empty where there are fewer rows than shares.
  /// @pre  0 <= replica < replicas()
  /// @complexity  O(1) for even shares, O(replica) for weights
  [[nodiscard]] constexpr Slice rows(std::size_t count, int replica) const noexcept {
    std::uint64_t before = static_cast<std::uint64_t>(replica);
    std::uint64_t own = 1;
    if (!weights_.empty()) {
      before = 0;
      for (auto const w : weights_.first(static_cast<std::size_t>(replica))) before += w;
      own = weights_[static_cast<std::size_t>(replica)];
    }
    return {border(count, before), border(count, before + own)};
  }

  /// The most rows that one replica works on: what its buffers must hold.
  [[nodiscard]] constexpr std::size_t most_rows(std::size_t count) const noexcept {
    std::size_t most = 0;
    for (int k = 0; k < replicas_; ++k) most = std::max(most, rows(count, k).size());
    return most;
  }

 private:
  static constexpr std::uint64_t most_total = 0xffffffff;

  /// floor(count * weight / total), with no product that could overflow.
  [[nodiscard]] constexpr std::size_t border(std::size_t count,
                                             std::uint64_t weight) const noexcept {
    return count / total_ * weight + count % total_ * weight / total_;
  }
  [[noreturn, gnu::cold]] static void refuse_count(int replicas) {
    throw Error(Errc::bad_configuration,
                text("a stage has ", replicas, " replicas; give it at least one"));
  }
  [[noreturn, gnu::cold]] static void refuse_weight(std::size_t replica) {
    throw Error(Errc::bad_configuration,
                text("the share of replica ", replica,
                     " is 0; give each replica a positive one, or leave the replica out"));
  }

  [[noreturn, gnu::cold]] static void refuse_total(std::size_t replica) {
    throw Error(Errc::bad_configuration,
                text("the shares of replicas 0 to ", replica, " add up to more than ", most_total,
                     "; divide all of them by a common factor"));
  }

  int replicas_ = 1;
  std::uint64_t total_ = 0;
  std::span<std::uint32_t const> weights_{};
};

/// Rows that one replica of a stage hands to one replica of its neighbour.
struct RowMessage {
  int from = 0;  ///< replica of the sending stage
  int to = 0;    ///< replica of the receiving stage
  Slice rows{};  ///< of the whole microbatch; never empty

  /// The same rows counted from the first row of a replica's own share.
  [[nodiscard]] constexpr Slice within(Slice share) const noexcept {
    return {rows.first - share.first, rows.last - share.first};
  }
  friend constexpr bool operator==(RowMessage const&, RowMessage const&) = default;
};

/// Calls `visit(RowMessage)` for each non-empty overlap of a sender's rows and a receiver's, in the
/// order of rows; both ends of an edge therefore see its messages in one order. One to many is a
/// split, many to one a concatenation; equal shares cut nothing. What goes back with the gradients
/// is the same list with the ends exchanged.
/// @complexity  O(senders + receivers) messages; r + r' - gcd(r, r') of them for even shares of a
///              count that lcm(r, r') divides
template <class Visitor>
constexpr void for_each_row_message(std::size_t count, RowShares const& senders,
                                    RowShares const& receivers, Visitor&& visit) {
  for (int from = 0, to = 0; from < senders.replicas() && to < receivers.replicas();) {
    Slice const a = senders.rows(count, from);
    Slice const b = receivers.rows(count, to);
    Slice const both{std::max(a.first, b.first), std::min(a.last, b.last)};
    if (both.first < both.last) visit(RowMessage{from, to, both});
    if (a.last <= b.last) ++from;
    if (b.last <= a.last) ++to;
  }
}

/// The messages of for_each_row_message as a list.
[[nodiscard]] constexpr std::vector<RowMessage> row_messages(std::size_t count,
                                                             RowShares const& senders,
                                                             RowShares const& receivers) {
  std::vector<RowMessage> messages;
  for_each_row_message(count, senders, receivers,
                       [&](RowMessage const& m) { messages.push_back(m); });
  return messages;
}

}  // namespace stagger::collective
