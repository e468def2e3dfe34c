// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Back end: every rank a stream of one GPU, every message an event.

#include <algorithm>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/cuda/detail/caller.hpp>
#include <stagger/cuda/detail/iteration.hpp>
#include <stagger/cuda/detail/jobs.hpp>
#include <stagger/cuda/detail/require.hpp>
#include <stagger/cuda/detail/timeline.hpp>
#include <stagger/cuda/graph.hpp>
#include <stagger/cuda/memory.hpp>
#include <stagger/cuda/ranges.hpp>
#include <stagger/cuda/watchdog.hpp>
#include <stagger/engine/backend.hpp>
#include <stagger/engine/stall.hpp>

namespace stagger::cuda {

/// How the actions of a rank get onto its stream.
enum class Work : std::uint8_t {
  enqueue,  ///< a stage's functions are called ahead of time and put kernels on `cuda::stream()`
  host,     ///< each action is one host function of the stream: for stages that compute on the host
};

/// What the back end is told by its device policy, `Loopback`.
struct StreamsOptions {
  int device = 0;
  Work work = Work::enqueue;
  bool capture = false;
  Ranges ranges{};
  GraphCounts* counts = nullptr;
  ParameterKernels const* kernels = nullptr;
};

/// Issues the instructions of all ranks from one thread, as far as their inputs have been issued.
/// After the first step of a program it makes no event, allocates nothing and synchronises with
/// nothing but the end of the step.
class StreamsBackend {
 public:
  static constexpr bool timed = false;
  static constexpr bool enqueues = true;  // also the update of an optimizer that says so

  /// @throws Error  where there is no GPU `device.device`
  template <class Device>
  [[gnu::cold]] StreamsBackend(Device const& device, stagger::detail::Machine& machine, int)
      : options_(device.options()),
        machine_(machine),
        watchdog_(machine.options().deadline_s, Progress{this}, Expired{this}) {
    static_cast<void>(select_device(options_.device));
    if (options_.counts == nullptr) options_.counts = &own_counts_;
    pool_ = std::make_shared<Pool>();
  }
  StreamsBackend(StreamsBackend const&) = delete;
  StreamsBackend& operator=(StreamsBackend const&) = delete;
  ~StreamsBackend() {
    if (!lost_) return;
    // The device may still come to what it was given: its jobs and its memory stay.
    detail::leave_behind(jobs_);
    detail::leave_behind(pool_);
    detail::leave_behind(std::move(iteration_));
    machine_.abandon_parameters();
  }

  /// Prepares for a program that the machine has loaded.
  [[gnu::cold]] void load(std::vector<int> const&) {
    check(cudaSetDevice(options_.device), "select a GPU");
    auto const& program = machine_.program();
    std::size_t const ranks = program.ranks.size();
    if (enqueueing()) detail::require_runnable(machine_, options_.kernels);
    if (enqueueing()) iteration_->load(machine_, options_.kernels);
    streams_.reserve(ranks);
    while (streams_.size() < ranks) streams_.emplace_back();
    count_gives(program);
    events_.reserve(first_event_.back() + ranks);
    jobs_ = std::make_shared<detail::Jobs>(this, &StreamsBackend::run_job, program);
    warm_ = false;
    graph_is_current_ = false;
  }

  /// Carries the step out that the machine has begun. Returns when every stream has, or, with
  /// stages that enqueue, when the device did not move for the deadline.
  void drive() noexcept {
    try {
      if (lost_)
        throw stagger::Error(Errc::device,
                             "the GPU was lost in an earlier step; make a new pipeline");
      check(cudaSetDevice(options_.device), "select a GPU");  // steps may come from any thread
      begin_iteration();
      watchdog_.begin();
    } catch (...) {
      return fail(std::current_exception());
    }
    try {
      bool const timed_by_device = machine_.options().record && enqueueing();
      if (timed_by_device) timeline_.begin(streams_.front());
      // A graph has no times of its own nodes.
      if (options_.capture && warm_ && machine_.program().training && !timed_by_device)
        replay();
      else
        enqueue_iteration();
    } catch (...) {
      fail(std::current_exception());
    }
    updates_released_.store(true, std::memory_order_release);
    drain();
    if (enqueueing()) finish_enqueued();
    watchdog_.end();
    finish_timeline();
    warm_ = !machine_.failed();
  }

  /// Turns graphs on or off. @return what is done with them
  GraphCounts const& capture(bool on) noexcept {
    options_.capture = on;
    return *options_.counts;
  }

