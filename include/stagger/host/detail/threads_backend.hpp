// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The back end of host::Threads.

#include <stagger/core/requirements.hpp>

#include <atomic>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/caller.hpp>
#include <stagger/core/chrono.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/engine/backend.hpp>
#include <stagger/engine/stall.hpp>

namespace stagger::host {

namespace detail {

/// How long a thread looks for a change before it sleeps.
struct Spinning {
  static constexpr int pauses = 64;  // a few microseconds: a message from another core
  static constexpr std::chrono::microseconds spin_time{50};  // after this, a futex is cheaper

  static void pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    std::this_thread::yield();
#endif
  }

  /// Spins for a while, then sleeps until `value` is not `old`.
  static void wait_for_change(std::atomic<std::uint32_t> const& value, std::uint32_t old) {
    for (int i = 0; i < pauses; ++i) {
      if (value.load(std::memory_order_acquire) != old) return;
      pause();
    }
    auto const until = std::chrono::steady_clock::now() + spin_time;
    while (std::chrono::steady_clock::now() < until) {
      if (value.load(std::memory_order_acquire) != old) return;
      std::this_thread::yield();
    }
    value.wait(old, std::memory_order_acquire);
  }
};

/// The work of one thread in a step: its ranks, and its sleep while none of them can go on.
struct alignas(64) Worker {
  enum class State : std::uint8_t { runnable, blocked, done };
  struct Rank {
    stagger::detail::RankState* rank;
    State state;
  };

  /// Sleeps until another thread wakes this one, unless there is something to do already. Either
  /// the thread that gives a signal sees `parked`, or `has_work` sees the signal: both threads
  /// store before they load, sequentially consistent.
  /// @param has_work  () -> bool
  template <class HasWork> void park(HasWork has_work) {
    std::uint32_t const seen = wakeups.load();
    parked.store(true);
    if (!has_work()) wakeups.wait(seen);
    parked.store(false);
  }
  void wake_if_parked() noexcept {
    if (parked.load()) wake();
  }
  void wake() noexcept {
    wakeups.fetch_add(1);
    wakeups.notify_all();
  }

  std::atomic<std::uint32_t> wakeups{0};
  std::atomic<bool> parked{false};
  List<Rank> ranks;
  std::thread thread;  // of every worker but the first
};

}  // namespace detail

/// Carries out steps on threads, each of which polls its ranks one after the other.
///
/// A signal between two ranks of one worker is a plain counter. One that crosses workers is an
/// atomic with a single writer. A worker that has found nothing to do for a while parks.
class ThreadsBackend : detail::Spinning {
 public:
  static constexpr bool timed = false;

  /// @param places  threads that get a rank, 1 <= places <= device.count
  template <class Device>
  [[gnu::cold]] ThreadsBackend(Device const&, stagger::detail::Machine& machine, int places)
      : machine_(machine), workers_(places) {
    machine.outside({this,
                     [](void* self, std::uint32_t signal, std::uint32_t count) noexcept {
                       static_cast<ThreadsBackend*>(self)->give_outside(signal, count);
                     },
                     [](void* self, std::exception_ptr why) noexcept {
                       static_cast<ThreadsBackend*>(self)->fail(std::move(why));
                     }});
  }
  ThreadsBackend(ThreadsBackend const&) = delete;
  ThreadsBackend& operator=(ThreadsBackend const&) = delete;

  /// Joins the threads, which are idle: `Trainer` never destroys a back end in the middle of a
  /// step.
  [[gnu::cold]] ~ThreadsBackend() {
    quit_.store(true);
    announce_round();
    for (auto& worker : workers_)
      if (worker.thread.joinable()) worker.thread.join();
  }

