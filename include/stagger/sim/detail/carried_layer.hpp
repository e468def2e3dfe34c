// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Messages in transit between a worker and its parameter server in virtual time, and what
///         the worker has of a layer meanwhile.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/list.hpp>
#include <stagger/parameters/parameter_memory.hpp>
#include <stagger/parameters/version_tag.hpp>

namespace stagger::sim::detail {

struct Parcel {
  enum Kind : std::uint8_t { none, pushed, late, answer, last_answer, choice };
  Kind kind = none;
  bool last = false;
  stagger::detail::ByteRange part{};  ///< of a push
  std::size_t layer = 0;              ///< of a message about late layers: the number of layers
  std::size_t split = 0;              ///< of a message about late layers: the layer of which only
                                      ///< `part` is late
  std::uint32_t number = 0;         ///< of the push; rounds of the answer; step of the late layers
  List<std::uint32_t> contained{};  ///< [workers] pushes of each in the answer
  double sent_s = 0;
  stagger::detail::ParameterBlock values{};

  [[nodiscard]] bool is_push() const noexcept { return kind == pushed || kind == late; }
  /// Makes room for this many bytes.
  void keep(std::size_t bytes) {
    if (values.size() != bytes) values.make(nullptr, bytes);
  }
  void fill(std::byte const* from, std::size_t bytes) {
    keep(bytes);
    if (bytes != 0) std::memcpy(values.data(), from, bytes);
  }
};

/// Memory for parcels. The place of a delivered parcel is reused for one of the same layer, since
/// it has room for its values.
class Parcels {
 public:
  [[nodiscard]] Parcel& operator[](std::size_t place) { return parcels_[place]; }
  /// @return the place of a new one
  [[nodiscard]] std::size_t make(Parcel::Kind kind, std::size_t layer, std::uint32_t number,
                                 double now_s) {
    std::size_t place = 0;
    while (place < parcels_.size() &&
           (parcels_[place].kind != Parcel::none || parcels_[place].layer != layer))
      ++place;
    if (place == parcels_.size()) parcels_.emplace_back();
    Parcel& parcel = parcels_[place];
    parcel.kind = kind;
    parcel.layer = layer;
    parcel.number = number;
    parcel.sent_s = now_s;
    return place;
  }
  void drop() noexcept {
    for (Parcel& parcel : parcels_) parcel.kind = Parcel::none;
  }

 private:
  List<Parcel> parcels_;
};

/// If pushes are added on arrival or in turn, the layer has the answer that arrived last. There is
/// one request at a time, which follows the pushes that were made before it.
struct CarriedLayer {
  std::size_t bytes = 0;                     ///< in memory
  std::size_t sent_bytes = 0;                ///< without gaps, assumed to be at the end
  std::uint32_t pushes = 0;                  ///< of the stream
  std::uint32_t under_way = 0;               ///< of those
  stagger::detail::ByteRange asked{};        ///< a part, last
  List<std::uint32_t> contained{};           ///< [workers] pushes of each in the answer that
                                             ///< arrived last
  stagger::detail::ParameterBlock answer{};  ///< that one

  void drop() noexcept {
    under_way = 0;
    asks_ = requested_ = false;
  }
  /// Keeps what was read at first, which is used until an answer arrives.
  void read(std::byte const* values, std::size_t workers) {
    contained.assign(workers, 0);
    if (answer.size() != bytes) answer.make(nullptr, bytes);
    if (bytes != 0) std::memcpy(answer.data(), values, bytes);
  }
  /// The worker asks for this many rounds.
  void ask(std::uint32_t rounds) noexcept {
    if (!std::exchange(asks_, true)) behind_ = pushes;
    rounds_ = rounds;
  }
  /// The pushes that are contained in the answer that arrived last.
  [[nodiscard]] stagger::detail::VersionTag tag(int worker) const noexcept {
    return {{contained.data(), contained.size()}, worker};
  }
  /// Drops a request that has not left yet, since the last weights are requested instead.
  void cancel() noexcept { asks_ = false; }
  /// @return whether a request leaves now, for rounds()
  [[nodiscard]] bool request() noexcept {
    if (!asks_ || requested_ || pushes - under_way < behind_) return false;
    asks_ = false;
    return requested_ = true;
  }
  [[nodiscard]] std::uint32_t rounds() const noexcept { return rounds_; }
  /// An answer has arrived. It may answer a later request, too, whose rounds it has then.
  /// @param keeps   its values
  /// @param worker  to whom it is sent
  /// @return        rounds that it contains, at least
  std::uint32_t arrive(Parcel& parcel, bool keeps, int worker) noexcept {
    std::uint32_t there = parcel.number;
    if (keeps) {
      std::swap(answer, parcel.values);
      std::swap(contained, parcel.contained);
      there = std::max(there, tag(worker).rounds());
    }
    requested_ = false;
    if (there >= rounds_ && std::exchange(asks_, false)) parcel.number = rounds_;
    return there;
  }

 private:
  bool requested_ = false;    // a request has left, and its answer has not arrived
  bool asks_ = false;         // a request has not left,
  std::uint32_t rounds_ = 0;  // for this many rounds,
  std::uint32_t behind_ = 0;  // which follows this many pushes
};

/// The turn of a worker whose pushes are added in turn, and the pushes that are held until it
/// comes.
struct Turn {
  bool taken = false;                 ///< whether pushes are added in turn
  std::uint32_t granted = 0;          ///< pushes of the stream for which the turn has come
  stagger::List<std::size_t> held{};  ///< parcels

  void drop() noexcept {
    held.clear();
    granted = 0;
  }
  /// Whether every layer has the pushes of the workers before this one, so that it may begin to
  /// push: workers do not share the link for their pushes.
  /// @param link    tells whose turn a layer is
  /// @param layers  of the worker
  template <class Link>
  [[nodiscard]] bool has_come(Link& link, List<CarriedLayer> const& layers, std::uint32_t push) {
    if (!taken || granted > push) return true;
    for (std::size_t l = 0; l < layers.size(); ++l)
      if (layers[l].pushes - layers[l].under_way <= push && !link.has_turn(l)) return false;
    granted = push + 1;
    return true;
  }
};

}  // namespace stagger::sim::detail
