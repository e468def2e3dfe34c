// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   How far the workers of a parameter server are with one layer.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/model/exchange.hpp>
#include <stagger/parameters/parameter_memory.hpp>
#include <stagger/parameters/version_tag.hpp>

namespace stagger::detail {

struct StoreWorker {
  std::uint32_t pushes = 0;           ///< added or not; all workers begin streams with as many
  std::uint32_t start = 0;            ///< before its stream
  std::uint32_t before = 0;           ///< that were added before its stream
  std::uint32_t from = 0;             ///< rounds of the first snapshot that it may ask for
  std::uint32_t stream = 0;           ///< that it began last
  std::uint32_t failures = 0;         ///< streams that ended by one, its own or another's
  bool ended = false;                 ///< that one
  bool gone = false;                  ///< nobody waits for it
  List<ParameterBlock> waiting{};     ///< pushes that are not added, the oldest first
  ParameterBlock begun{};             ///< a push that lacks its late part
  ParameterBlock answer{};            ///< in turn: the values behind its last push, or the first
  std::uint32_t answer_contains = 0;  ///< pushes of all workers
  std::uint32_t answer_has = 0;       ///< of each other worker at least, as `fewest_of_others`

  /// @param streams  of all workers, before the one that it begins
  bool enter(std::uint32_t streams) {
    stream = streams;
    return gone;
  }
  /// Whether it can begin no stream until the others have ended theirs, if there are parameters.
  [[nodiscard]] bool waits_for_others() const noexcept { return ended && !gone; }
  /// Whether it has pushed in its stream and not ended it. @param streams  that all have ended
  [[nodiscard]] bool midst(std::uint32_t streams) const noexcept {
    return stream == streams && !ended && pushes != start;
  }
  /// @param made    pushes that it is taken to have made
  /// @param added   of its pushes
  /// @param rounds  likewise
  void begin_from(std::uint32_t made, std::uint32_t added, std::uint32_t rounds) noexcept {
    ended = gone;
    pushes = start = made;
    before = added;
    from = rounds;
  }
  /// In turn. @param contains  pushes of all workers
  /// @param has                as `answer_has`
  void answer_with(std::byte const* values, std::size_t bytes, std::uint32_t contains,
                   std::uint32_t has) {
    if (answer.size() != bytes) answer.make(nullptr, bytes);
    if (bytes != 0) std::memcpy(answer.data(), values, bytes);
    answer_contains = contains;
    answer_has = has;
  }
  /// All but what layers have that are late in part.
  /// @param file   a StateWriter or a StateReader
  /// @param bytes  of a push
  template <class File> void keep(File& file, std::size_t bytes) {
    file.numbers(pushes, start, before, from, stream, failures, ended, gone, answer_contains,
                 answer_has);
    file.require(start <= pushes);
    file.blocks(waiting, bytes);
    file.block(answer);
  }
  /// @return the oldest that waits
  [[nodiscard]] ParameterBlock take_waiting() {
    std::rotate(waiting.begin(), waiting.begin() + 1, waiting.end());
    ParameterBlock first = std::move(waiting.back());
    waiting.pop_back();
    return first;
  }
};

/// Pushes that are added at once.
struct StoreRound {
  std::uint32_t before = 0;  ///< pushes of all workers
  std::uint32_t pushes = 0;
  double scale = 1;  ///< of weights: those of workers that are not there go to the others
};

class StoreWorkers {
 public:
  explicit StoreWorkers(std::size_t count) : workers_(count) {}
  [[nodiscard]] std::size_t size() const noexcept { return workers_.size(); }
  template <std::integral I> [[nodiscard]] StoreWorker& operator[](I n) { return workers_[n]; }
  template <std::integral I> [[nodiscard]] StoreWorker const& operator[](I n) const {
    return workers_[n];
  }
  [[nodiscard]] StoreWorker* begin() noexcept { return workers_.begin(); }
  [[nodiscard]] StoreWorker* end() noexcept { return workers_.end(); }

