// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What ranks of an MPI connection send each other beside the numbers themselves.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include <stagger/collective/detail/world.hpp>
#include <stagger/core/error.hpp>

namespace stagger::mpi::detail {

using collective::Reduction;
using collective::Slice;
using collective::detail::Call;
using collective::detail::Descriptor;
using collective::detail::ElementType;

/// First words of every message; another number is another version of these structures.
inline constexpr std::uint32_t wire_version = 0x53544701;

/// Bytes of numbers that travel in the message that announces a call.
inline constexpr std::size_t inline_bytes = 3584;

/// Announces a rank's call of a collective to a peer, which compares it with its own.
struct Header {
  std::uint32_t version = wire_version;
  std::uint32_t proposed = 0;  ///< of a split: the lowest context this rank has not used
  std::uint64_t number = 0;
  std::uint64_t count = 0;
  std::int32_t root = 0;
  std::int32_t color = 0;
  std::int32_t key = 0;
  std::uint8_t call = 0;
  std::uint8_t reduction = 0;
  char type[10] = {};

  void describe(Descriptor const& what) {
    call = static_cast<std::uint8_t>(what.call);
    reduction = static_cast<std::uint8_t>(what.reduction);
    root = what.root;
    count = what.count;
    if (what.type != nullptr) what.type->text().copy(type, sizeof(type));
  }
  [[nodiscard]] bool agrees(Header const& o) const noexcept {
    return number == o.number && call == o.call && reduction == o.reduction && root == o.root &&
           count == o.count && std::memcmp(type, o.type, sizeof(type)) == 0;
  }
  [[nodiscard]] std::string text() const {
    constexpr char const* reductions[] = {"sum", "min", "max"};
    std::string s = call <= static_cast<std::uint8_t>(Call::split)
                        ? name(static_cast<Call>(call))
                        : "a call this version does not know";
    if (type[0] == 0) return s;
    s += stagger::text("(", std::string(type, strnlen(type, sizeof(type))), " x ", count);
    if (call == static_cast<std::uint8_t>(Call::broadcast)) s += ", root " + std::to_string(root);
    if (call == static_cast<std::uint8_t>(Call::all_reduce) ||
        call == static_cast<std::uint8_t>(Call::reduce_scatter)) {
      s += std::string(", ") + reductions[reduction % 3];
    }
    return s + ")";
  }
};
static_assert(std::is_trivially_copyable_v<Header>);

/// Tells a member of a context that a rank has left it, or that it is broken.
struct Note {
  enum class Kind : std::uint8_t { left, broken };

  std::uint32_t version = wire_version;
  std::uint32_t context = 0;
  std::int32_t rank = 0;     ///< who writes, in the context
  std::int32_t culprit = 0;  ///< whose fault it is, or -1
  Kind kind = Kind::left;
  Errc code = Errc::peer_failed;
  std::uint64_t collectives = 0;  ///< that the writer has taken part in
  std::uint64_t sent = 0;         ///< messages from the writer to the reader
  std::uint64_t received = 0;     ///< and the other way
  char reason[600] = {};
};
static_assert(std::is_trivially_copyable_v<Note>);

}  // namespace stagger::mpi::detail
