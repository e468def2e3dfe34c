// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The progress of a parameter server's workers with one layer.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include <stagger/core/fixed_array.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/list.hpp>
#include <stagger/model/exchange.hpp>
#include <stagger/parameters/parameter_memory.hpp>
#include <stagger/parameters/version_tag.hpp>

namespace stagger::detail {

/// Copies of waiting pushes, in memory that is reused.
class BlockPool {
 public:
  explicit BlockPool(std::size_t bytes) : bytes_(bytes) {}

  /// Makes sure that `count` blocks can be in use without further allocations.
  [[gnu::cold]] void reserve(std::size_t count) {
    spare_.reserve(count);
    for (; made_ < count; ++made_) spare_.emplace_back().make(nullptr, bytes_);
  }
  /// @param from  values of one block; if a part is given, only that part is copied
  [[nodiscard]] ParameterBlock filled(std::byte const* from, ByteRange part = {}) {
    if (spare_.empty()) reserve(made_ + 1);
    ParameterBlock block = std::move(spare_.back());
    spare_.pop_back();
    std::size_t const last = std::min(part.last, bytes_);
    if (bytes_ != 0) std::memcpy(block.data() + part.first, from + part.first, last - part.first);
    return block;
  }
  /// Likewise into a block that may be in use already.
  void fill(ParameterBlock& block, std::byte const* from, ByteRange part) {
    if (block.size() != 0) give_back(std::move(block));
    block = filled(from, part);
  }
  void give_back(ParameterBlock block) { spare_.push_back(std::move(block)); }

 private:
  std::size_t bytes_;
  std::size_t made_ = 0;
  List<ParameterBlock> spare_;
};

struct StoreWorker {
  static constexpr std::size_t most_reserved = 1024;  ///< waiting pushes, without their values
  std::uint32_t pushes = 0;             ///< added or not; equal for all workers when streams begin
  std::uint32_t start = 0;              ///< of them, those before its stream
  std::uint32_t lead = 0;               ///< of them, those by which it was ahead when it came back
  std::uint32_t before = 0;             ///< of them, those added before its current stream
  std::uint32_t from = 0;               ///< rounds of the first snapshot that it may ask for
  std::uint32_t stream = all_rounds;    ///< the stream that it began last; at first none
  int process = 0;                      ///< its process that runs the layer in that stream
  std::uint32_t failures = 0;           ///< streams that ended by a failure, its own or another's
  std::size_t most_ahead = 1;           ///< pushes that may wait for those of others
  bool adding = false;                  ///< the step that is being taken has a push of it
  bool undone = false;                  ///< a step with a push of it was undone
  bool ended = false;                   ///< whether that stream has ended
  bool gone = false;                    ///< it has left or failed: nobody waits for it
  List<ParameterBlock> waiting{};       ///< pushes that are not added yet, the oldest first
  ParameterBlock begun{};               ///< a push that lacks its late part
  std::size_t begun_from = 0;           ///< bytes of that part
  ParameterBlock answer{};              ///< in_turn: values after its last push, or the first
  std::uint32_t answer_contains = 0;    ///< pushes of all workers in `answer`
  List<std::uint32_t> answer_pushes{};  ///< [workers] of each, as StoreWorkers::added_for

