// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What runs the ranks of one process of several, and its part of what all agree on.

#include <stagger/core/requirements.hpp>

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <stagger/engine/backend.hpp>
#include <stagger/engine/optimizer_numbers.hpp>
#include <stagger/mpi/detail/alike.hpp>
#include <stagger/mpi/detail/channels.hpp>
#include <stagger/mpi/detail/commit.hpp>
#include <stagger/mpi/detail/ending.hpp>
#include <stagger/mpi/detail/exchange.hpp>
#include <stagger/mpi/detail/facts.hpp>
#include <stagger/mpi/detail/grouping.hpp>
#include <stagger/mpi/detail/library_sums.hpp>
#include <stagger/mpi/detail/message_codec.hpp>
#include <stagger/mpi/detail/owners.hpp>
#include <stagger/mpi/detail/parameter_exchange.hpp>
#include <stagger/mpi/detail/routes.hpp>
#include <stagger/mpi/detail/trouble.hpp>
#include <stagger/mpi/detail/watch.hpp>

namespace stagger::mpi {

/// The ranks of this process, and what passes between it and the others.
///
/// Signals are counters; each process has those that its ranks wait for. A signal that crosses goes
/// as a message with the bytes that belong to it. Between two processes messages keep their order,
/// so what follows from a signal within a process follows from it here.
///
/// A process that has sent its last vote to update backs out of the step only if another does,
/// or does not answer. None updates for good before all know of all votes; see
/// detail::Commit.
class ProcessesBackend {
 public:
  static constexpr bool timed = false;

  /// Meets the other processes.
  /// @throws Error  mismatch where they have another pipeline, naming the first difference;
  ///                deadline for processes that do not come
  template <class Device>
  ProcessesBackend(Device const& device, stagger::detail::Machine& machine, int places)
      : codec_{machine, device.ports, device.port_count},
        machine_(machine),
        meet_s_(device.meet_s),
        world_(callable(device, places), meet_s_),
        channels_(detail::duplicate(device.processes, meet_s_)) {
    detail::agree(world_, detail::facts_of(codec_), meet_s_);
    if (channels_.size() == 1) return;
    machine_.set_grouping_peers(detail::grouping_peers(*this));
  }
  ProcessesBackend(ProcessesBackend const&) = delete;
  ProcessesBackend& operator=(ProcessesBackend const&) = delete;

  /// Opens the round of a step that this process was asked for, or of the preparation of one.
  /// @param number  every process counts what it is asked for, whatever that comes to
  void open(std::uint32_t number, bool prepares = false) noexcept {
    prepares_ = prepares;
    stamp_.epoch = 2 * number;
    ending_.open();
    told_ = false;
  }
  /// It cannot begin here: tells the others, which are waiting for it or will be.
  void give_up(std::exception_ptr const& why) noexcept {
    must_load_ = true;
    if (!told_) tell(why);
  }
  /// After a failure all load their program once more, whatever each of them had come to.
  [[nodiscard]] bool must_load() const noexcept { return must_load_; }

  /// Prepares for a program that the machine has loaded, together with the other processes.
  /// @param process_of  [ranks]
  void load(std::vector<int> const& process_of) {
    auto const& program = machine_.program();
    std::size_t const ranks = program.ranks.size();
    // After a step that failed the others come soon, or not at all.
    bool const again = must_load_ && !process_of_.empty();
    double const meet_s = again ? std::min(meet_s_, machine_.options().deadline_s) : meet_s_;
    must_load_ = true;
    codec_.require_portable(process_of.data());
    if (program.training && channels_.size() > 1)
      stagger::detail::require_numbers(machine_.optimizer_digest());
    owners_.make_room(codec_, process_of);
    stamp(stamp_.epoch, 0);
    load_meeting_.hold(world_, channels_, stamp_, program, process_of, prepares_, meet_s, told_);
    process_of_ = process_of;
    owners_.move(world_, codec_, process_of_);
    sums_.load(codec_, process_of_, world_, meet_s);
    runs_ = std::make_unique<bool[]>(static_cast<std::size_t>(channels_.size()) * ranks);
    for (std::size_t r = 0; r < ranks; ++r)
      runs_[static_cast<std::size_t>(process_of[r]) * ranks + r] = true;
    ranks_.clear();
    for (std::size_t r = 0; r < ranks; ++r)
      if (process_of[r] == channels_.rank()) ranks_.push_back({&machine_.ranks()[r], State::done});
    given_.assign(program.signals.size(), 0);
    watch_.load(channels_.size(), channels_.rank(), ranks);
    commit_.load(program, process_of_, channels_.size(), machine_.shards());
    routes_.find(codec_, process_of_, channels_.rank());
    auto pools = routes_.pools();
    pools.push_back(machine_.shards() ? static_cast<std::size_t>(channels_.size() - 1) : 0);
    channels_.provide(pools);
    codec_.hold(runs_here());
    codec_.clear_gradients();
    codec_.share_updates(runs_here());
    exchange_.load(codec_, runs_.get(), channels_.size(), channels_.rank(), pools.size());
    must_load_ = false;
  }

