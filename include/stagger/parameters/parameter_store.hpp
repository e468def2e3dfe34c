// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   One layer of a model that several workers train: its values, which rounds they contain,
///         and what has been pushed for the next ones.
/// @source Park et al., "HetPipe", USENIX ATC 2020, section 5, with rounds added in the order of
///         workers, so that bits do not depend on times.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/parameters/layer_shape.hpp>
#include <stagger/parameters/parameter_memory.hpp>

namespace stagger::detail {

/// Adds up what workers push, round by round. No thread, no lock, no clock: whoever owns it sees to
/// that.
///
/// A round is one push of every worker whose stream goes on; it is added once all of it is there, in
/// the order of workers, and makes a snapshot. Rounds are counted from the first push ever. When all
/// workers have ended their streams and all rounds are added, the next streams begin from there.
class ParameterStore {
 public:
  /// @param workers  >= 1
  /// @param values   [shape.bytes_of_values()]
  ParameterStore(LayerShape const& shape, int workers, std::byte const* values)
      : shape_(shape), workers_(static_cast<std::size_t>(workers)) {
    snapshots_.push_back(filled(values));
  }

  [[nodiscard]] std::size_t bytes() const noexcept { return shape_.bytes_of_values(); }
  /// Rounds that are added.
  [[nodiscard]] std::uint32_t rounds() const noexcept { return rounds_; }
  /// Pushes of a worker, of its present stream and all before.
  [[nodiscard]] std::uint32_t pushes(int worker) const { return workers_[worker].pushes; }
  [[nodiscard]] bool ended(int worker) const { return workers_[worker].ended; }
  /// How often all workers had ended their streams.
  [[nodiscard]] std::uint32_t streams() const noexcept { return streams_; }
  [[nodiscard]] std::size_t snapshots() const noexcept { return snapshots_.size(); }

  /// Takes a copy. @pre the worker's stream has not ended
  /// @param change  [bytes()]
  void push(int worker, std::byte const* change) {
    Worker& own = workers_[worker];
    ++own.pushes;
    own.waiting.push_back(filled(change));
    add_up();
  }
  /// The worker's stream ends: rounds go on without it.
  void end(int worker) {
    workers_[worker].ended = true;
    add_up();
    for (Worker const& each : workers_)
      if (!each.ended) return;
    ++streams_;
    for (Worker& each : workers_) {
      each.ended = false;
      each.pushes = rounds_;
    }
  }
  /// Adds what is there, complete or not, and ends all streams.
  void give_up() {
    for (int n = 0; n < static_cast<int>(workers_.size()); ++n) workers_[n].ended = true;
    end(0);
  }

  /// The values with so many rounds. @pre first_kept() <= rounds <= rounds()
  [[nodiscard]] std::byte const* snapshot(std::uint32_t rounds) const {
    return snapshots_[rounds - first_].data();
  }
  [[nodiscard]] std::uint32_t first_kept() const noexcept { return first_; }
  /// A worker will ask for no snapshot before that one any more; those that nobody will ask for go.
  void keep_from(int worker, std::uint32_t rounds) {
    workers_[worker].from = std::max(workers_[worker].from, rounds);
    std::uint32_t least = rounds_;
    for (Worker const& each : workers_) least = std::min(least, each.from);
    for (; first_ < least; ++first_) {
      spare_.push_back(take_first(snapshots_));
    }
  }

 private:
  struct Worker {
    std::uint32_t pushes = 0;
    std::uint32_t from = 0;          // the first snapshot that it may ask for
    bool ended = false;              // its stream
    List<ParameterBlock> waiting{};  // pushes that are not added, the oldest first
  };

  static ParameterBlock take_first(List<ParameterBlock>& blocks) {
    std::rotate(blocks.begin(), blocks.begin() + 1, blocks.end());
    ParameterBlock first = std::move(blocks.back());
    blocks.pop_back();
    return first;
  }
  ParameterBlock spare_or_new() {
    ParameterBlock block;
    if (spare_.empty()) {
      block.make(nullptr, bytes());
    } else {
      block = std::move(spare_.back());
      spare_.pop_back();
    }
    return block;
  }
  ParameterBlock filled(std::byte const* values) {
    ParameterBlock block = spare_or_new();
    if (bytes() != 0) std::memcpy(block.data(), values, bytes());
    return block;
  }
  [[nodiscard]] bool round_complete() const {
    bool any = false;
    for (Worker const& each : workers_) {
      if (each.waiting.empty() && !each.ended) return false;
      any = any || !each.waiting.empty();
    }
    return any;
  }

  void add_up() {
    for (; round_complete(); ++rounds_) {
      snapshots_.push_back(filled(snapshots_.back().data()));
      for (Worker& each : workers_) {
        if (each.waiting.empty()) continue;
        shape_.add_values(snapshots_.back().data(), each.waiting.front().data());
        spare_.push_back(take_first(each.waiting));
      }
    }
  }

  LayerShape shape_;
  FixedArray<Worker> workers_;
  List<ParameterBlock> snapshots_;  // of `first_` rounds and more
  List<ParameterBlock> spare_;
  std::uint32_t first_ = 0;
  std::uint32_t rounds_ = 0;
  std::uint32_t streams_ = 0;
};

}  // namespace stagger::detail