  /// Runs the step on a thread of its own and then resumes `then` there.
  bool start(std::coroutine_handle<> then) {
    caller_.ask(then, [this] { drive(); });
    return true;
  }

  /// Ends the step with an error; what has not begun yet does nothing.
  void fail(std::exception_ptr failure) noexcept { machine_.fail(std::move(failure)); }
  [[nodiscard]] bool stopping() const noexcept { return machine_.failed(); }

  /// Whether it was enqueued that often, not whether the device is there.
  [[nodiscard]] bool ready(Wait const& wait) const noexcept {
    return issued_[wait.signal] >= wait.count;
  }

  void give(stagger::detail::RankState& rank, std::uint32_t signal) {
    stream_of(rank).record(events_[first_event_[signal] + issued_[signal]]);
    ++issued_[signal];
  }

  void execute(stagger::detail::RankState& rank, Instruction const& in) {
    Stream const& stream = stream_of(rank);
    for (Wait const* wait = rank.wait - in.waits; wait != rank.wait; ++wait)
      stream.wait(events_[first_event_[wait->signal] + wait->count - 1]);
    steps_issued_.store(steps_issued_.load(std::memory_order_relaxed) + 1,
                        std::memory_order_relaxed);
    if (in.op == Op::update) return prepare_update(rank, in, stream);
    if (options_.ranges.begin != nullptr) [[unlikely]]
      return announced(rank, in, stream);
    enqueue(rank, in, stream);
  }

 private:
  struct Progress {
    StreamsBackend const* backend;
    std::uint64_t operator()() const noexcept { return backend->progress(); }
  };
  struct Expired {
    StreamsBackend* backend;
    void operator()() const noexcept { backend->expire(); }
  };

  [[nodiscard]] bool enqueueing() const noexcept { return options_.work == Work::enqueue; }

  [[nodiscard]] Place place_of(stagger::detail::RankState const& rank) const noexcept {
    auto const r = static_cast<std::size_t>(rank.number);
    return {streams_[r].get(), &pool_, &iteration_->place(r)};
  }

  [[nodiscard]] Stream const& stream_of(stagger::detail::RankState const& rank) const noexcept {
    return streams_[static_cast<std::size_t>(rank.number)];
  }

  /// One event for each time that a signal is given: a taker waits for the time it needs, not for a
  /// later one.
  [[gnu::cold]] void count_gives(Program const& program) {
    std::vector<std::size_t> gives(program.signals.size());
    for (auto const& rank : program.ranks)
      for (auto const& in : rank.code)
        for (unsigned g = 0; g < in.gives; ++g) ++gives[in.give[g]];
    first_event_.assign(1, 0);
    for (std::size_t const count : gives) first_event_.push_back(first_event_.back() + count);
    issued_.assign(gives.size(), 0);
  }

  void begin_iteration() noexcept {
    std::fill(issued_.begin(), issued_.end(), 0);
    jobs_->restart();
    expired_.store(false, std::memory_order_relaxed);
    updates_released_.store(false, std::memory_order_relaxed);
    updates_.clear();
    replayed_ = false;
    start_ = std::chrono::steady_clock::now();
  }

  /// Whatever CUDA may refuse comes before the updates.
  void enqueue_iteration() {
    if (enqueueing()) {
      iteration_->send(machine_, streams_.front());
      fork();
    }
    issue();
    if (machine_.failed()) return;
    if (enqueueing()) {
      check(iteration_->refused(), "change parameters");  // without a flush
      join();
    }
    launch_updates();
  }

  /// All other streams begin behind what the first has been given; the first goes on behind them.
  void fork() {
    streams_.front().record(fence(0));
    for (std::size_t r = 1; r < machine_.ranks().size(); ++r) streams_[r].wait(fence(0));
  }
  void join() {
    for (std::size_t r = 1; r < machine_.ranks().size(); ++r) {
      streams_[r].record(fence(r));
      streams_.front().wait(fence(r));
    }
    if (enqueueing()) iteration_->fetch(streams_.front());
  }
  [[nodiscard]] Event& fence(std::size_t rank) noexcept {
    return events_[first_event_.back() + rank];
  }

  /// An update waits for all other work to be enqueued, so that a refusal ends the step before any.
  void prepare_update(stagger::detail::RankState& rank, Instruction const& in,
                      Stream const& stream) {
    if (enqueueing() && machine_.options().clip_norm)
      check(options_.kernels->scale(
                machine_.square_sums(), machine_.parameter_count(), *machine_.options().clip_norm,
                iteration_->place(static_cast<std::size_t>(rank.number)).scale, stream.get()),
            "find the scale of the gradients");
    updates_.push_back({&rank, &in});
  }