  /// It may push until this many of its pushes wait.
  void allow(std::size_t ahead) {
    most_ahead = std::max(most_ahead, ahead);
    waiting.reserve(std::min(ahead, most_reserved));
  }
  /// Whether it may push now. What it pushed before it failed, and came back, does not count.
  [[nodiscard]] bool may_push() const noexcept {
    return std::min<std::size_t>(waiting.size(), pushes - start) < most_ahead;
  }
  // Pushes are numbered by `pushes`, which never falls. Workers are compared without `lead`, so that
  // one that was ahead and comes back need not wait until the others have made as many.
  [[nodiscard]] std::uint32_t progress() const noexcept { return pushes - lead; }
  [[nodiscard]] std::uint32_t first() const noexcept { return start - lead; }  ///< of its stream
  /// How many of its pushes have been added, likewise.
  [[nodiscard]] std::uint32_t added() const noexcept {
    return progress() - static_cast<std::uint32_t>(waiting.size());
  }
  /// Whether something that it has pushed is not added.
  [[nodiscard]] bool waits() const noexcept { return !waiting.empty() || begun.size() != 0; }
  /// @param streams  streams that all workers have ended
  void enter(std::uint32_t streams, int in_process) noexcept {
    stream = streams;
    process = in_process;
  }
  /// Whether it must wait until the others have ended their streams before it begins the next.
  [[nodiscard]] bool waits_for_others() const noexcept { return ended && !gone; }
  /// Whether it is in a stream.
  /// @param streams  streams that all workers have ended
  [[nodiscard]] bool in_stream(std::uint32_t streams) const noexcept {
    return stream == streams && !ended;
  }
  /// @param made    number of the last push that it counts as having made
  /// @param added   of its pushes, those that count as added
  /// @param rounds  likewise
  /// @param beyond  of the pushes made, those that do not count where workers are compared
  void begin_from(std::uint32_t made, std::uint32_t added, std::uint32_t rounds,
                  std::uint32_t beyond) noexcept {
    ended = gone;
    pushes = start = made;
    lead = beyond;
    before = added;
    from = rounds;
  }
  /// Writes or reads everything but the pushes that lack their late part.
  /// @param file   a StateWriter or a StateReader
  /// @param bytes  of a push
  template <class File> void keep(File& file, std::size_t bytes) {
    file.numbers(pushes, start, lead, before, from, stream, failures, undone, ended, gone,
                 answer_contains);
    for (std::uint32_t& count : answer_pushes) file.numbers(count);
    file.require(start <= pushes && lead <= start);
    file.blocks(waiting, bytes);
    file.block(answer);
  }
  /// @return the oldest waiting push
  [[nodiscard]] ParameterBlock take_waiting() {
    std::rotate(waiting.begin(), waiting.begin() + 1, waiting.end());
    ParameterBlock first = std::move(waiting.back());
    waiting.pop_back();
    return first;
  }
};

/// A round: pushes that are added together.
struct StoreRound {
  std::uint32_t before = 0;  ///< pushes of all workers
  std::uint32_t pushes = 0;
  double scale = 1;  ///< of weights, so that those present have the sum of all
};

class StoreWorkers {
 public:
  /// @param takes_over  whether those present take over the weights of those who have gone
  StoreWorkers(std::size_t count, bool takes_over) : workers_(count), takes_over_(takes_over) {}
  [[nodiscard]] std::size_t size() const noexcept { return workers_.size(); }
  template <std::integral I> [[nodiscard]] StoreWorker& operator[](I n) { return workers_[n]; }
  template <std::integral I> [[nodiscard]] StoreWorker const& operator[](I n) const {
    return workers_[n];
  }
  [[nodiscard]] StoreWorker* begin() noexcept { return workers_.begin(); }
  [[nodiscard]] StoreWorker* end() noexcept { return workers_.end(); }