  /// Prepares for a program that the machine has loaded.
  /// @param worker_of  [ranks] which thread runs each rank
  [[gnu::cold]] void load(std::vector<int> const& worker_of) {
    auto const& program = machine_.program();
    for (auto& worker : workers_) worker.ranks.clear();
    auto& ranks = machine_.ranks();
    for (std::size_t r = 0; r < ranks.size(); ++r)
      workers_[worker_of[r]].ranks.push_back({&ranks[r], State::runnable});
    signal_count_ = program.signals.size();
    inner_signals_ = signal_count_ - (program.exchanges() ? program.cells.size() : 0);
    if (signal_count_ > signals_.size()) signals_ = FixedArray<Signal>(signal_count_);
    auto const place = [&](int rank) { return worker_of[static_cast<std::size_t>(rank)]; };
    for (std::size_t s = 0; s < signal_count_; ++s) {
      auto const ends = program.signals[s];
      int const from = ends.sender == SignalEnds::outside ? nowhere : place(ends.sender);
      signals_[s].taker = ends.receiver == SignalEnds::everyone ? everyone : place(ends.receiver);
      signals_[s].crosses = signals_[s].taker != from;
    }
  }

  /// Runs the step that the machine has begun, the calling thread being one of the threads. Returns
  /// when every rank has stopped.
  /// @throws std::system_error  if a thread cannot be made; the step has not begun then
  void drive() {
    begin_round();
    work(workers_[0]);
    leave_round();
    for (std::uint32_t left = running_.load(std::memory_order_acquire); left != 0;
         left = running_.load(std::memory_order_acquire))
      wait_for_change(running_, left);
    watchdog_.end();
  }

  /// Runs the step on threads of its own and then resumes `then` on one of them.
  bool start(std::coroutine_handle<> then) {
    caller_.ask(then, *this);
    return true;
  }
  /// Does not resume what `start` was given. Returns when the step is done.
  void withdraw() noexcept { caller_.withdraw(*this); }

  /// Ends the step with an error; ranks stop before their next action.
  [[gnu::cold]] void fail(std::exception_ptr failure) noexcept {
    if (!machine_.fail(std::move(failure))) return;
    stop_.store(true);
    for (auto& worker : workers_) worker.wake();
  }

  [[nodiscard]] bool ready(Wait const& wait) const noexcept {
    return signals_[wait.signal].value.load(std::memory_order_acquire) >= wait.count;
  }

  void give(stagger::detail::RankState&, std::uint32_t which) noexcept {
    Signal& signal = signals_[which];
    std::uint32_t const value = signal.value.load(std::memory_order_relaxed) + 1;
    if (!signal.crosses) [[likely]] {
      signal.value.store(value, std::memory_order_release);
      return;
    }
    signal.value.store(value, std::memory_order_seq_cst);  // before the look at `parked`
    if (signal.taker != everyone) {
      workers_[signal.taker].wake_if_parked();
    } else {
      for (auto& worker : workers_) worker.wake_if_parked();
    }
  }

  /// A signal that no rank gives, by any thread.
  void give_outside(std::uint32_t which, std::uint32_t count) noexcept {
    signals_[which].value.store(count, std::memory_order_seq_cst);
    workers_[signals_[which].taker].wake_if_parked();
  }

  [[gnu::always_inline]] void execute(stagger::detail::RankState& rank, Instruction const& in) {
    stagger::detail::carry_out(
        machine_, rank, in,
        {[](void* self) { return static_cast<ThreadsBackend*>(self)->now_s(); }, this});
  }

  [[nodiscard]] bool stopping() const noexcept { return stop_.load(std::memory_order_relaxed); }

 private:
  static constexpr int everyone = -1;
  static constexpr int nowhere = -2;
  struct alignas(64) Signal {
    std::atomic<std::uint32_t> value{0};
    int taker = 0;  // worker
    bool crosses = false;
  };
  using State = detail::Worker::State;
  struct Progress {
    ThreadsBackend const* backend;
    std::uint64_t operator()() const noexcept { return backend->progress(); }
  };
  struct Expired {
    ThreadsBackend* backend;
    void operator()() const noexcept { backend->fail(backend->stalled()); }
  };