  void launch_updates() {
    if (machine_.failed() || (enqueueing() && !updates_.empty() && !machine_.commit())) return;
    for (auto const& [rank, in] : updates_) {
      if (!enqueueing()) {
        enqueue(*rank, *in, stream_of(*rank));
        continue;
      }
      detail::AtPlace const here(place_of(*rank));
      machine_.execute_end(*rank, *in);
    }
  }

  /// Enqueues the iteration. A rank gets as far as the others have let it; verified programs end.
  void issue() {
    auto& ranks = machine_.ranks();
    for (bool moved = true; moved;) {
      moved = false;
      for (auto& rank : ranks) {
        Instruction const* const before = rank.next.load(std::memory_order_relaxed);
        if (before == rank.end) continue;
        if (stagger::detail::go_on(*this, rank) == stagger::detail::Progress::stopped) return;
        moved = moved || rank.next.load(std::memory_order_relaxed) != before;
      }
    }
  }

  void enqueue(stagger::detail::RankState& rank, Instruction const& in, Stream const& stream) {
    if (!enqueueing()) {
      auto const index = static_cast<std::size_t>(&in - rank.begin);
      check(cudaLaunchHostFunc(stream.get(), &detail::Jobs::call,
                               jobs_->job(static_cast<std::size_t>(rank.number), index)),
            "enqueue an action");
      return;
    }
    detail::AtPlace const here(place_of(rank));
    if (in.op > Op::recompute) return machine_.execute_end(rank, in);
    if (!rank.record) return stagger::detail::run_compute(rank, in);
    timeline_.action(rank, in, stream, [&] { stagger::detail::run_compute(rank, in); });
  }

  void finish_timeline() noexcept {
    if (!machine_.options().record || !enqueueing() || machine_.failed()) return;
    try {
      timeline_.finish();
    } catch (...) {
      fail(std::current_exception());
    }
  }

  [[gnu::cold]] void announced(stagger::detail::RankState& rank, Instruction const& in,
                               Stream const& stream) {
    options_.ranges.begin(stagger::detail::describe(in).c_str());
    struct End {
      void (*end)();
      ~End() { end(); }
    } const range{options_.ranges.end};
    enqueue(rank, in, stream);
  }

  /// On the host, in the order of the stream.
  void compute(stagger::detail::RankState& rank, Instruction const& in) {
    if (!rank.record) return stagger::detail::run_compute(rank, in);
    stagger::detail::run_recorded(rank, in, [this] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    });
  }

  /// An instruction as a host function, on a thread of CUDA's.
  static void run_job(void* self, std::size_t number, Instruction const& in) noexcept {
    auto& backend = *static_cast<StreamsBackend*>(self);
    if (backend.machine_.failed()) return;
    auto& rank = backend.machine_.ranks()[number];
    if (in.op == Op::update)  // all of them are enqueued, or none happens
      while (!backend.updates_released_.load(std::memory_order_acquire)) std::this_thread::yield();
    if (backend.machine_.failed()) return;
    try {
      if (in.op > Op::recompute)
        backend.machine_.execute_end(rank, in);
      else
        backend.compute(rank, in);
    } catch (...) {
      backend.fail(std::current_exception());
    }
  }

  void replay() {
    auto const& arguments = *machine_.ranks().front().arguments;
    auto const microbatches = static_cast<std::size_t>(machine_.program().microbatches);
    if (enqueueing()) iteration_->send(machine_, streams_.front());
    if (!graph_is_current_ || (enqueueing() && !shown_.same(arguments, microbatches))) {
      graph_is_current_ = false;
      record_graph();
      if (enqueueing()) shown_.remember(arguments, microbatches);
      graph_is_current_ = true;
    }
    replayed_ = true;
    if (enqueueing() && !machine_.commit()) return;
    try {
      graph_.replay(streams_.front(), *options_.counts);
    } catch (...) {
      if (enqueueing()) machine_.reopen();
      throw;
    }
  }

  [[gnu::cold]] void record_graph() {
    struct Reopen {  // it was recorded, not carried out
      StreamsBackend* backend;
      ~Reopen() {
        if (backend->enqueueing()) backend->machine_.reopen();
      }
    } const reopen{this};
    graph_.capture(streams_.front(), *options_.counts, [&] {
      fork();
      issue();
      launch_updates();
      if (machine_.failed())
        throw stagger::Error(Errc::cancelled, "the step ended while its graph was recorded");
      if (enqueueing()) check(iteration_->refused(), "record an update");
      join();
    });
  }

