// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Back end: every rank a stream of one of several GPUs, every message between two of them
/// a send and a receive of NCCL.

#include <stagger/core/requirements.hpp>

#include <algorithm>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/cuda/detail/caller.hpp>
#include <stagger/cuda/detail/jobs.hpp>
#include <stagger/cuda/detail/parameter_memory.hpp>
#include <stagger/cuda/detail/require.hpp>
#include <stagger/engine/backend.hpp>
#include <stagger/nccl/detail/agree.hpp>
#include <stagger/nccl/detail/enqueuer.hpp>
#include <stagger/nccl/detail/graph_cache.hpp>
#include <stagger/nccl/detail/links.hpp>
#include <stagger/nccl/detail/owners.hpp>
#include <stagger/nccl/detail/wait_policy.hpp>

namespace stagger::nccl {

/// Issues the instructions of all ranks of this process from one thread, in the order of
/// `detail::Routes`. After the first step of a program it makes no event, allocates nothing and
/// synchronises with nothing but the end of the step.
class GpusBackend : detail::Enqueuer {
 public:
  /// Meets the other GPUs.
  /// @throws Error  for a GPU that is not there, or named twice; deadline for those that do not
  ///                come; mismatch for a process with another pipeline
  template <class Device>
  [[gnu::cold]] GpusBackend(Device const& device, stagger::detail::Machine& machine, int places)
      : Enqueuer(machine, device.kernels, device.meet_others(places), device.wires),
        turns_(count_of_turns(device.ahead)),
        graph_cache_(*gpu_set_, links_, turns_.size(), device.counts),
        shapes_change_(device.wires.shapes_change),
        wait_policy_(machine, *gpu_set_, links_) {
    static_cast<void>(capture(device.capture));
    for (std::size_t g = 0; g < gpu_set_->size(); ++g)
      memories_->push_back(cuda::detail::parameter_memory((*gpu_set_)[g].device.index()));
    machine_.keep(memories_);
    meet_s_ = device.meet_s;
    if (gpu_set_->alone()) return;
    detail::agree(*gpu_set_, detail::facts_of(machine_, {capture_, shapes_change_, turns_.size()}),
                  device.meet_s);
    auto const share = [](void* sums, double* backward_s, double* sum_s) {
      static_cast<detail::GroupSums*>(sums)->share(backward_s, sum_s);
    };
    machine_.set_grouping_peers({&sums_, share, nullptr});
  }
  GpusBackend(GpusBackend const&) = delete;
  GpusBackend& operator=(GpusBackend const&) = delete;
  ~GpusBackend() {
    for (std::size_t i = 1; i <= turns(); ++i) {  // no longer than the deadline
      std::size_t const turn = (turn_ + i) % turns();
      if (turns_[turn].in_flight) static_cast<void>(await(turn, 0));
    }
    if (!stuck_) return;
    // The devices may still come to what they were given: it stays, and their memory too.
    cuda::detail::leave_behind(links_.streams());
    cuda::detail::leave_behind(std::move(gpu_set_));
    for (auto& memory : *memories_)
      memory.release = [](stagger::detail::ParameterMemory const&, void*) noexcept {};
  }

  /// Prepares for a program that the machine has loaded, together with the other processes.
  [[gnu::cold]] void load(std::vector<int> const& place) {
    cuda::detail::require_runnable(machine_, kernels_);
    if (lost_) refuse();
    if (!gpu_set_->alone()) detail::agree(*gpu_set_, detail::facts_of(machine_, place), meet_s_);
    place_ = place;
    sums_.load(place, meet_s_);
    links_.load(place, turns());
    detail::settle_parameters(machine_, links_, *memories_);
    sums_.settle();
    graph_cache_.forget();
    warm_ = false;
    for (std::size_t g = 0; g < gpu_set_->size(); ++g) {
      gpu_set_->select(g);
      auto& gpu = (*gpu_set_)[g];
      gpu.iteration.load(machine_, kernels_, turns());
      gpu.sums.resize({std::max<std::size_t>(1, machine_.parameter_count())});
    }
  }

  /// Carries the step out that the machine has begun. Returns when every stream has, or when the
  /// devices did not move for the deadline.
  void drive() noexcept {
    enqueue(0);
    if (machine_.failed() || await(0, 0)) return;
    try {
      for (std::size_t g = 0; g < gpu_set_->size() && timed_; ++g) {
        gpu_set_->select(g);
        (*gpu_set_)[g].timeline.finish(machine_);
      }
      machine_.gradient_norm(results(0, losses()));
    } catch (...) {
      lose(std::current_exception());
    }
  }

  // For hosts that run ahead.

  [[nodiscard]] bool runs_ahead() const noexcept {
    return !machine_.options().record && !machine_.measures();
  }
  [[nodiscard]] std::size_t turns() const noexcept { return turns_.size(); }

