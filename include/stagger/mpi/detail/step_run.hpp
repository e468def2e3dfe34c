// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The steps of one process of several: it runs its ranks, and handles messages.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <utility>

#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/engine/backend.hpp>
#include <stagger/mpi/detail/agreement.hpp>
#include <stagger/mpi/detail/channels.hpp>
#include <stagger/mpi/detail/commit.hpp>
#include <stagger/mpi/detail/exchange.hpp>
#include <stagger/mpi/detail/gradient_sums.hpp>
#include <stagger/mpi/detail/message_codec.hpp>
#include <stagger/mpi/detail/parameter_exchange.hpp>
#include <stagger/mpi/detail/placement.hpp>
#include <stagger/mpi/detail/routes.hpp>
#include <stagger/mpi/detail/watch.hpp>

namespace stagger::mpi::detail {

/// The signals of a program that a parameter server gives: any thread counts them, and the thread
/// that runs the step reads the counts.
class OutsideCounters {
 public:
  void load(Program const& program) {
    std::size_t const count = program.exchanges() ? program.cells.size() : 0;
    if (counters_.size() != count) counters_ = FixedArray<std::atomic<std::uint32_t>>(count);
    first_ = program.signals.size() - count;
  }
  /// Any thread.
  void give(std::uint32_t signal, std::uint32_t count) noexcept {
    counters_[signal - first_].store(count, std::memory_order_release);
  }
  /// @param given  [signals]
  void show(List<std::uint32_t>& given) const noexcept {
    for (std::size_t c = 0; c < counters_.size(); ++c)
      given[first_ + c] = counters_[c].load(std::memory_order_acquire);
  }
  [[nodiscard]] bool any() const noexcept { return counters_.size() != 0; }

 private:
  FixedArray<std::atomic<std::uint32_t>> counters_{};
  std::size_t first_ = 0;  // signal
};

/// Signals are counters; each process has those for which its ranks wait. A signal to another
/// process is a message, together with the bytes that belong to it. Messages between two processes
/// stay in order, so a signal implies the earlier ones of the same rank, as it does within a
/// process.
///
/// A process that has sent its last vote to update abandons the step only if another process does,
/// or does not answer. No update is permanent before all processes have all votes; see Commit.
class StepRun {
 public:
  static constexpr bool timed = false;

  StepRun(MessageCodec& codec, Channels& channels, LibrarySums& sums, SentCounts& sent,
          BatchParts& parts)
      : codec_(codec),
        machine_(codec.machine),
        channels_(channels),
        sums_(sums),
        sent_(sent),
        round_(machine_, channels, parts),
        reports_(codec, codec.edges, channels) {}

  /// @param number  of the round, as every process counts it
  void open(std::uint32_t number) noexcept {
    round_.open(number);
    ending_.open();
  }
  [[nodiscard]] Round& round() noexcept { return round_; }

  /// Loads another program, on which all processes have agreed.
  /// @param placement  outlives its use here
  void load(Placement const& placement) {
    auto const& program = machine_.program();
    placement_ = &placement;
    ranks_.clear();
    for (int r = 0; r < placement.ranks(); ++r)
      if (placement.is_here(r)) ranks_.push_back({&machine_.ranks()[r], State::done});
    given_.assign(program.signals.size(), 0);
    outside_.load(program);
    watch_.load(placement);
    commit_.load(program, placement, machine_.shards());
    routes_.find(codec_.edges, placement);
    std::size_t const handed_over =
        routes_.add_pool(machine_.shards() ? static_cast<std::size_t>(channels_.size() - 1) : 0);
    channels_.provide(routes_.pools());
    codec_.hold(placement.runs_here());
    // Gradients that arrive overwrite those of ranks in other processes, so a rank that sends none
    // in this program must not leave those of an earlier one.
    machine_.run.zero_gradients(machine_.model);
    codec_.share_updates(placement.runs_here());
    exchange_.load(codec_, placement, handed_over);
  }