  /// Runs the ranks of this process in the step that the machine has begun. Returns when all ranks
  /// of all processes have finished, or when the step has failed.
  void drive() {
    try {
      begin_round();
      work();
    } catch (...) {
      ending_.break_off(machine_, std::current_exception());
    }
    if (!stopping()) {
      exchange_.commit(codec_, channels_);
      channels_.flush(machine_.options().deadline_s);
      return;
    }
    must_load_ = true;
    sums_.give_up();
    if (!told_) tell(ending_.failure());
  }

  bool start(std::coroutine_handle<>) {
    drive();
    return false;
  }

  /// Ends the step with an error, unless this process has voted not to; ranks stop before their
  /// next action. Any thread may call it.
  void fail(std::exception_ptr failure) noexcept { ending_.fail(machine_, std::move(failure)); }

  [[nodiscard]] bool stopping() const noexcept { return ending_.failed(); }
  [[nodiscard]] bool ready(Wait const& wait) const noexcept {
    return given_[wait.signal] >= wait.count &&
           (commit_.made() || machine_.shards() || !codec_.votes(wait.signal));
  }

  void give(stagger::detail::RankState& rank, std::uint32_t which) {
    Instruction const& in = *rank.next.load(std::memory_order_relaxed);
    if (in.op == Op::reduce && sums_.uses(in.stage)) return;  // by `poll`, when the sum is there
    ++given_[which];
    bool const vote = codec_.votes(which);
    if (vote && machine_.options().record) send_all_spans(rank);
    if (vote && --votes_ == 0 && !ending_.vote()) return;
    std::size_t const ranks = machine_.program().ranks.size();
    std::size_t const pool = routes_.pool(codec_, which, given_[which]);
    for (int const& taker : routes_.takers(which)) {
      auto message = channels_.blank(pool);
      codec_.write(message->payload, which, in,
                   runs_.get() + static_cast<std::size_t>(taker) * ranks);
      channels_.post(std::move(message), stamp_, which, &taker, 1);
    }
    if (vote) cast_vote();
  }

  void execute(stagger::detail::RankState& rank, Instruction const& in) {
    if (computes(in.op) || computes_part(in.op)) attend();
    if (in.op == Op::reduce && sums_.uses(in.stage))
      return sums_.begin(codec_, rank, in, watch_.now_s());
    stagger::detail::carry_out(
        machine_, rank, in,
        {[](void* self) { return static_cast<ProcessesBackend*>(self)->watch_.now_s(); }, this});
  }

  /// Brings values and optimizer state of every layer from the process that updates it. All
  /// processes call it.
  /// @param to  the process that gets them; -1: every process. Where optimizer state is shared out,
  ///            every process does
  void gather_parameters(int to) {
    if (!machine_.shards()) return owners_.gather(world_, codec_, to);
    if (!process_of_.empty()) detail::gather(world_, codec_, process_of_);  // else: as made
  }
  /// Shows them in one process, one after the other. All processes call it.
  bool visit_parameters(int to, stagger::detail::ParameterVisit const& visit) {
    return owners_.visit(world_, codec_, process_of_, to, visit);
  }
  [[nodiscard]] detail::GroupingMeeting meeting() { return {world_, sums_, machine_, process_of_}; }

 private:
  using Clock = std::chrono::steady_clock;
  enum class State : std::uint8_t { runnable, blocked, done };
  using enum detail::Notice;
  struct RankHere {
    stagger::detail::RankState* rank;
    State state;
  };

  /// @throws Error  bad_configuration for processes that there is no rank for, or that MPI does not
  ///                see
  template <class Device> static MPI_Comm callable(Device const& device, int places) {
    int const size = device.places();
    if (places < size)
      raise(Errc::bad_configuration, "MPI started ", counted(size, "process"), " for ",
            counted(places, "rank"),
            "; start at most one for each rank, or give Options::replicas");
    detail::require_launched(device.processes);
    return device.processes;
  }

