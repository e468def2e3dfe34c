// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   One layer of a model that several workers train: its values, the pushes that they
///         contain, and the pushes that wait to be added.
/// @source Park et al., "HetPipe", USENIX ATC 2020, section 5; Chen et al., "OSP", ICPP 2023,
///         section 2, for the models that it compares.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include <stagger/core/index_range.hpp>
#include <stagger/model/exchange.hpp>
#include <stagger/parameters/detail/snapshots.hpp>
#include <stagger/parameters/detail/store_history.hpp>
#include <stagger/parameters/detail/store_values.hpp>
#include <stagger/parameters/detail/store_workers.hpp>
#include <stagger/parameters/layer_parameters.hpp>
#include <stagger/parameters/parameter_memory.hpp>

namespace stagger::detail {

/// Adds up the pushes of workers. It has no thread, lock or clock of its own; the caller provides
/// them.
///
/// If pushes are added in the order of workers, a round is one push of every worker whose stream
/// goes on; it is added once it is complete, and makes a snapshot. Otherwise there are only the
/// newest values. Pushes are counted from the first one ever; when all workers have ended their
/// streams and everything is added, all counts are equal, and the next streams begin from there.
class ParameterStore {
 public:
  /// @param like   the layer's shape and first values
  /// @param rules  must outlive this object; backup: as for StoreValues
  [[gnu::cold]] ParameterStore(LayerParameters const& like, StoreRules const& rules,
                               std::size_t workers, StepBackup* backup = nullptr)
      : rules_(rules),
        values_(like, rules, backup),
        workers_(workers, rules.takes_over),
        history_(workers, rules.log),
        blocks_(like.bytes_of_values()) {
    answer_all();
  }

  /// Makes room for the waiting pushes of workers that may be this many ahead of the slowest. Each
  /// is a copy of the layer, so room for more than `most_reserved` is only made when it is needed.
  [[gnu::cold]] void reserve(std::size_t ahead) {
    if (rules_.adds == staleness::Adds::on_arrival) return;
    for (StoreWorker& each : workers_) each.allow(ahead);
    ahead = std::min(ahead, most_reserved);
    blocks_.reserve((workers_.size() - 1) * ahead + 1);  // a push of the slowest is added at once
    if (rules_.adds == staleness::Adds::in_worker_order) snapshots_.reserve(ahead + 1);
  }

  [[nodiscard]] LayerShape const& shape() const noexcept { return values_.shape(); }
  [[nodiscard]] std::size_t bytes() const noexcept { return values_.bytes(); }
  /// How many pushes a worker had made before its current stream, as far as they count where
  /// workers are compared.
  [[nodiscard]] std::uint32_t start(int worker) const { return workers_[worker].first(); }
  /// The number of a worker's last push.
  [[nodiscard]] std::uint32_t pushes(int worker) const { return workers_[worker].pushes; }
  [[nodiscard]] bool ended(int worker) const { return workers_[worker].ended; }
  /// The worker begins a stream. If it had left, come_back() must follow.
  void enter(int worker, int process) { workers_[worker].enter(streams_, process); }
  /// Whether some worker has not ended yet the stream that this worker began last.
  [[nodiscard]] bool in_stream(int worker) const { return workers_[worker].stream == streams_; }
  [[nodiscard]] StoreWorkers const& workers() const noexcept { return workers_; }
  [[nodiscard]] StoreWorkers& workers() noexcept { return workers_; }
  /// How often all workers have ended their streams.
  [[nodiscard]] std::uint32_t streams() const noexcept { return streams_; }
  [[nodiscard]] StoreHistory const& history() const noexcept { return history_; }
  [[nodiscard]] std::uint32_t rounds() const noexcept { return snapshots_.rounds(); }

