// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The values of a layer as they were after each of the last rounds.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <stagger/core/list.hpp>
#include <stagger/parameters/layer_parameters.hpp>

namespace stagger::detail {

/// Versions of a layer's values, of which the newest is always kept. The memory of dropped versions
/// is reused.
class Snapshots {
 public:
  /// @param parameters  have the values before the first round; must outlive this object
  explicit Snapshots(LayerParameters& parameters) : parameters_(parameters) {
    kept_.push_back({0, 0});
  }

  /// Makes sure that `count` snapshots can be kept without further allocations.
  [[gnu::cold]] void reserve(std::size_t count) {
    kept_.reserve(count);
    free_.reserve(count);
    for (std::size_t made = kept_.size() + free_.size(); made < count; ++made)
      free_.push_back(new_slot());
  }

  /// Rounds that were added.
  [[nodiscard]] std::uint32_t rounds() const noexcept { return rounds_; }
  struct Snapshot {
    std::size_t version = 0;   // number of the layer's version
    std::uint32_t pushes = 0;  // pushes of all workers that it contains
  };
  [[nodiscard]] std::size_t newest() const noexcept { return kept_.back().version; }
  /// @pre the newest has been partial since it was added
  [[nodiscard]] std::size_t before_newest() const noexcept {
    return kept_[kept_.size() - 2].version;
  }
  /// Whether the snapshot after this many rounds is kept.
  [[nodiscard]] bool has(std::uint32_t rounds) const noexcept {
    return rounds <= rounds_ && rounds_ - rounds < kept_.size();
  }
  /// @pre has(rounds)
  [[nodiscard]] Snapshot const& after(std::uint32_t rounds) const noexcept {
    return kept_[rounds - (rounds_ + 1 - kept_.size())];
  }

  /// Adds a snapshot for the next round; the caller writes its values.
  /// @param pushes   pushes that it will contain
  /// @param partial  a part of it will be written later, from the snapshot before it
  /// @return its version
  std::size_t add(std::uint32_t pushes, bool partial = false) {
    partial_ = partial;
    if (free_.empty()) free_.push_back(new_slot());
    std::size_t const slot = free_.back();
    free_.pop_back();
    kept_.push_back({slot, pushes});
    ++rounds_;
    return slot;
  }
  /// Whether the newest lacks a part, and so the one before it is kept.
  [[nodiscard]] bool partial() const noexcept { return partial_; }
  /// The newest has all parts. @return whether it lacked one
  bool complete() noexcept { return std::exchange(partial_, false); }
  /// Corrects how many pushes the newest contains.
  void contain(std::uint32_t pushes) noexcept { kept_.back().pushes = pushes; }
  /// Drops the snapshots of fewer rounds, for which nobody will ask.
  void drop_before(std::uint32_t rounds) {
    std::size_t const most = std::max(rounds_ + 1 - rounds, partial_ ? 2U : 1U);
    while (kept_.size() > most) {
      std::rotate(kept_.begin(), kept_.begin() + 1, kept_.end());
      free_.push_back(kept_.back().version);
      kept_.pop_back();
    }
  }

  /// @param file  a StateWriter, or a StateReader if there has been no round
  template <class File> void keep(File& file) {
    std::size_t count = kept_.size();
    file.numbers(rounds_, count, partial_);
    file.require(count > 0 && count - 1 <= rounds_ && (count > 1 || !partial_));
    file.require_room(count, parameters_.bytes_of_values());
    while (kept_.size() < count) kept_.push_back({new_slot(), 0});
    for (Snapshot& each : kept_) {
      file.numbers(each.pushes);
      file.block(parameters_.stored().values[each.version]);
    }
  }

 private:
  [[nodiscard]] std::size_t new_slot() {
    std::size_t const slot = parameters_.stored().values.size();
    parameters_.reserve_versions(slot + 1);
    return slot;
  }

  LayerParameters& parameters_;
  List<Snapshot> kept_;     // snapshots of the last rounds
  List<std::size_t> free_;  // versions that can be reused
  std::uint32_t rounds_ = 0;
  bool partial_ = false;
};

}  // namespace stagger::detail