  /// Losses, and what became of the parameters.
  [[gnu::cold]] void finish_enqueued() noexcept {
    if (lost_) return;
    if (machine_.failed()) {
      {
        detail::AtPlace const here(place_of(machine_.ranks().front()));
        try {
          machine_.undo();
        } catch (...) {
          return lose(std::current_exception());
        }
      }
      drain();
    }
    if (lost_) return;
    if (iteration_->refused() != cudaSuccess) return lose(refusal());
    if (!machine_.failed()) iteration_->finish(machine_);
  }
  [[nodiscard]] [[gnu::cold]] std::exception_ptr refusal() const noexcept {
    try {
      detail::fail(iteration_->refused(), "change parameters of a step that was decided");
    } catch (...) {
      return std::current_exception();
    }
  }

  /// Waits for the device, looking at it and at the deadline.
  void drain() noexcept {
    try {
      auto const start = std::chrono::steady_clock::now();
      for (std::size_t r = 0; r < streams_.size();) {
        if (streams_[r].idle()) {
          ++r;
          continue;
        }
        auto const waited = std::chrono::steady_clock::now() - start;
        if (waited < std::chrono::microseconds(500)) {
          std::this_thread::yield();
          continue;
        }
        if (enqueueing() && !replayed_) look();
        // A host function that overruns still uses what the step was given: the step ends with it.
        if (enqueueing() && expired_.load(std::memory_order_acquire)) return lose(expiry_);
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    } catch (...) {
      lose(std::current_exception());
    }
  }

  /// The device does not answer, or answers that it has failed.
  [[gnu::cold]] void lose(std::exception_ptr failure) noexcept {
    if (enqueueing())
      machine_.lose(std::move(failure));
    else
      fail(std::move(failure));
    lost_ = true;
    jobs_->end();
  }

  /// How far the device is, by the events of each rank in the order of its program.
  [[gnu::cold]] void look() {
    auto const& program = machine_.program();
    for (std::size_t r = 0; r < program.ranks.size(); ++r) {
      auto const& code = program.ranks[r].code;
      std::vector<std::size_t> given(issued_.size());
      for (std::size_t i = 0; i < code.size(); ++i)
        for (unsigned g = 0; g < code[i].gives; ++g) {
          std::size_t const signal = code[i].give[g];
          std::size_t const event = given[signal]++;
          if (event >= issued_[signal] || !events_[first_event_[signal] + event].done()) {
            i = code.size() - 1;
            break;
          }
          jobs_->finished(r, i + 1);
        }
    }
  }

  [[nodiscard]] std::uint64_t progress() const noexcept {
    std::uint64_t sum = steps_issued_.load(std::memory_order_relaxed);
    for (std::size_t r = 0; r < machine_.ranks().size(); ++r) sum = sum * 31 + jobs_->finished(r);
    return sum;
  }

  [[gnu::cold]] void expire() noexcept {
    try {
      expiry_ = std::make_exception_ptr(
          stagger::Error(Errc::deadline, detail::stall_text(machine_, *jobs_)));
    } catch (...) {
      expiry_ = std::current_exception();
    }
    fail(expiry_);
    expired_.store(true, std::memory_order_release);
  }

  StreamsOptions options_;
  stagger::detail::Machine& machine_;
  GraphCounts own_counts_;
  std::shared_ptr<Pool> pool_;
  std::vector<Stream> streams_;           // [ranks]
  EventTable events_;                     // by signal and time, then one for each rank
  std::vector<std::size_t> first_event_;  // [signals + 1]
  std::vector<std::uint32_t> issued_;     // [signals]
  std::shared_ptr<detail::Jobs> jobs_;
  detail::Timeline timeline_;
  Graph graph_;
  detail::Shown shown_;  // what the graph was recorded with
  std::shared_ptr<detail::Iteration> iteration_ = std::make_shared<detail::Iteration>();
  struct Updating {
    stagger::detail::RankState* rank;
    Instruction const* in;
  };
  std::vector<Updating> updates_;  // of this iteration, in the order of issue
  std::exception_ptr expiry_;
  std::atomic<bool> updates_released_{false};
  bool graph_is_current_ = false;
  bool replayed_ = false;  // this step
  bool warm_ = false;  // the program has run once, so that its stages hold all the memory they need
  bool lost_ = false;
  std::chrono::steady_clock::time_point start_{};
  std::atomic<std::uint64_t> steps_issued_{0};
  std::atomic<bool> expired_{false};
  Watchdog<Progress, Expired> watchdog_;
  detail::Caller caller_;
};

}  // namespace stagger::cuda
