// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The order in which pushes were added to a layer, and how stale the weights were from
///         which they were made.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>

namespace stagger::detail {

/// Something that a server did with a layer.
struct StoreEvent {
  enum class Kind : std::uint8_t {
    added,  ///< it added a push of the worker
    taken,  ///< the worker took weights
  };
  Kind kind = Kind::added;
  int worker = 0;
  /// Pushes of all workers since the layer was new, also to earlier servers with its folder, that were
  /// added before, or that the weights contain.
  std::uint32_t pushes = 0;
  friend bool operator==(StoreEvent const&, StoreEvent const&) = default;
};

/// Always counts, and records events if asked to.
class StoreHistory {
 public:
  static constexpr std::size_t most_missed = 63;  // larger counts of pushes count as this many

  StoreHistory(std::size_t workers, bool logs) : workers_(workers), logs_(logs) {}

  /// Pushes of all workers that have been added.
  [[nodiscard]] std::uint32_t total() const noexcept { return total_; }
  /// Likewise for one worker.
  [[nodiscard]] std::uint32_t added(int worker) const { return workers_[worker].added; }

  /// @param before  all pushes that were added before this push's round
  void add(int worker, std::uint32_t before) {
    Worker& own = workers_[worker];
    ++own.missed[missed_by(own, before)];
    ++own.added;
    if (logs_) log_.push_back({StoreEvent::Kind::added, worker, total_});
    ++total_;
  }
  /// Forgets the push that was added last. @param before  as it was added with
  [[gnu::cold]] void undo(int worker, std::uint32_t before) {
    Worker& own = workers_[worker];
    --own.added;
    --total_;
    --own.missed[missed_by(own, before)];
    if (logs_) log_.pop_back();
  }
  /// @param pushes  pushes of all workers that the weights contain
  /// @param own     likewise of this worker
  void take(int worker, std::uint32_t pushes, std::uint32_t own) {
    workers_[worker].seen = pushes - own;
    if (logs_) log_.push_back({StoreEvent::Kind::taken, worker, pushes});
  }

  /// [most_missed + 1] How many pushes of a worker were made from weights that lacked this many
  /// pushes of others.
  [[nodiscard]] std::array<std::uint64_t, most_missed + 1> const& missed(int worker) const {
    return workers_[worker].missed;
  }
  [[nodiscard]] List<StoreEvent> const& log() const noexcept { return log_; }

  /// Writes or reads everything but the log.
  /// @param file  a StateWriter or a StateReader
  template <class File> void keep(File& file) {
    file.numbers(total_);
    for (Worker& each : workers_) {
      file.numbers(each.added, each.seen);
      for (std::uint64_t& count : each.missed) file.numbers(count);
      file.require(each.added <= total_);
    }
  }

 private:
  struct Worker {
    std::uint32_t added = 0;
    std::uint32_t seen = 0;  // pushes of others in the weights that it took last
    std::array<std::uint64_t, most_missed + 1> missed{};
  };
  [[nodiscard]] static std::size_t missed_by(Worker const& own, std::uint32_t before) noexcept {
    std::size_t const others = before - own.added;
    return std::min(others - std::min<std::size_t>(others, own.seen), most_missed);
  }

  FixedArray<Worker> workers_;
  List<StoreEvent> log_;
  std::uint32_t total_ = 0;
  bool logs_;
};

}  // namespace stagger::detail