  /// Pushes of a worker that have been added.
  [[nodiscard]] std::uint32_t added(int worker) const {
    return workers_[worker].pushes - static_cast<std::uint32_t>(workers_[worker].waiting.size());
  }
  /// The fewest of these that another worker has whose stream goes on; `all_rounds` without one.
  [[nodiscard]] std::uint32_t fewest_of_others(int worker) const noexcept {
    std::uint32_t few = all_rounds;
    for (int n = 0; n < static_cast<int>(size()); ++n)
      if (n != worker && !workers_[n].ended) few = std::min(few, added(n));
    return few;
  }
  /// What the weights contain that a worker may take. @param pushes  as it asks for
  [[nodiscard]] VersionTag contained(int worker, std::uint32_t pushes, staleness::Adds adds) const {
    StoreWorker const& own = workers_[worker];
    bool const exact = adds == staleness::Adds::in_worker_order;
    std::uint32_t const mine = exact ? pushes : added(worker);
    std::uint32_t others = fewest_of_others(worker);
    if (exact && size() > 1) others = pushes;
    if (adds == staleness::Adds::in_turn) others = own.answer_has;
    return {mine - std::min(mine, own.start),
            others == all_rounds ? others : others - std::min(others, own.start)};
  }
  /// Whether every stream has ended.
  [[nodiscard]] bool all_ended() const noexcept {
    return std::all_of(workers_.begin(), workers_.end(), [](auto const& n) { return n.ended; });
  }
  [[nodiscard]] std::uint32_t most_pushes() const noexcept {
    std::uint32_t most = 0;
    for (StoreWorker const& each : workers_) most = std::max(most, each.pushes);
    return most;
  }

  // Of workers whose streams go on:

  /// Rounds of the first snapshot that one may ask for. @param rounds  of the last one
  [[nodiscard]] std::uint32_t oldest_snapshot(std::uint32_t rounds) const noexcept {
    return least(rounds, [](StoreWorker const& each) { return each.from; });
  }
  /// The fewest pushes. @param none  if there is no such worker
  [[nodiscard]] std::uint32_t fewest_pushes(std::uint32_t none) const noexcept {
    std::uint32_t const few = least(unlimited, [](auto const& each) { return each.pushes; });
    return few == unlimited ? none : few;
  }
  [[nodiscard]] bool have_added(std::uint32_t pushes) const noexcept {
    return least(unlimited, [](auto const& each) {
             return each.pushes - static_cast<std::uint32_t>(each.waiting.size());
           }) >= pushes;
  }

  /// The next round, if all pushes of it are there; else one of none.
  /// @param weights  [workers]
  /// @param before   pushes of all workers that have been added
  /// @param begun    whether pushes are there that lack their late parts
  [[nodiscard]] StoreRound next_round(List<double> const& weights, std::uint32_t before,
                                      bool begun = false) const {
    StoreRound round{before, 0, 0};
    double all = 0;
    for (std::size_t n = 0; n < size(); ++n) {
      all += weights[n];
      bool const pushed = begun ? workers_[n].begun.size() != 0 : !workers_[n].waiting.empty();
      if (!pushed && !workers_[n].ended) return {};
      if (pushed) ++round.pushes;
      if (pushed || !workers_[n].gone) round.scale += weights[n];
    }
    round.scale = all / round.scale;
    return round;
  }
  void begin_turns() noexcept { turn_ = 0; }
  /// The worker whose turn it is, if its push is there, or -1; then it is that of the next one.
  [[nodiscard]] int take_turn() noexcept {
    for (std::size_t skipped = 0; skipped < size(); ++skipped) {
      std::size_t const now = turn_;
      bool const pushed = !workers_[now].waiting.empty();
      if (!pushed && !workers_[now].ended) break;
      turn_ = (now + 1) % size();
      if (pushed) return static_cast<int>(now);
    }
    return -1;
  }
  /// One push alone.
  [[nodiscard]] StoreRound single(int worker, List<double> const& weights,
                                  std::uint32_t before) const {
    double all = 0;
    double there = 0;
    for (std::size_t n = 0; n < size(); ++n) {
      all += weights[n];
      if (!workers_[n].gone || static_cast<int>(n) == worker) there += weights[n];
    }
    return {before, 1, all / there};
  }
  /// @param rounds  that have been added
  template <class File> void keep(File& file, std::size_t bytes, std::uint32_t rounds) {
    file.numbers(turn_);
    file.require(turn_ < size());
    for (StoreWorker& each : workers_) {
      each.keep(file, bytes);
      file.require(each.from <= rounds && each.waiting.size() <= each.pushes);
    }
  }

 private:
  static constexpr std::uint32_t unlimited = 0xffffffff;
  template <class Of> [[nodiscard]] std::uint32_t least(std::uint32_t most, Of of) const noexcept {
    for (StoreWorker const& each : workers_)
      if (!each.ended) most = std::min(most, of(each));
    return most;
  }

  FixedArray<StoreWorker> workers_;
  std::size_t turn_ = 0;
};

}  // namespace stagger::detail