  void begin_round() {
    codec_.hold(runs_here());  // the caller may have looked at all
    stamp(stamp_.epoch | 1U, machine_.arguments().outputs.first != nullptr ? 2 : 1);
    std::fill(given_.begin(), given_.end(), 0);
    for (auto& entry : ranks_) entry.state = State::runnable;
    votes_ = 0;
    for (auto const& entry : ranks_)
      if (codec_.commits() && !adds_up(entry)) ++votes_;
    results_missing_ = codec_.commits() ? 0 : channels_.size() - 1;
    exchange_.begin_step();
    commit_.begin_step(channels_.rank());
    watch_.begin_step();
  }

  /// @param wants  of a step that updates nothing
  void stamp(std::uint32_t epoch, std::uint64_t wants) noexcept {
    bool const training = machine_.program().training;
    stamp_ = {epoch, machine_.steps(), training ? machine_.optimizer_digest() : wants};
  }

  void work() {
    open_ = ranks_.size();
    detail::Waiting waiting = wait_policy();
    auto idle_since = Clock::now();
    bool idle = false;
    while (!stopping() && (open_ != 0 || results_missing_ != 0 || !commit_.made())) {
      bool moved = poll();
      for (auto& entry : ranks_) moved = go_on(entry) || moved;
      keep_in_touch();
      if (moved) {
        idle = false;
        continue;
      }
      if (!idle) {
        idle = true;
        idle_since = Clock::now();
        waiting = wait_policy();
      }
      waiting.pause(Clock::now() - idle_since);
    }
  }

  bool poll() {
    bool const summed = sums_.poll(
        codec_, [this](stagger::detail::RankState& rank, Instruction const& in, double start_s) {
          machine_.options().replicas.ops()->note(machine_, rank, in, start_s, watch_.now_s());
          ++given_[in.give[0]];
          watch_.moved();
        });
    return channels_.poll(stamp_.epoch, [this](int peer, detail::Envelope const& envelope,
                                               ByteReader& in) { take(peer, envelope, in); }) ||
           summed;
  }

  /// @return whether the rank could
  bool go_on(RankHere& entry) {
    if (entry.state == State::done) return false;
    if (entry.state == State::blocked && !ready(entry.rank->blocked_on)) return false;
    auto const progress = stagger::detail::advance(*this, *entry.rank);
    watch_.moved();
    entry.state = progress == stagger::detail::Progress::blocked ? State::blocked : State::done;
    if (entry.state != State::done || --open_ != 0 || stopping()) return true;
    if (!codec_.commits())
      send_results();
    else if (machine_.shards())
      hand_over();
    return true;
  }

  [[nodiscard]] bool adds_up(RankHere const& entry) const {
    return entry.rank->number >= machine_.program().computing;
  }

  /// Before an action: takes what has come meanwhile, and adds up the gradients that are complete.
  void attend() {
    if (channels_.size() > 1) poll();
    for (auto& entry : ranks_)
      if (adds_up(entry) && !stopping()) go_on(entry);
  }

  /// Stages take milliseconds: where there are more processes than cores, a wait leaves the core to
  /// those that compute.
  [[nodiscard]] detail::Waiting wait_policy() const {
    using namespace std::chrono_literals;
    auto const spin = world_.spin();
    return spin < 1ms ? detail::Waiting(spin, 100us) : detail::Waiting(spin);
  }

  /// A message of another process.
  void take(int peer, detail::Envelope const& envelope, ByteReader& in) {
    std::uint32_t const what = envelope.what;
    watch_.hear(peer);
    if (what == say_failure) return take_failure(peer, envelope, in);
    int const here = channels_.rank();
    if (what == say_load) detail::refuse_load(envelope, stamp_, peer, here, machine_.program());
    detail::require_alike(envelope, stamp_, peer, here);
    if (what == say_standing) return watch_.read(in);
    watch_.moved();
    if (what < say_failure) {
      codec_.read(in, what, runs_here());
      ++given_[what];
      if (codec_.votes(what)) cast_vote();
      return;
    }
    if (what == say_agreed) {
      commit_.take(peer);
      return decide();
    }
    if (what == say_values) {
      exchange_.take(channels_, in, peer);
      return cast_vote();
    }
    while (in.left() != 0) {
      auto const rank = in.take<std::uint32_t>();
      if (what == say_spans)
        codec_.read_spans(in, rank);
      else
        codec_.read_results(in, rank);
    }
    if (what == say_results) --results_missing_;
  }

  void cast_vote() {
    if (commit_.voted()) channels_.post_to_all(channels_.blank(), stamp_, say_agreed);
    decide();
  }
  /// What this process has updated goes to those who have it too.
  void hand_over() {
    exchange_.send(codec_, channels_, stamp_);
    cast_vote();
  }
  /// From now on nothing ends the step; elsewhere the first update says so.
  void decide() noexcept {
    if (machine_.shards() && commit_.made()) static_cast<void>(machine_.commit());
  }

