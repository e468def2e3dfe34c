// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   One layer of a worker whose pushes and answers take virtual time.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include <stagger/core/algorithm.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/parameters/parameter_memory.hpp>
#include <stagger/parameters/version_tag.hpp>
#include <stagger/sim/detail/parcels.hpp>

namespace stagger::sim::detail {

/// If pushes are added on arrival or in turn, the layer has the answer that arrived last. There is
/// one request at a time, which follows the pushes that were made before it.
struct CarriedLayer {
  std::size_t bytes = 0;                     ///< in memory
  std::size_t sent_bytes = 0;                ///< without gaps, assumed to be at the end
  std::uint32_t pushes = 0;                  ///< of the stream
  std::uint32_t under_way = 0;               ///< of those
  stagger::detail::ByteRange asked{};        ///< a part, last
  stagger::detail::VersionTag contained{};   ///< in the answer that arrived last
  stagger::detail::ParameterBlock answer{};  ///< that one

  void drop() noexcept {
    under_way = 0;
    asks_ = requested_ = false;
  }
  /// Keeps what was read at first, which is used until an answer arrives.
  void read(std::byte const* values) {
    contained = {};
    if (answer.size() != bytes) answer.make(nullptr, bytes);
    if (bytes != 0) std::memcpy(answer.data(), values, bytes);
  }
  /// The worker asks for so many rounds.
  void ask(std::uint32_t rounds) noexcept {
    if (!std::exchange(asks_, true)) behind_ = pushes;
    rounds_ = rounds;
  }
  /// It will ask for the last weights instead.
  void cancel() noexcept { asks_ = false; }
  /// @return whether a request leaves now, for rounds()
  [[nodiscard]] bool request() noexcept {
    if (!asks_ || requested_ || pushes - under_way < behind_) return false;
    asks_ = false;
    return requested_ = true;
  }
  [[nodiscard]] std::uint32_t rounds() const noexcept { return rounds_; }
  /// An answer has arrived. It may answer a later request, too, whose rounds it has then.
  /// @param keeps  its values
  /// @return       rounds that it contains, at least
  std::uint32_t arrive(Parcel& parcel, bool keeps) noexcept {
    contained = parcel.contained;
    if (keeps) std::swap(answer, parcel.values);
    std::uint32_t const there = std::max(parcel.number, contained.rounds());
    requested_ = false;
    if (there >= rounds_ && std::exchange(asks_, false)) parcel.number = rounds_;
    return there;
  }

 private:
  bool requested_ = false;    // a request has left, and its answer has not arrived
  bool asks_ = false;         // a request has not left,
  std::uint32_t rounds_ = 0;  // for so many rounds,
  std::uint32_t behind_ = 0;  // which follows so many pushes
};

}  // namespace stagger::sim::detail