  [[nodiscard]] double now_s() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - round_start_).count();
  }

  void begin_round() {
    make_threads();
    watchdog_.begin();  // makes a thread, too: nothing has begun if it cannot
    stop_.store(false);
    if (machine_.failed()) stop_.store(true);  // a later `fail` sets it itself
    for (std::size_t s = 0; s < inner_signals_; ++s)
      signals_[s].value.store(0, std::memory_order_relaxed);
    for (auto& worker : workers_)
      for (auto& rank : worker.ranks) rank.state = State::runnable;
    round_start_ = std::chrono::steady_clock::now();
    running_.store(static_cast<std::uint32_t>(workers_.size()), std::memory_order_relaxed);
    announce_round();
  }

  [[gnu::cold]] void make_threads() {
    for (std::size_t s = 1; s < workers_.size(); ++s)
      if (!workers_[s].thread.joinable())
        workers_[s].thread = std::thread([this, s, seen = round_.load()] { serve(s, seen); });
  }

  void announce_round() {
    round_.fetch_add(1);
    round_.notify_all();
  }

  void leave_round() {
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_all();
  }

  void serve(std::size_t worker, std::uint32_t seen) {
    for (;;) {
      wait_for_change(round_, seen);
      seen = round_.load(std::memory_order_acquire);
      if (quit_.load(std::memory_order_acquire)) return;
      work(workers_[worker]);
      leave_round();
    }
  }

  /// Runs the ranks of a worker until all have stopped.
  void work(detail::Worker& worker) {
    std::size_t open = worker.ranks.size();
    std::chrono::steady_clock::time_point idle_until{};
    int idle = 0;
    while (open != 0) {
      bool moved = false;
      for (auto& entry : worker.ranks) {
        if (entry.state == State::done) continue;
        if (entry.state == State::blocked && !ready(entry.rank->blocked_on) && !stopping())
          continue;
        moved = true;
        bool const blocked =
            stagger::detail::go_on(*this, *entry.rank) == stagger::detail::Progress::blocked;
        entry.state = blocked ? State::blocked : State::done;
        if (entry.state == State::done) --open;
      }
      if (moved) {
        idle = 0;
        continue;
      }
      if (++idle < pauses) {
        pause();
        continue;
      }
      auto const now = std::chrono::steady_clock::now();
      if (idle == pauses) idle_until = now + spin_time;
      if (now < idle_until) {
        std::this_thread::yield();  // the other thread may be waiting for this very core
        continue;
      }
      worker.park([&] { return has_work(worker); });
      idle = 0;
    }
  }

  [[nodiscard]] bool has_work(detail::Worker const& worker) const noexcept {
    bool any = stopping();
    for (auto const& [rank, state] : worker.ranks)
      any = any || (state == State::blocked &&
                    signals_[rank->blocked_on.signal].value.load() >= rank->blocked_on.count);
    return any;
  }

  [[nodiscard]] [[gnu::cold]] std::exception_ptr stalled() const noexcept {
    try {
      List<std::uint32_t> given;
      for (std::size_t s = 0; s < signal_count_; ++s)
        given.push_back(signals_[s].value.load(std::memory_order_relaxed));
      raise(Errc::deadline, "no rank moved for ", machine_.options().deadline_s,
            " s: ", stagger::detail::describe_stall(machine_, given),
            "; raise Options::deadline_s if an action may take that long");
    } catch (...) {
      return std::current_exception();
    }
  }

  /// Differs between any two moments of a step, and from step to step.
  [[nodiscard]] std::uint64_t progress() const noexcept {
    std::uint64_t sum = round_.load(std::memory_order_acquire);
    for (auto const& rank : machine_.ranks())
      sum = sum * 31 + reinterpret_cast<std::uintptr_t>(rank.next.load(std::memory_order_relaxed));
    return sum;
  }

  FixedArray<Signal> signals_;     // as many as any program so far had
  std::size_t signal_count_ = 0;   // of the loaded program
  std::size_t inner_signals_ = 0;  // those that ranks give
  std::atomic<bool> stop_{false};  // the step has failed
  stagger::detail::Machine& machine_;
  FixedArray<detail::Worker> workers_;  // [threads with ranks]
  std::chrono::steady_clock::time_point round_start_{};

  alignas(64) std::atomic<std::uint32_t> round_{0};    // steps begun
  alignas(64) std::atomic<std::uint32_t> running_{0};  // workers still at work
  std::atomic<bool> quit_{false};
  stagger::detail::Caller caller_;
  stagger::detail::Watchdog<Progress, Expired> watchdog_{
      machine_.options().deadline_s, {this}, {this}};
};

}  // namespace stagger::host
