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
#include <stagger/cuda/detail/jobs.hpp>
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
};

/// Issues the instructions of all ranks from one thread, as far as their inputs have been issued.
/// After the first step of a program it makes no event, allocates nothing and synchronises with
/// nothing but the end of the step.
class StreamsBackend {
 public:
  static constexpr bool timed = false;

  /// @throws Error  where there is no GPU `device.device`; bad_configuration for stages that
  /// enqueue
  ///                and have parameters, which live in host memory
  template <class Device>
  [[gnu::cold]] StreamsBackend(Device const& device, stagger::detail::Machine& machine, int)
      : options_(device.options()),
        machine_(machine),
        watchdog_(machine.options().deadline_s, Progress{this}, Expired{this}) {
    static_cast<void>(select_device(options_.device));
    if (options_.counts == nullptr) options_.counts = &own_counts_;
    pool_ = std::make_shared<Pool>();
    auto const& parameters = machine.parameters();
    for (std::size_t l = 0; l < parameters.size() && options_.work == Work::enqueue; ++l)
      if (parameters[l].count() != 0)
        throw stagger::Error(
            Errc::bad_configuration,
            text("layer ", l,
                 " declares parameters, which the engine keeps in host memory, where "
                 "kernels cannot reach them; use cuda::Work::host, or keep what is not trained in "
                 "the stage"));
  }
  StreamsBackend(StreamsBackend const&) = delete;
  StreamsBackend& operator=(StreamsBackend const&) = delete;
  ~StreamsBackend() {
    if (!lost_) return;
    // The device may still come to what it was given: its jobs and its memory stay.
    detail::leave_behind(jobs_);
    detail::leave_behind(pool_);
  }

  /// Prepares for a program that the machine has loaded.
  [[gnu::cold]] void load(std::vector<int> const&) {
    check(cudaSetDevice(options_.device), "select a GPU");
    auto const& program = machine_.program();
    std::size_t const ranks = program.ranks.size();
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
      bool const timed_by_device = machine_.options().record && options_.work == Work::enqueue;
      if (timed_by_device) timeline_.begin(streams_.front());
      // A graph has no times of its own nodes.
      if (options_.capture && warm_ && machine_.program().training && !timed_by_device) {
        if (!graph_is_current_ || arguments_changed()) capture();
        replayed_ = true;
        graph_.replay(streams_.front(), *options_.counts);
      } else {
        issue();
      }
    } catch (...) {
      fail(std::current_exception());
    }
    drain();
    watchdog_.end();
    finish_timeline();
    warm_ = !machine_.failed();
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
    replayed_ = false;
    start_ = std::chrono::steady_clock::now();
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
    if (in.op > Op::recompute || options_.work == Work::host) {
      auto const index = static_cast<std::size_t>(&in - rank.begin);
      check(cudaLaunchHostFunc(stream.get(), &detail::Jobs::call,
                               jobs_->job(static_cast<std::size_t>(rank.number), index)),
            "enqueue an action");
      return;
    }
    detail::AtPlace const here({stream.get(), &pool_});
    if (!rank.record) return stagger::detail::run_compute(rank, in);
    timeline_.action(rank, in, stream, [&] { stagger::detail::run_compute(rank, in); });
  }

  void finish_timeline() noexcept {
    if (!machine_.options().record || options_.work == Work::host || machine_.failed()) return;
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
    try {
      if (in.op > Op::recompute)
        backend.machine_.execute_end(rank, in);
      else
        backend.compute(rank, in);
    } catch (...) {
      backend.fail(std::current_exception());
    }
  }

  /// Whether stages that enqueue were shown other memory than is in the graph.
  [[nodiscard]] bool arguments_changed() const noexcept {
    auto const& now = *machine_.ranks().front().arguments;
    return options_.work == Work::enqueue &&
           (now.inputs.first != inputs_ || now.targets.first != targets_ ||
            now.outputs.first != outputs_);
  }

  [[gnu::cold]] void capture() {
    auto const& arguments = *machine_.ranks().front().arguments;
    graph_is_current_ = false;
    Stream const& origin = streams_.front();
    std::size_t const ranks = machine_.ranks().size();
    graph_.capture(origin, *options_.counts, [&] {
      auto const extra = [&](std::size_t r) -> Event& { return events_[first_event_.back() + r]; };
      origin.record(extra(0));
      for (std::size_t r = 1; r < ranks; ++r) streams_[r].wait(extra(0));
      issue();
      for (std::size_t r = 1; r < ranks; ++r) {
        streams_[r].record(extra(r));
        origin.wait(extra(r));
      }
      if (machine_.failed())
        throw stagger::Error(Errc::cancelled, "the step ended while its graph was recorded");
    });
    inputs_ = arguments.inputs.first;
    targets_ = arguments.targets.first;
    outputs_ = arguments.outputs.first;
    graph_is_current_ = true;
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
        if (options_.work == Work::enqueue && !replayed_) look();
        // A host function that overruns still uses what the step was given: the step ends with it.
        if (options_.work == Work::enqueue && expired_.load(std::memory_order_acquire))
          return lose();
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    } catch (...) {
      fail(std::current_exception());
      lose();
    }
  }

  /// The device does not answer, or answers that it has failed.
  [[gnu::cold]] void lose() noexcept {
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
      fail(std::make_exception_ptr(stagger::Error(Errc::deadline, stall_text())));
    } catch (...) {
      fail(std::current_exception());
    }
    expired_.store(true, std::memory_order_release);
  }

  [[nodiscard]] [[gnu::cold]] std::string stall_text() const {
    auto const& program = machine_.program();
    std::vector<std::size_t> at;
    std::vector<std::uint32_t> given(program.signals.size());
    for (std::size_t r = 0; r < program.ranks.size(); ++r) {
      at.push_back(jobs_->finished(r));
      for (std::size_t i = 0; i < at[r]; ++i)
        for (unsigned g = 0; g < program.ranks[r].code[i].gives; ++g)
          ++given[program.ranks[r].code[i].give[g]];
    }
    return text("the GPU did not move for ", machine_.options().deadline_s,
                " s: ", stagger::detail::describe_stall(program, at, given),
                "; raise Options::deadline_s if an action may take that long");
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
  std::byte const* inputs_ = nullptr;  // what the graph was recorded with
  std::byte const* targets_ = nullptr;
  std::byte const* outputs_ = nullptr;
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