  /// Has the devices begin the step that the machine has begun. Nothing of it is in flight if the machine
  /// has failed: what was enqueued of it, and all before it, is done.
  void enqueue(std::size_t turn) noexcept {
    turn_ = turn;
    decided_ = false;
    turns_[turn] = {};
    try {
      if (lost_) refuse();
    } catch (...) {
      return fail(std::current_exception());
    }
    links_.begin_step(turn);
    sums_.begin_step();
    timed_ = machine_.options().record || machine_.measures();
    try {
      // A graph has no times of its own nodes.
      if (capture_ && warm_ && machine_.program().training && !timed_) {
        replay();
      } else {
        graph_cache_.follow(false);
        enqueue_iteration();
        for (std::size_t g = 0; g < gpu_set_->size(); ++g)
          (*gpu_set_)[g].home.record(links_.end_of(turn, g));
        if (machine_.arguments().outputs.first != nullptr && !machine_.options().replicas.empty())
          join_outputs();
      }
    } catch (...) {
      if (decided_)
        lose(std::current_exception());
      else
        fail(std::current_exception());
    }
    if (machine_.failed()) return call_off();
    turns_[turn].in_flight = true;
    turns_[turn].decided = decided_;
    graph_cache_.went(turn, turns_[turn].replayed);
    warm_ = true;
  }

  /// Turns graphs on or off; all processes call it. @return what is done with them
  /// @throws Error  bad_configuration where shapes change
  cuda::GraphCounts const& capture(bool on) {
    if (on && shapes_change_ && !gpu_set_->alone())
      raise(
          Errc::bad_configuration,
          "Gpus::shapes_change has processes wait for shapes in every step, which a graph cannot; "
          "leave it or capture out");
    capture_ = on;
    return graph_cache_.counts();
  }

  /// Whether the devices are done with a turn.
  [[nodiscard]] bool finished(std::size_t turn) noexcept {
    if (lost_ || turns_[turn].finished) return true;
    try {
      return has_finished(turn);
    } catch (...) {
      return true;  // `await` tells
    }
  }

  /// Waits until the devices are done with a turn. All before it must have been awaited.
  /// @param step  its number, for an error; 0: none is named
  /// @return  what it ended with; null: it went well
  [[nodiscard]] std::exception_ptr await(std::size_t turn, std::int64_t step) noexcept {
    return await(turn, step, 0);
  }

  /// What came back of a turn that went well.
  /// @param losses  [parts][microbatches] where losses go that the devices have; may be null
  /// @return the norm of the gradients
  double results(std::size_t turn, double* losses) const noexcept {
    if (losses != nullptr) gpu_set_->take_losses(turn, losses);
    double norm = 0;
    for (std::size_t r = 0; r < links_.ranks(); ++r)
      if (links_.own(r)) norm = (*gpu_set_)[links_.gpu_of(r)].iteration.gradient_norm(r, turn);
    return norm;
  }

  /// @throws Error  device, if parameters were lost
  void require_present() const {
    if (corrupted_) refuse();
  }

  /// Runs the step on a thread of its own and then resumes `then` there.
  bool start(std::coroutine_handle<> then) {
    caller_.ask(then, [this] { drive(); });
    return true;
  }

  /// Ends the step with an error; what has not been enqueued yet is not. Any thread may call it.
  void fail(std::exception_ptr failure) noexcept { machine_.fail(std::move(failure)); }

  /// Brings values and optimizer state of every layer from the process that updates it. All
  /// processes call it.
  [[gnu::cold]] void gather_parameters(int) {
    if (gpu_set_->alone() || place_.empty()) return;
    if (lost_) refuse();
    detail::gather_parameters(machine_, *gpu_set_, links_, place_);
  }

 private:
  struct Turn {
    bool in_flight = false;  // was enqueued and not awaited
    bool decided = false;    // its updates were
    bool finished = false;   // before the devices were lost
    bool replayed = false;
  };
  static std::size_t count_of_turns(int ahead) {
    if (ahead < 1)
      raise(Errc::bad_configuration, "the host cannot be ", ahead,
            " steps ahead of its GPUs; use at least 1");
    return static_cast<std::size_t>(ahead);
  }

  [[noreturn]] [[gnu::cold]] static void refuse() {
    raise(Errc::device,
          "the GPUs or their communicators were lost in an earlier step; make a new "
          "pipeline");
  }