  /// Adds a push, or keeps a copy. @pre the worker is in a stream; workers().fit(...)
  /// @param values  [bytes()]
  /// @param part    of a layer whose first bytes are late: the others first
  void push(int worker, std::byte const* values, ByteRange part = {}) {
    StoreWorker& own = workers_[worker];
    if (part.first != 0) {
      blocks_.fill(own.begun, values, part);
      late_bytes_ = own.begun_from = part.first;
      return add_begun();
    }
    ++own.pushes;
    if (rules_.adds == staleness::Adds::on_arrival) {
      StoreRound const round = workers_.single(worker, rules_.weights, history_.total());
      add(worker, values, 0, 0, round);
      return workers_.conclude(round, values_.step(0, 0, 0, all()), history_);
    }
    if (own.begun.size() == 0) {
      own.waiting.push_back(blocks_.filled(values));
    } else {
      std::memcpy(own.begun.data(), values, std::min(part.last, own.begun.size()));
      own.waiting.push_back(std::move(own.begun));
    }
    add_up();
  }
  /// The worker's stream ends: the others go on without it.
  void end(int worker) {
    workers_[worker].ended = true;
    // What a worker has pushed of a round before it left is added, the urgent part of a layer, too.
    if (!workers_[worker].gone || snapshots_.partial()) workers_.drop_begun(blocks_);
    add_begun();
    add_up();
    if (workers_.all_ended()) snapshots_.complete();  // the late part stays unchanged
    drop_snapshots();
    if (!workers_.all_ended()) return;
    ++streams_;
    // A round counts if its urgent part was added, even if no worker has pushed its late part.
    start_ = std::max(workers_.most_pushes(), snapshots_.rounds());
    for (std::size_t n = 0; n < workers_.size(); ++n) begin_from(static_cast<int>(n), start_, 0);
    workers_.begin_turns();
    answer_all();
  }
  /// The worker leaves: the others do not wait for it until it comes back. Its pushes stay.
  void leave(int worker) {
    if (!std::exchange(workers_[worker].gone, true)) end(worker);
  }
  /// The worker comes back between two rounds, behind what it has pushed and is not added yet. On
  /// arrival it counts as having pushed as often as the slowest, however often it has.
  void come_back(int worker) {
    if (!std::exchange(workers_[worker].gone, false)) return;
    auto const [made, lead] = workers_.back_at(worker, rules_.adds, snapshots_.rounds());
    begin_from(worker, made, lead);
    if (rules_.adds == staleness::Adds::in_turn) answer(worker);
  }
  /// Adds all pushes that have arrived, in complete rounds or not, and ends all streams.
  void give_up() {
    for (StoreWorker& each : workers_) each.ended = true;
    workers_.drop_begun(blocks_);
    end(0);
  }

  /// Whether the weights that a worker can have now contain this many pushes of every worker whose
  /// stream goes on; with Adds::in_turn, also its own last push.
  /// @param urgent  whether the late part of the last push may be missing
  [[nodiscard]] bool ready(int worker, std::uint32_t pushes, bool urgent = false) const {
    if (rules_.adds == staleness::Adds::in_worker_order)
      return snapshots_.has(pushes) &&
             (urgent || !snapshots_.partial() || pushes < snapshots_.rounds());
    if (!workers_[worker].waiting.empty()) return false;
    return workers_.have_added(pushes);
  }

  /// With Adds::in_worker_order: whether weights are kept that contain this many pushes, or all
  /// that are added, if those are fewer.
  [[nodiscard]] bool keeps(std::uint32_t pushes) const {
    return snapshots_.has(std::min(pushes, snapshots_.rounds()));
  }

  /// Those weights; with Adds::in_turn, the weights after the worker's own last push. With
  /// Adds::in_worker_order they do not change until the worker asks for later ones. @pre
  /// ready(worker, pushes), or keeps(pushes) if it has just come back
  [[nodiscard]] std::byte const* weights(int worker, std::uint32_t pushes, bool urgent = false) {
    if (rules_.adds != staleness::Adds::in_worker_order) return take_first(worker);
    if (urgent) return version(snapshots_.newest());  // the worker will also take their late part
    StoreWorker const& own = workers_[worker];
    std::uint32_t const there = std::min(pushes, snapshots_.rounds());  // if it has just come back
    Snapshots::Snapshot const taken = snapshots_.after(there);
    history_.take(worker, taken.pushes, own.before + (pushes - own.start));
    keep_from(worker, there);
    return version(taken.version);
  }
  [[nodiscard]] std::byte const* newest() const { return version(snapshots_.newest()); }
  /// The weights with which a worker begins a stream; with Adds::in_turn, the same for all workers.
  [[nodiscard]] std::byte const* first(int worker) const {
    return rules_.adds == staleness::Adds::in_turn ? workers_[worker].answer.data() : newest();
  }
  /// A worker begins a stream, and asks for no weights older than the newest. @return `first`
  std::byte const* begin(int worker) {
    keep_from(worker, snapshots_.rounds());
    return take_first(worker);
  }
  /// Writes everything but the log, or reads it; give_up() must follow if layers may be late.
  /// @param file  a StateWriter or a StateReader
  template <class File> void keep(File& file) {
    file.numbers(streams_, late_bytes_);
    file.require(late_bytes_ <= bytes());
    values_.keep(file);
    snapshots_.keep(file);
    history_.keep(file);
    workers_.keep(file, bytes(), snapshots_.rounds());
  }

 private:
  static constexpr std::size_t most_reserved = 8;  // pushes of one worker
  [[nodiscard]] std::byte* version(std::size_t slot) const { return values_.version(slot); }
  [[nodiscard]] ByteRange all() const { return {0, bytes()}; }

