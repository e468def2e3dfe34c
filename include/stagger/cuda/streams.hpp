// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Back end: every rank a stream of one GPU, every message an event.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/cuda/detail/caller.hpp>
#include <stagger/cuda/detail/events.hpp>
#include <stagger/cuda/detail/iteration.hpp>
#include <stagger/cuda/detail/jobs.hpp>
#include <stagger/cuda/detail/require.hpp>
#include <stagger/cuda/detail/timeline.hpp>
#include <stagger/cuda/detail/wait_policy.hpp>
#include <stagger/cuda/graph.hpp>
#include <stagger/cuda/memory.hpp>
#include <stagger/cuda/ranges.hpp>
#include <stagger/cuda/work.hpp>
#include <stagger/engine/backend.hpp>
#include <stagger/program/describe.hpp>

namespace stagger::cuda {

/// Issues the instructions of all ranks from one thread, as far as their inputs have been issued.
/// After the first step of a program it makes no event, allocates nothing and synchronises with
/// nothing but the end of a step that somebody waits for.
class StreamsBackend {
 public:
  static constexpr bool timed = false;

  /// @throws Error  where there is no GPU `device.device`
  template <class Device>
  [[gnu::cold]] StreamsBackend(Device const& device, stagger::detail::Machine& machine, int)
      : options_(device.options()),
        machine_(machine),
        wait_policy_(machine.options().deadline_s, this) {
    if (options_.ahead < 1)
      raise(Errc::bad_configuration, "the host cannot be ", options_.ahead,
            " steps ahead of a GPU; use at least 1");
    static_cast<void>(select_device(options_.device));
    turns_ = std::vector<Turn>(turns());
    if (options_.counts == nullptr) options_.counts = &own_counts_;
    pool_ = std::make_shared<Pool>();
  }
  StreamsBackend(StreamsBackend const&) = delete;
  StreamsBackend& operator=(StreamsBackend const&) = delete;
  ~StreamsBackend() {
    if (!lost_ && flying_ != 0) {  // no longer than the deadline
      wait_policy_.begin();
      wait_for_all();
      wait_policy_.end();
    }
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
    if (enqueueing()) iteration_->load(machine_, options_.kernels, turns());
    streams_.reserve(ranks);
    auto const computing = static_cast<std::size_t>(program.computing);
    while (streams_.size() < ranks)  // what adds up gradients goes first
      streams_.emplace_back(streams_.size() < computing ? Priority::compute : Priority::message);
    events_.load(program, turns());
    jobs_ = std::make_shared<detail::Jobs>(this, &StreamsBackend::run_job, program);
    warm_ = false;
    for (Turn& turn : turns_) turn.graph_is_current = false;
  }

  /// Carries the step out that the machine has begun. Returns when every stream has, or, with
  /// stages that enqueue, when the device did not move for the deadline.
  void drive() noexcept {
    enqueue(0);
    if (enqueueing() && machine_.failed()) return;
    if (await(0, 0)) return;
    if (enqueueing()) machine_.gradient_norm(results(0, machine_.arguments().losses));
    finish_timeline();
    warm_ = !machine_.failed();
  }

  // For hosts that run ahead.

  [[nodiscard]] bool runs_ahead() const noexcept {
    return enqueueing() && !machine_.options().record && !machine_.measures();
  }
  [[nodiscard]] std::size_t turns() const noexcept {
    return enqueueing() ? static_cast<std::size_t>(options_.ahead) : 1;
  }

