// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Messages in transit between a worker and its parameter server in virtual time.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <stagger/core/index_range.hpp>
#include <stagger/core/list.hpp>
#include <stagger/parameters/parameter_memory.hpp>
#include <stagger/parameters/version_tag.hpp>

namespace stagger::sim::detail {

struct Parcel {
  enum Kind : std::uint8_t { none, pushed, urgent, late, answer, last_answer, choice };
  Kind kind = none;
  bool last = false;
  stagger::detail::ByteRange part{};  ///< of a push
  std::size_t layer = 0;              ///< of a message about late layers: the number of layers
  std::size_t split = 0;              ///< of a message about late layers: the layer of which only
                                      ///< `part` is late
  std::uint32_t number = 0;  ///< of the push; rounds of the answer; step of the late layers
  stagger::detail::VersionTag contained{};
  double sent_s = 0;
  stagger::detail::ParameterBlock values{};

  [[nodiscard]] bool is_push() const noexcept {
    return kind == pushed || kind == urgent || kind == late;
  }
  /// Makes room for so many bytes.
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

}  // namespace stagger::sim::detail
