// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What a communicator is: the calls that every one of them offers, whatever carries the
/// bytes.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include <stagger/collective/operation.hpp>

namespace stagger::collective {

/// What can be sent: numbers of at most 8 bytes, and plain bytes.
template <class T>
concept Element = (std::is_arithmetic_v<T> && sizeof(T) <= 8) || std::same_as<T, std::byte>;

/// What can be reduced.
template <class T>
concept Number = Element<T> && std::is_arithmetic_v<T> && !std::same_as<T, bool>;

/// How values of several ranks become one. Integer sums wrap around.
enum class Reduction : std::uint8_t { sum, min, max };

/// A contiguous piece of a vector, in elements: [first, last).
struct Slice {
  std::size_t first = 0;
  std::size_t last = 0;

  [[nodiscard]] constexpr std::size_t size() const noexcept { return last - first; }
  friend constexpr bool operator==(Slice const&, Slice const&) = default;
};

/// Piece `part` of `count` elements cut into `parts`; sizes differ by at most one, longer ones
/// first. Reduce-scatter leaves rank r with piece r, all-gather takes it from there.
/// @pre  0 <= part < parts
[[nodiscard]] constexpr Slice slice(std::size_t count, int part, int parts) noexcept {
  auto const n = static_cast<std::size_t>(parts);
  auto const k = static_cast<std::size_t>(part);
  std::size_t const first = count / n * k + std::min(k, count % n);
  return {first, first + count / n + (k < count % n ? 1 : 0)};
}

/// What one rank gave to the wire so far.
struct Traffic {
  std::uint64_t messages = 0;
  std::uint64_t bytes = 0;
  friend constexpr bool operator==(Traffic const&, Traffic const&) = default;
};

/// One rank's end of a group of ranks that talk to each other.
///
/// Every call starts an operation and returns it; it never blocks. The k-th collective call of each
/// rank of a communicator belongs to the k-th of every other. On an edge the k-th send meets the
/// k-th receive; there are no tags. Buffers belong to the operation until it is done. Collectives
/// work in place: `reduce_scatter(x)` leaves the sum in piece `slice(x.size(), rank(), size())` of
/// x and spoils the rest, `all_gather(x)` spreads that piece to all.
///
/// Point-to-point calls take a group. Calls of one group progress together, so that two ranks may
/// send to each other; they start at its `submit()` or when it is destroyed, whichever comes first.
///
/// Dropping an operation that is not done ends the communicator for all: no peer may touch its
/// buffer then.
template <class C>
concept Communicator = std::movable<C> && Operation<typename C::operation_type> &&
    requires(C c, C const k, C& part, typename C::Group& group, std::span<float> x,
             std::span<float const> in, std::span<std::byte> bytes, char const* reason) {
  { k.rank() } -> std::same_as<int>;  // 0 <= rank() < size()
  { k.size() } -> std::same_as<int>;
  { c.group() } -> std::same_as<typename C::Group>;
  { group.submit() } -> std::same_as<void>;
  { c.send(group, in, int{}) } -> std::same_as<typename C::operation_type>;    // to a peer
  { c.receive(group, x, int{}) } -> std::same_as<typename C::operation_type>;  // from a peer
  { c.broadcast(x, int{}) } -> std::same_as<typename C::operation_type>;       // from a root
  { c.broadcast(bytes, int{}) } -> std::same_as<typename C::operation_type>;
  { c.all_reduce(x, Reduction::sum) } -> std::same_as<typename C::operation_type>;
  { c.reduce_scatter(x, Reduction::sum) } -> std::same_as<typename C::operation_type>;
  { c.all_gather(x) } -> std::same_as<typename C::operation_type>;
  // Ranks of one colour form a communicator, ordered by key, then rank; a negative one joins none.
  { c.split(int{}, int{}, part) } -> std::same_as<typename C::operation_type>;
  // Operations of every other rank end in Errc::peer_failed.
  { c.abort(reason) } -> std::same_as<void>;
};

}  // namespace stagger::collective