  void replay() {
    turns_[turn_].replayed = true;
    graph_cache_.follow(true);
    double const deadline_s = machine_.options().deadline_s;
    if (!graph_cache_.met()) {
      for (std::size_t i = 1; i < turns(); ++i) {
        std::size_t const turn = (turn_ + i) % turns();
        if (!turns_[turn].in_flight) continue;
        auto const failure =
            wait_policy_.wait(turn, turns_[turn].replayed, [&] { return has_finished(turn); });
        if (failure) std::rethrow_exception(failure);
      }
      graph_cache_.meet(meet_s_);
    }
    auto const& arguments = *machine_.ranks().front().arguments;
    auto const microbatches = static_cast<std::size_t>(machine_.program().microbatches);
    if (graph_cache_.stale(turn_, arguments, microbatches, deadline_s))
      record(arguments, microbatches);
    else
      for (std::size_t g = 0; g < gpu_set_->size(); ++g)
        (*gpu_set_)[g].iteration.put(machine_, turn_);
    if (!machine_.commit()) return;
    try {
      graph_cache_.replay(turn_);
    } catch (...) {
      machine_.reopen();
      throw;
    }
    decided_ = true;
    (*gpu_set_)[0].home.record(links_.end_of(turn_, 0));
  }

  [[gnu::cold]] void record(stagger::detail::StepArguments const& arguments,
                            std::size_t microbatches) {
    struct Reopen {  // it was recorded, not carried out
      GpusBackend* backend;
      ~Reopen() {
        backend->machine_.reopen();
        backend->decided_ = false;
      }
    } const reopen{this};
    graph_cache_.record(turn_, arguments, microbatches, [&] {
      enqueue_iteration();
      if (machine_.failed()) raise(Errc::cancelled, "the step ended while its graph was recorded");
    });
  }

  [[nodiscard]] bool has_finished(std::size_t turn) const {
    std::size_t const ends = turns_[turn].replayed ? 1 : gpu_set_->size();
    for (std::size_t g = 0; g < ends; ++g)
      if (!links_.end_of(turn, g).done()) return false;
    return true;
  }

  std::exception_ptr await(std::size_t turn, std::int64_t step, double grace_s) noexcept {
    turns_[turn].in_flight = false;
    if (turns_[turn].finished) return nullptr;
    if (!lost_)
      if (auto failure = wait_policy_.wait(
              turn, turns_[turn].replayed, [&] { return has_finished(turn); }, grace_s)) {
        reason_ = step == 0 ? failure : detail::of_step(failure, step);
        corrupted_ = corrupted_ || turns_[turn].decided;
        lose(reason_);
        abort();
      }
    return lost_ ? reason_ : nullptr;
  }

  /// Ends a step that could not be enqueued. Those before it stand, if the devices get there.
  [[gnu::cold]] void call_off() noexcept {
    if (links_.broken() || !gpu_set_->alone()) {  // others wait for messages that will not come
      for (std::size_t i = 1; i < turns() && !lost_; ++i) {
        std::size_t const turn = (turn_ + i) % turns();
        if (turns_[turn].in_flight)
          turns_[turn].finished = await(turn, 0, detail::WaitPolicy::grace_s) == nullptr;
      }
      abort();
    } else if (auto failure = wait_policy_.wait(turn_, turns_[turn_].replayed,
                                                [&] { return links_.idle(); })) {
      for (Turn const& turn : turns_) corrupted_ = corrupted_ || (turn.in_flight && turn.decided);
      lose(std::move(failure));
      abort();
    }
    graph_cache_.went(detail::Links::none, false);
    if (stuck_ || decided_ || corrupted_) return;
    try {
      undo();
    } catch (...) {
      lose(std::current_exception());
    }
  }

  /// Ends all communicators, and with them what waits for messages.
  [[gnu::cold]] void abort() noexcept {
    lost_ = true;
    gpu_set_->abort("the step has failed");
    try {
      graph_cache_.abort("the step has failed");
    } catch (...) {  // no memory for the reason: it ends with the pipeline
    }
    stuck_ =
        stuck_ || !wait_policy_.let_end([this] { return links_.idle() && graph_cache_.idle(); });
    graph_cache_.drop();
  }

  /// Ends a step that may have been decided.
  [[gnu::cold]] void lose(std::exception_ptr failure) noexcept {
    if (!reason_) reason_ = failure;
    corrupted_ = corrupted_ || decided_;
    machine_.lose(std::move(failure));
    lost_ = true;
  }

  std::shared_ptr<std::vector<stagger::detail::ParameterMemory>> memories_ =
      std::make_shared<std::vector<stagger::detail::ParameterMemory>>();  // [GPUs]
  double meet_s_ = 0;
  std::vector<int> place_;  // [ranks]
  std::vector<Turn> turns_;
  detail::GraphCache graph_cache_;
  bool shapes_change_;
  bool capture_ = false;
  bool warm_ = false;  // the program has run: its stages hold the memory that they need, and
                       // NCCL has its connections
  std::exception_ptr reason_;  // for which the devices were lost
  bool lost_ = false;          // no further step
  bool corrupted_ = false;     // nor parameters
  bool stuck_ = false;         // the devices may still be at it
  detail::WaitPolicy wait_policy_;
  cuda::detail::Caller caller_;
};

}  // namespace stagger::nccl