  /// Runs the ranks of this process until the ranks of all processes have finished.
  /// @return  false if the step failed
  [[nodiscard]] bool run() {
    try {
      begin_step();
      work();
    } catch (...) {
      ending_.break_off(machine_, std::current_exception());
    }
    if (!stopping()) {
      exchange_.commit(codec_, channels_);
      channels_.flush(machine_.options().deadline_s);
      return true;
    }
    sums_.give_up();
    if (!round_.told()) round_.tell(ending_.failure());
    return false;
  }

  /// Ends the step with an error, unless this process has voted not to. Any thread may call it.
  void fail(std::exception_ptr failure) noexcept { ending_.fail(machine_, std::move(failure)); }
  [[nodiscard]] OutsideCounters& outside() noexcept { return outside_; }

  // What `advance` calls.

  [[nodiscard]] bool stopping() const noexcept { return ending_.failed(); }
  [[nodiscard]] bool ready(Wait const& wait) const noexcept {
    return given_[wait.signal] >= wait.count &&
           (commit_.made() || machine_.shards() || !codec_.votes(wait.signal));
  }
  void give(stagger::detail::RankState& rank, std::uint32_t which) {
    Instruction const& in = *rank.next.load(std::memory_order_relaxed);
    if (reduces(in.op) && sums_.uses(in.stage)) return;  // given by `poll`
    ++given_[which];
    bool const vote = codec_.votes(which);
    if (vote) reports_.send_spans(rank, ranks_, round_.stamp());
    if (vote && --votes_ == 0 && !ending_.vote()) return;
    std::size_t const pool = routes_.pool(which, given_[which]);
    for (int const& receiver : routes_.receivers(which)) {
      auto message = channels_.blank(pool);
      TrafficKind const kind =
          codec_.write(message->payload, which, in, placement_->runs(receiver));
      sent_.count(rank.number, kind, {1, message->payload.size()});
      channels_.post(std::move(message), round_.stamp(), which, &receiver, 1);
    }
    if (vote) cast_vote();
  }
  void execute(stagger::detail::RankState& rank, Instruction const& in) {
    if (runs_layers(in.op)) attend();
    if (reduces(in.op) && sums_.uses(in.stage))
      return sums_.begin(codec_, rank, in, watch_.now_s());
    stagger::detail::carry_out(
        machine_, rank, in,
        {[](void* self) { return static_cast<StepRun*>(self)->watch_.now_s(); }, this});
  }

 private:
  using State = LocalRank::State;

  void begin_step() {
    codec_.hold(placement_->runs_here());  // the caller may have read all parameters
    round_.begin_step();
    given_.assign(given_.size(), 0);
    votes_ = 0;
    for (auto& entry : ranks_) {
      entry.state = State::runnable;
      if (codec_.commits() && !adds_up(entry)) ++votes_;
    }
    reports_.begin_step();
    exchange_.begin_step();
    commit_.begin_step();
    watch_.begin_step();
  }

  void work() {
    open_ = ranks_.size();
    Backoff idle = between_stages(spin_);
    while (!stopping() && (open_ != 0 || reports_.missing() || !commit_.made())) {
      bool moved = poll();
      for (auto& entry : ranks_) moved = go_on(entry) || moved;
      keep_in_touch();
      if (moved)
        idle = between_stages(spin_);
      else
        idle.pause();
    }
  }

  bool poll() {
    outside_.show(given_);
    bool const summed = sums_.poll(
        codec_, [this](stagger::detail::RankState& rank, Instruction const& in, double start_s) {
          machine_.gradient_groups()->note(machine_, rank, in, start_s, watch_.now_s());
          ++given_[in.signal[0]];
          watch_.moved();
        });
    return channels_.poll(round_.stamp().epoch, [this](int peer, Envelope const& envelope,
                                                       ByteReader& in) {
      take(peer, envelope, in);
    }) || summed;
  }