  /// Has the device begin the step that the machine has begun. Nothing of it is in flight if the machine
  /// has failed: what was enqueued of it, and all before it, is done.
  void enqueue(std::size_t turn) noexcept {
    turn_ = turn;
    try {
      if (lost_) detail::refuse_lost();
      check(cudaSetDevice(options_.device), "select a GPU");  // steps may come from any thread
      begin_iteration();
      wait_policy_.begin();
    } catch (...) {
      return fail(std::current_exception());
    }
    try {
      timed_ = enqueueing() && (machine_.options().record || machine_.measures());
      if (timed_) timeline_.begin(streams_.front());
      // A graph has no times of its own nodes.
      if (options_.capture && warm_ && machine_.program().training && !timed_)
        replay();
      else
        enqueue_iteration();
    } catch (...) {
      fail(std::current_exception());
    }
    updates_released_.store(true, std::memory_order_release);
    if (enqueueing()) finish_in_flight();
    wait_policy_.end();
    warm_ = !machine_.failed();
    if (warm_) ++flying_;
  }

  /// Whether the device is done with a turn.
  [[nodiscard]] bool finished(std::size_t turn) {
    if (lost_) return true;
    try {
      return events_.end(turn).done();
    } catch (...) {
      return true;  // `await` tells
    }
  }

  /// Waits until the device is done with a turn. All before it must have been awaited.
  /// @param step  its number, for an error; 0: none is named
  /// @return  what it ended with; null: it went well
  [[nodiscard]] std::exception_ptr await(std::size_t turn, std::int64_t step) noexcept {
    if (lost_) return reason_;
    wait_policy_.begin();
    if (enqueueing()) jobs_->restart();
    std::exception_ptr failure =
        wait(turn, [&] { return enqueueing() ? events_.end(turn).done() : all_idle(); });
    wait_policy_.end();
    flying_ = flying_ == 0 ? 0 : flying_ - 1;
    if (failure) lose(step == 0 ? failure : detail::of_step(failure, step, machine_, *jobs_));
    return lost_ ? reason_ : nullptr;
  }

  /// What came back of a turn that went well.
  /// @param losses  where losses go that the device has; may be null
  /// @return the norm of the gradients
  double results(std::size_t turn, double* losses) const noexcept {
    return iteration_->results(turn, losses);
  }