  /// Of a rank and of the one that adds up beside it, which has finished too.
  void send_all_spans(stagger::detail::RankState const& rank) {
    send_spans(rank);
    for (auto const& entry : ranks_)
      if (machine_.program().ranks[static_cast<std::size_t>(entry.rank->number)].beside ==
          rank.number)
        send_spans(*entry.rank);
  }

  void send_spans(stagger::detail::RankState const& rank) {
    auto message = channels_.blank();
    message->payload.add(static_cast<std::uint32_t>(rank.number));
    codec_.write_spans(message->payload, static_cast<std::size_t>(rank.number));
    channels_.post_to_all(std::move(message), stamp_, say_spans);
  }

  /// Where no vote to update says so: that the ranks of this process have finished, and what the
  /// caller of the step is to get.
  void send_results() {
    if (!ending_.vote()) return;
    if (machine_.options().record)
      for (auto const& entry : ranks_) send_spans(*entry.rank);
    auto message = channels_.blank();
    for (auto const& entry : ranks_) {
      message->payload.add(static_cast<std::uint32_t>(entry.rank->number));
      codec_.write_results(message->payload, static_cast<std::size_t>(entry.rank->number));
    }
    channels_.post_to_all(std::move(message), stamp_, say_results);
  }

  // --- trouble

  /// Tells the others why this process stopped. They may be gone.
  void tell(std::exception_ptr const& failure) noexcept {
    told_ = true;
    detail::troubled() = true;
    try {
      detail::tell_failure(channels_, stamp_, failure);
      channels_.flush(0.2);
    } catch (...) {  // they meet their deadline
    }
  }

  void take_failure(int peer, detail::Envelope const& envelope, ByteReader& in) {
    told_ = true;
    detail::troubled() = true;
    auto const failure = detail::failure_of(peer, envelope, in);
    ending_.break_off(machine_, std::make_exception_ptr(failure));
  }

  /// Tells the others now and then where the ranks of this process stand, and ends the step where
  /// no rank has moved for too long.
  void keep_in_touch() {
    if (channels_.size() == 1) return;
    double const deadline_s = machine_.options().deadline_s;
    double const quiet_s = watch_.quiet_s();
    int const last = commit_.last();
    if (last >= 0 && quiet_s >= 1.5 * deadline_s && watch_.silent_s(last) >= deadline_s / 2)
      settle();
    else if (quiet_s >= (commit_.in_doubt() ? 1.5 : 1) * deadline_s)
      throw Error(Errc::deadline, stall_text());
    if (!watch_.tells(deadline_s / 8)) return;
    auto message = channels_.blank();
    for (auto const& entry : ranks_) watch_.write(message->payload, *entry.rank);
    channels_.post_to_all(std::move(message), stamp_, say_standing);
  }

  void settle() noexcept {
    commit_.settle();
    decide();
  }

  [[nodiscard]] std::string stall_text() {
    for (auto const& entry : ranks_) watch_.stands(*entry.rank);
    return watch_.words(machine_, process_of_, given_, open_ == 0) + sums_.words();
  }

  [[nodiscard]] bool const* runs_here() const noexcept {
    return runs_.get() +
           static_cast<std::size_t>(channels_.rank()) * machine_.program().ranks.size();
  }

  detail::MessageCodec codec_;
  stagger::detail::Machine& machine_;
  double meet_s_;
  detail::Exchange world_;     // for what is agreed on outside of steps
  detail::Channels channels_;  // for steps

  std::vector<int> process_of_{};       // [ranks]
  std::unique_ptr<bool[]> runs_{};      // [processes][ranks]
  std::vector<RankHere> ranks_{};       // of this process
  std::vector<std::uint32_t> given_{};  // [signals] as far as it is known here
  detail::Owners owners_{};
  detail::Routes routes_{};
  detail::ParameterExchange exchange_{};
  detail::LibrarySums sums_{};
  detail::Commit commit_{};
  detail::Watch watch_{};

  detail::LoadMeeting load_meeting_{};
  detail::Ending ending_{};
  detail::Stamp stamp_{};  // of the round at hand
  bool prepares_ = false;  // instead of taking a step
  bool must_load_ = true;
  std::size_t open_ = 0;     // ranks of this process that are not done
  std::size_t votes_ = 0;    // still to be given by the ranks of this process
  int results_missing_ = 0;  // processes that have not finished, where nobody votes
  bool told_ = false;        // whether the others know of the failure
};

}  // namespace stagger::mpi