  /// @return whether the rank could run
  bool go_on(LocalRank& entry) {
    if (entry.state == State::done) return false;
    if (entry.state == State::blocked && !ready(entry.rank->blocked_on)) return false;
    auto const progress = stagger::detail::advance_noted(*this, *entry.rank);
    watch_.moved();
    entry.state = progress == stagger::detail::Progress::blocked ? State::blocked : State::done;
    if (entry.state != State::done || --open_ != 0 || stopping()) return true;
    if (!codec_.commits()) {  // there are no votes that would say that the ranks of this process
                              // have finished
      if (ending_.vote()) reports_.send_results(ranks_, round_.stamp());
    } else if (machine_.shards()) {  // new values are sent to the processes that have them too
      sent_.count(entry.rank->number, TrafficKind::parameters,
                  exchange_.send(codec_, channels_, round_.stamp()));
      cast_vote();
    }
    return true;
  }
  [[nodiscard]] bool adds_up(LocalRank const& entry) const {
    return entry.rank->number >= machine_.program().computing;
  }
  /// Called before an action: receives messages, and adds up the gradients that are complete.
  void attend() {
    if (channels_.size() > 1) poll();
    for (auto& entry : ranks_)
      if (adds_up(entry) && !stopping()) go_on(entry);
  }

  /// A message of another process.
  void take(int peer, Envelope const& envelope, ByteReader& in) {
    std::uint32_t const what = envelope.what;
    watch_.heard_from(peer);
    if (what == notice_of_failure)
      return ending_.break_off(machine_, round_.take_failure(peer, envelope, in));
    if (what == notice_of_load)
      refuse_load(envelope, round_.stamp(), peer, channels_.rank(), machine_.program());
    round_.require_same(envelope, peer);
    if (what == notice_of_progress) return watch_.read(in);
    watch_.moved();
    if (what < notice_of_failure) {
      codec_.read(in, what, placement_->runs_here());
      ++given_[what];
      if (codec_.votes(what)) cast_vote();
    } else if (what == notice_of_agreement) {
      commit_.take(peer);
      decide();
    } else if (what == notice_of_values) {
      exchange_.take(channels_, in, peer);
      cast_vote();
    } else {
      reports_.take(what, in);
    }
  }

  void cast_vote() {
    if (commit_.voted())
      channels_.post_to_all(channels_.blank(), round_.stamp(), notice_of_agreement);
    decide();
  }
  /// From now on the step cannot fail: all ranks have updated. Without sharded optimizer state, the
  /// first update decides that.
  void decide() noexcept {
    if (machine_.shards() && open_ == 0 && commit_.made()) static_cast<void>(machine_.commit());
  }

  /// Reports the progress of ranks to the others now and then; ends a step in which no rank has
  /// moved for too long.
  void keep_in_touch() {
    if (channels_.size() == 1 && !outside_.any()) return;  // nothing to wait for
    double const deadline_s = machine_.options().deadline_s;
    double const quiet_s = watch_.quiet_s();
    int const last = commit_.last();
    if (last >= 0 && quiet_s >= 1.5 * deadline_s && watch_.silent_s(last) >= deadline_s / 2) {
      commit_.settle();
      decide();
    } else if (quiet_s >= (commit_.in_doubt() ? 1.5 : 1) * deadline_s) {
      for (auto const& entry : ranks_) watch_.note_progress(*entry.rank);
      raise(Errc::deadline, watch_.describe_stall(machine_, *placement_, given_, open_ == 0),
            sums_.describe_pending());
    }
    if (watch_.is_time_to_report(deadline_s / 8)) reports_.send_progress(ranks_, round_.stamp());
  }

  MessageCodec& codec_;
  stagger::detail::Machine& machine_;
  Channels& channels_;
  LibrarySums& sums_;
  SentCounts& sent_;
  Round round_;
  std::chrono::microseconds spin_ = spin_time();
  Placement const* placement_ = nullptr;
  List<LocalRank> ranks_{};      // of this process
  List<std::uint32_t> given_{};  // [signals] as far as it is known here
  OutsideCounters outside_{};    // the last of those
  Routes routes_{};
  Reports reports_;
  ParameterExchange exchange_{};
  Commit commit_{};
  Watch watch_{};
  Ending ending_{};
  std::size_t open_ = 0;   // ranks of this process that are not done
  std::size_t votes_ = 0;  // still to be given by the ranks of this process
};

}  // namespace stagger::mpi::detail