  /// How many pushes of a worker the newest weights contain, for another worker or itself:
  /// `all_rounds` of another whose stream has ended.
  [[nodiscard]] std::uint32_t added_for(int worker, int of) const noexcept {
    return of != worker && workers_[of].ended ? all_rounds : workers_[of].added();
  }
  /// For Adds::in_turn: keeps the newest values for a worker's next answer, and what they contain.
  /// @param all  pushes of all workers in them
  void keep_answer(int worker, std::byte const* values, std::size_t bytes, std::uint32_t all) {
    StoreWorker& own = workers_[worker];
    if (own.answer.size() != bytes) own.answer.make(nullptr, bytes);
    if (bytes != 0) std::memcpy(own.answer.data(), values, bytes);
    own.answer_contains = all;
    own.answer_pushes.resize(size());
    for (int n = 0; n < static_cast<int>(size()); ++n) own.answer_pushes[n] = added_for(worker, n);
  }
  /// What the weights contain that a worker can take.
  /// @param pushes  that it asks for
  /// @param to      [workers] pushes of each since this worker's stream began
  void contained(int worker, std::uint32_t pushes, staleness::Adds adds,
                 std::span<std::uint32_t> to) const {
    StoreWorker const& own = workers_[worker];
    for (int n = 0; n < static_cast<int>(size()); ++n) {
      std::uint32_t count = pushes;
      if (adds == staleness::Adds::in_turn) count = own.answer_pushes[n];
      if (adds == staleness::Adds::on_arrival) count = added_for(worker, n);
      to.data()[n] = count == all_rounds ? count : count - std::min(count, own.first());
    }
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

  // These consider only workers whose streams go on.

  /// Rounds of the oldest snapshot that a worker may ask for.
  /// @param rounds  of the newest snapshot
  [[nodiscard]] std::uint32_t oldest_snapshot(std::uint32_t rounds) const noexcept {
    return least(rounds, [](StoreWorker const& each) { return each.from; });
  }
  /// The smallest number of pushes.
  /// @param none  returned if there is no such worker
  [[nodiscard]] std::uint32_t fewest_pushes(std::uint32_t none) const noexcept {
    std::uint32_t const few = least(unlimited, [](auto const& each) { return each.progress(); });
    return few == unlimited ? none : few;
  }
  struct Begin {
    std::uint32_t made = 0, lead = 0;  ///< as of StoreWorker
  };
  /// From where a worker counts that comes back.
  /// @param rounds  that have been added, in the order of workers
  [[nodiscard]] Begin back_at(int worker, staleness::Adds adds,
                              std::uint32_t rounds) const noexcept {
    StoreWorker const& own = workers_[worker];
    bool const exact = adds == staleness::Adds::in_worker_order;
    std::uint32_t const others = exact ? rounds : fewest_pushes(own.progress());
    std::uint32_t const made = std::max(own.pushes, others);
    return {made, adds == staleness::Adds::on_arrival ? made - others : 0};
  }
  [[nodiscard]] bool have_added(std::uint32_t pushes) const noexcept {
    return least(unlimited, [](auto const& each) { return each.added(); }) >= pushes;
  }

  /// The next round if it is complete; otherwise a round without pushes.
  /// @param weights  [workers]
  /// @param before   how many pushes of all workers have been added
  /// @param begun    whether to look at pushes that lack their late part
  [[nodiscard]] StoreRound next_round(List<double> const& weights, std::uint32_t before,
                                      bool begun = false) const {
    StoreRound round{before, 0, 0};
    double all = 0;
    for (std::size_t n = 0; n < size(); ++n) {
      all += weights[n];
      bool const pushed = begun ? workers_[n].begun.size() != 0 : !workers_[n].waiting.empty();
      if (!pushed && !workers_[n].ended) return {};
      if (pushed) ++round.pushes;
      if (pushed || !taken_over(n)) round.scale += weights[n];
    }
    round.scale = all / round.scale;
    return round;
  }
  /// Whether a part of a push fits the others: all workers divide a round alike, and each pushes
  /// the late part behind the urgent one.
  [[nodiscard]] bool fit(int worker, ByteRange part, std::size_t bytes) const {
    StoreWorker const& own = workers_[worker];
    if (part.first == 0)
      return own.begun.size() == 0 ? part.last >= bytes : part.last == own.begun_from;
    return std::all_of(workers_.begin(), workers_.end(), [part](auto const& each) {
      return each.begun.size() == 0 || each.begun_from == part.first;
    });
  }
  /// Drops pushes that will never have their late part.
  void drop_begun(BlockPool& blocks) {
    for (StoreWorker& each : workers_)
      if (each.ended && each.begun.size() != 0) blocks.give_back(std::move(each.begun));
  }
  /// A step with the pushes of a round has been taken, or undone.
  template <class History> void conclude(StoreRound const& round, bool taken, History& history) {
    for (auto n = static_cast<int>(size()); n-- > 0;) {
      if (!std::exchange(workers_[n].adding, false) || taken) continue;
      workers_[n].undone = true;
      history.undo(n, round.before);
    }
    undone_ = undone_ || !taken;
  }
  /// Likewise a step with the urgent parts of pushes was undone.
  [[gnu::cold]] void undo_begun() noexcept {
    for (StoreWorker& each : workers_) each.undone = each.undone || each.begun.size() != 0;
    undone_ = true;
  }
  /// Whether a step was undone that had written a number that is not finite. Nobody is answered until
  /// all whose pushes were in it have been told. It counts as a step that changed nothing.
  [[nodiscard]] bool undone() const noexcept { return undone_; }
  /// One of those, each once; -1: none is left, and others are answered again.
  [[nodiscard]] int take_undone() noexcept {
    for (std::size_t n = 0; n < size(); ++n)
      if (std::exchange(workers_[n].undone, false)) return static_cast<int>(n);
    undone_ = false;
    return -1;
  }
  void begin_turns() noexcept { turn_ = 0; }
  /// Whether it is the worker's turn to push.
  [[nodiscard]] bool has_turn(int worker) const noexcept {
    std::size_t now = turn_;
    while (std::cmp_not_equal(now, worker) && workers_[now].ended && workers_[now].waiting.empty())
      now = (now + 1) % size();
    return std::cmp_equal(now, worker);
  }
  /// The worker whose turn it is, if its push has arrived, and passes the turn on; otherwise -1.
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
  /// A round of one push.
  [[nodiscard]] StoreRound single(int worker, List<double> const& weights,
                                  std::uint32_t before) const {
    double all = 0;
    double there = 0;
    for (std::size_t n = 0; n < size(); ++n) {
      all += weights[n];
      if (!taken_over(n) || static_cast<int>(n) == worker) there += weights[n];
    }
    return {before, 1, all / there};
  }
  /// @param rounds  rounds that have been added
  template <class File> void keep(File& file, std::size_t bytes, std::uint32_t rounds) {
    file.numbers(turn_);
    file.require(turn_ < size());
    for (StoreWorker& each : workers_) {
      each.keep(file, bytes);
      file.require(each.from <= rounds && each.waiting.size() <= each.progress());
      undone_ = undone_ || each.undone;
    }
  }

 private:
  static constexpr std::uint32_t unlimited = 0xffffffff;
  template <class Of> [[nodiscard]] std::uint32_t least(std::uint32_t most, Of of) const noexcept {
    for (StoreWorker const& each : workers_)
      if (!each.ended) most = std::min(most, of(each));
    return most;
  }

  /// Whether others take over the weight of a worker.
  [[nodiscard]] bool taken_over(std::size_t n) const noexcept {
    return takes_over_ && workers_[n].gone;
  }

  FixedArray<StoreWorker> workers_;
  std::size_t turn_ = 0;
  bool takes_over_;
  bool undone_ = false;
};

}  // namespace stagger::detail