  void begin_from(int worker, std::uint32_t pushes, std::uint32_t lead) {
    workers_[worker].begin_from(pushes, history_.added(worker), snapshots_.rounds(), lead);
  }
  void keep_from(int worker, std::uint32_t rounds) {
    workers_[worker].from = std::max(workers_[worker].from, rounds);
    drop_snapshots();
  }
  /// Drops snapshots that nobody will ask for; a worker whose stream has ended asks for the last.
  void drop_snapshots() { snapshots_.drop_before(workers_.oldest_snapshot(snapshots_.rounds())); }
  std::byte const* take_first(int worker) {
    bool const in_turn = rules_.adds == staleness::Adds::in_turn;
    history_.take(worker, in_turn ? workers_[worker].answer_contains : history_.total(),
                  history_.added(worker));
    return first(worker);
  }

  /// @param from, to  versions of the values
  void add(int worker, std::byte const* pushed, std::size_t from, std::size_t to,
           StoreRound const& round) {
    history_.add(worker, round.before);
    workers_[worker].adding = true;
    values_.add(pushed, from, to, rules_.weights[worker] * round.scale);
  }

  void answer(int worker) { workers_.keep_answer(worker, version(0), bytes(), history_.total()); }
  /// With Adds::in_turn, a worker that has not pushed yet sees no pushes of others.
  void answer_all() {
    if (rules_.adds != staleness::Adds::in_turn) return;
    for (std::size_t n = 0; n < workers_.size(); ++n) answer(static_cast<int>(n));
  }

  void add_first_of(int worker, std::size_t from, std::size_t to, StoreRound const& round) {
    ParameterBlock block = workers_[worker].take_waiting();
    add(worker, block.data(), from, to, round);
    blocks_.give_back(std::move(block));
  }

  void add_up() {
    if (rules_.adds == staleness::Adds::in_turn) {
      for (int n = workers_.take_turn(); n >= 0; n = workers_.take_turn()) {
        StoreRound const round = workers_.single(n, rules_.weights, history_.total());
        add_first_of(n, 0, 0, round);
        workers_.conclude(round, values_.step(0, 0, 0, all()), history_);
        answer(n);
      }
      return;
    }
    for (StoreRound round = workers_.next_round(rules_.weights, history_.total());
         round.pushes != 0; round = workers_.next_round(rules_.weights, history_.total())) {
      bool const rest = snapshots_.complete();  // all is added, with what was added before
      std::size_t const from = rest ? snapshots_.before_newest() : snapshots_.newest();
      std::uint32_t const contains = round.before + round.pushes;
      if (rest) snapshots_.contain(contains);
      std::size_t const to = rest ? snapshots_.newest() : snapshots_.add(contains);
      if (rules_.pushes != staleness::Pushes::gradients && bytes() != 0)
        std::memcpy(version(to), version(from), bytes());
      for (int n = 0; n < static_cast<int>(workers_.size()); ++n)
        if (!workers_[n].waiting.empty()) add_first_of(n, from, to, round);
      ByteRange const part = rest ? ByteRange{0, late_bytes_} : all();
      bool const taken = values_.step(from, to, snapshots_.rounds() - 1 - start_, part);
      workers_.conclude(round, taken, history_);
      if (!taken && !rest) snapshots_.contain(round.before);
    }
  }

  /// Adds the urgent part of a round, once every worker has pushed it; the late one stays as it
  /// was.
  void add_begun() {
    if (snapshots_.partial()) return;
    StoreRound const round = workers_.next_round(rules_.weights, history_.total(), true);
    if (round.pushes == 0) return;
    ByteRange const urgent{late_bytes_, bytes()};
    std::size_t const from = snapshots_.newest();
    std::size_t const to = snapshots_.add(round.before + round.pushes, true);
    for (std::size_t n = 0; n < workers_.size(); ++n)
      if (workers_[n].begun.size() != 0)
        values_.add(workers_[n].begun.data(), from, to, rules_.weights[n] * round.scale, urgent);
    if (!values_.step(from, to, 0, urgent)) workers_.undo_begun();
    std::memcpy(version(to), version(from), late_bytes_);
    workers_.drop_begun(blocks_);
  }

  StoreRules const& rules_;
  StoreValues values_;
  StoreWorkers workers_;
  StoreHistory history_;
  Snapshots snapshots_{values_.parameters()};
  BlockPool blocks_;                       // copies of pushes
  std::uint32_t streams_ = 0, start_ = 0;  // that have ended, and rounds before those that go on
  std::size_t late_bytes_ = 0;             // how many of the layer's first bytes are late
};

}  // namespace stagger::detail