  /// @throws Error  device, if the GPU was lost and parameters with it
  void require_present() const {
    if (lost_ && enqueueing()) detail::refuse_lost();
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
  [[nodiscard]] bool ready(Wait const& wait) const noexcept { return events_.given(wait); }

  void give(stagger::detail::RankState& rank, std::uint32_t signal) {
    events_.give(stream_of(rank), signal);
  }

  void execute(stagger::detail::RankState& rank, Instruction const& in) {
    Stream const& stream = stream_of(rank);
    for (Wait const* wait = rank.wait - in.waits; wait != rank.wait; ++wait)
      events_.await(stream, *wait);
    steps_issued_.store(steps_issued_.load(std::memory_order_relaxed) + 1,
                        std::memory_order_relaxed);
    if (in.op == Op::update) return prepare_update(rank, in, stream);
    if (options_.ranges.begin != nullptr) [[unlikely]]
      return announced(rank, in, stream);
    enqueue(rank, in, stream);
  }

  // For WaitPolicy.
  [[nodiscard]] std::uint64_t progress() const noexcept {
    std::uint64_t sum = steps_issued_.load(std::memory_order_relaxed);
    for (std::size_t r = 0; r < machine_.ranks().size(); ++r) sum = sum * 31 + jobs_->finished(r);
    return sum;
  }
  [[gnu::cold]] std::exception_ptr expire() noexcept {
    std::exception_ptr const expiry = detail::stall(machine_, *jobs_);
    fail(expiry);
    return expiry;
  }

 private:
  [[nodiscard]] bool enqueueing() const noexcept { return options_.work == Work::enqueue; }

  [[nodiscard]] Place place_of(stagger::detail::RankState const& rank) const noexcept {
    auto const r = static_cast<std::size_t>(rank.number);
    return {streams_[r].get(), &pool_, &iteration_->place(r)};
  }

  [[nodiscard]] Stream const& stream_of(stagger::detail::RankState const& rank) const noexcept {
    return streams_[static_cast<std::size_t>(rank.number)];
  }

  void begin_iteration() noexcept {
    events_.begin(turn_);
    if (!enqueueing()) jobs_->restart();
    updates_released_.store(false, std::memory_order_relaxed);
    updates_.clear();
    turns_[turn_].replayed = false;
    start_ = std::chrono::steady_clock::now();
  }

  /// Whatever CUDA may refuse comes before the updates.
  void enqueue_iteration() {
    if (enqueueing()) {
      iteration_->send(machine_, streams_.front(), turn_);
      fork();
    }
    issue();
    if (machine_.failed()) return;
    if (enqueueing()) check(iteration_->refused(), "change parameters");  // without a flush
    launch_updates();
    if (!enqueueing() || machine_.failed()) return;
    join();
    if (machine_.arguments().outputs.first != nullptr) {
      detail::AtPlace const here(place_of(machine_.ranks().front()));
      machine_.join_outputs();
    }
    close();
  }

  /// All other streams begin behind what the first has been given; the first goes on behind them.
  void fork() {
    streams_.front().record(events_.fence(0));
    for (std::size_t r = 1; r < machine_.ranks().size(); ++r) streams_[r].wait(events_.fence(0));
  }
  /// By now the step may be decided, so what is refused is asked for once more.
  void join() noexcept {
    for (std::size_t r = 1; r < machine_.ranks().size(); ++r) {
      iteration_->insist(
          [&] { return cudaEventRecord(events_.fence(r).get(), streams_[r].get()); });
      iteration_->insist(
          [&] { return cudaStreamWaitEvent(streams_.front().get(), events_.fence(r).get(), 0); });
    }
  }
  /// Behind all work of the iteration.
  void close() noexcept {
    iteration_->insist([&] { return iteration_->bring_back(streams_.front(), turn_); });
    iteration_->insist(
        [&] { return cudaEventRecord(events_.end(turn_).get(), streams_.front().get()); });
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
    if (!timed_ || !detail::Timeline::shows(in))
      return stagger::detail::carry_out(machine_, rank, in);
    timeline_.action(rank, in, stream, [&] { stagger::detail::carry_out(machine_, rank, in); });
  }

  void finish_timeline() noexcept {
    if (!timed_ || machine_.failed()) return;
    try {
      timeline_.finish(machine_);
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

  static double now_s(void* self) {
    auto const since =
        std::chrono::steady_clock::now() - static_cast<StreamsBackend*>(self)->start_;
    return std::chrono::duration<double>(since).count();
  }

  /// An instruction as a host function, on a thread of CUDA's.
  static void run_job(void* self, std::size_t number, Instruction const& in) noexcept {
    auto& backend = *static_cast<StreamsBackend*>(self);
    if (backend.machine_.failed()) return;
    auto& rank = backend.machine_.ranks()[number];
    while (in.op == Op::update &&
           !backend.machine_.failed() &&  // all are enqueued, or none happens
           !backend.updates_released_.load(std::memory_order_acquire))
      std::this_thread::yield();
    if (backend.machine_.failed()) return;
    try {
      stagger::detail::carry_out(backend.machine_, rank, in, {&StreamsBackend::now_s, self});
    } catch (...) {
      backend.fail(std::current_exception());
    }
  }

  void replay() {
    auto const& arguments = machine_.arguments();
    auto const microbatches = static_cast<std::size_t>(machine_.program().microbatches);
    Turn& turn = turns_[turn_];
    turn.replayed = true;
    if (enqueueing()) iteration_->send(machine_, streams_.front(), turn_);
    if (!turn.graph_is_current || (enqueueing() && !turn.shown.same(arguments, microbatches))) {
      turn.graph_is_current = false;
      record_graph(turn.graph);
      if (enqueueing()) turn.shown.remember(arguments, microbatches);
      turn.graph_is_current = true;
    }
    if (enqueueing() && !machine_.commit()) return;
    try {
      turn.graph.replay(streams_.front(), *options_.counts);
    } catch (...) {
      if (enqueueing()) machine_.reopen();
      throw;
    }
    if (enqueueing()) close();
  }

  [[gnu::cold]] void record_graph(Graph& graph) {
    struct Reopen {  // it was recorded, not carried out
      StreamsBackend* backend;
      ~Reopen() {
        if (backend->enqueueing()) backend->machine_.reopen();
      }
    } const reopen{this};
    graph.capture(streams_.front(), *options_.counts, [&] {
      fork();
      issue();
      launch_updates();
      if (machine_.failed()) raise(Errc::cancelled, "the step ended while its graph was recorded");
      join();
      if (enqueueing()) check(iteration_->refused(), "record an update");
    });
  }

  /// What became of the parameters of a step that is enqueued, or that could not be.
  void finish_in_flight() noexcept {
    if (machine_.failed()) return undo();
    if (iteration_->refused() == cudaSuccess) return;
    if (!wait_for_all()) lose(detail::refusal(iteration_->refused()));
  }
  [[gnu::cold]] void undo() noexcept {
    if (lost_ || wait_for_all()) return;
    {
      detail::AtPlace const here(place_of(machine_.ranks().front()));
      try {
        machine_.undo();
      } catch (...) {
        return lose(std::current_exception());
      }
    }
    if (!wait_for_all() && iteration_->refused() != cudaSuccess)
      lose(detail::refusal(iteration_->refused()));
  }
  [[nodiscard]] bool all_idle() const {
    for (Stream const& stream : streams_)
      if (!stream.idle()) return false;
    return true;
  }

  /// Waits for whatever the device was given.
  /// @return whether the device was lost instead
  [[gnu::cold]] bool wait_for_all() noexcept {
    if (auto failure = wait(turn_, [this] { return all_idle(); })) lose(std::move(failure));
    return lost_;
  }

  /// A host function that overruns still uses what the step was given: the step ends with it.
  template <class Done>
  [[nodiscard]] std::exception_ptr wait(std::size_t turn, Done done) noexcept {
    return wait_policy_.wait(!enqueueing(), done, [this, turn] {
      if (enqueueing() && !turns_[turn].replayed) events_.look(machine_.program(), turn, *jobs_);
    });
  }

  /// The device does not answer, or answers that it has failed.
  [[gnu::cold]] void lose(std::exception_ptr failure) noexcept {
    reason_ = failure;
    if (enqueueing())
      machine_.lose(std::move(failure));
    else
      fail(std::move(failure));
    lost_ = true;
    jobs_->end();
  }

  StreamsOptions options_;
  stagger::detail::Machine& machine_;
  GraphCounts own_counts_;
  std::shared_ptr<Pool> pool_;
  std::vector<Stream> streams_;  // [ranks]
  detail::Events events_;
  std::shared_ptr<detail::Jobs> jobs_;
  detail::Timeline timeline_;
  struct Turn {
    Graph graph;
    detail::Shown shown;  // what the graph was recorded with
    bool graph_is_current = false;
    bool replayed = false;
  };
  std::vector<Turn> turns_;
  std::size_t turn_ = 0;    // of the step that is being enqueued, or was last
  std::size_t flying_ = 0;  // steps that were enqueued and not awaited
  std::shared_ptr<detail::Iteration> iteration_ = std::make_shared<detail::Iteration>();
  struct Updating {
    stagger::detail::RankState* rank;
    Instruction const* in;
  };
  std::vector<Updating> updates_;  // of this iteration, in the order of issue
  std::exception_ptr reason_;      // for which the device was lost
  std::atomic<bool> updates_released_{false};
  bool warm_ = false;  // the program has run once, so that its stages hold all the memory they need
  bool lost_ = false;
  bool timed_ = false;  // the step under way, by events
  std::chrono::steady_clock::time_point start_{};
  std::atomic<std::uint64_t> steps_issued_{0};
  detail::WaitPolicy<StreamsBackend> wait_policy_;
  detail::Caller caller_;
};

}  // namespace stagger::cuda
