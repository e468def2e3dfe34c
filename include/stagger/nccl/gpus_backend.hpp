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
#include <stagger/nccl/detail/homes.hpp>
#include <stagger/nccl/detail/issuing.hpp>
#include <stagger/nccl/detail/patience.hpp>
#include <stagger/nccl/detail/recordings.hpp>
#include <stagger/nccl/detail/wiring.hpp>

namespace stagger::nccl {

/// Issues the instructions of all ranks of this process from one thread, in the order of
/// `detail::Routes`. After the first step of a program it makes no event, allocates nothing and
/// synchronises with nothing but the end of the step.
class GpusBackend : detail::Issuing {
 public:

  /// Meets the other GPUs.
  /// @throws Error  for a GPU that is not there, or named twice; deadline for those that do not
  ///                come; mismatch for a process with another pipeline
  template <class Device>
  [[gnu::cold]] GpusBackend(Device const& device, stagger::detail::Machine& machine, int places)
      : Issuing(machine, device.kernels, device.meet_others(places), device.wires),
        turns_(count_of_turns(device.ahead)),
        recordings_(*fleet_, wiring_, turns_.size(), device.counts),
        shapes_change_(device.wires.shapes_change),
        patience_(machine, *fleet_, wiring_) {
    static_cast<void>(capture(device.capture));
    for (std::size_t g = 0; g < fleet_->size(); ++g)
      memories_->push_back(cuda::detail::parameter_memory((*fleet_)[g].device.index()));
    machine_.keep(memories_);
    meet_s_ = device.meet_s;
    if (fleet_->alone()) return;
    detail::agree(*fleet_, detail::facts_of(machine_, {capture_, shapes_change_, turns_.size()}),
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
      if (turns_[turn].flies) static_cast<void>(await(turn, 0));
    }
    if (!stuck_) return;
    // The devices may still come to what they were given: it stays, and their memory too.
    cuda::detail::leave_behind(wiring_.streams());
    cuda::detail::leave_behind(std::move(fleet_));
    for (auto& memory : *memories_)
      memory.release = [](stagger::detail::ParameterMemory const&, void*) noexcept {};
  }

  /// Prepares for a program that the machine has loaded, together with the other processes.
  [[gnu::cold]] void load(std::vector<int> const& place) {
    cuda::detail::require_runnable(machine_, kernels_);
    if (lost_) refuse();
    if (!fleet_->alone()) detail::agree(*fleet_, detail::facts_of(machine_, place), meet_s_);
    place_ = place;
    sums_.load(place, meet_s_);
    wiring_.load(place, turns());
    detail::settle_parameters(machine_, wiring_, *memories_);
    sums_.settle();
    recordings_.forget();
    warm_ = false;
    for (std::size_t g = 0; g < fleet_->size(); ++g) {
      fleet_->select(g);
      auto& gpu = (*fleet_)[g];
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
      for (std::size_t g = 0; g < fleet_->size() && timed_; ++g) {
        fleet_->select(g);
        (*fleet_)[g].timeline.finish(machine_);
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

  /// Has the devices begin the step that the machine has begun. Nothing of it flies if the machine
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
    wiring_.begin_step(turn);
    sums_.begin_step();
    timed_ = machine_.options().record || machine_.measures();
    try {
      // A graph has no times of its own nodes.
      if (capture_ && warm_ && machine_.program().training && !timed_) {
        replay();
      } else {
        recordings_.follow(false);
        enqueue_iteration();
        for (std::size_t g = 0; g < fleet_->size(); ++g)
          (*fleet_)[g].home.record(wiring_.end_of(turn, g));
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
    turns_[turn].flies = true;
    turns_[turn].decided = decided_;
    recordings_.went(turn, turns_[turn].replayed);
    warm_ = true;
  }

  /// Turns graphs on or off; all processes call it. @return what is done with them
  /// @throws Error  bad_configuration where shapes change
  cuda::GraphCounts const& capture(bool on) {
    if (on && shapes_change_ && !fleet_->alone())
      raise(
          Errc::bad_configuration,
          "Gpus::shapes_change has processes wait for shapes in every step, which a graph cannot; "
          "leave it or capture out");
    capture_ = on;
    return recordings_.counts();
  }

  /// Whether the devices are done with a turn.
  [[nodiscard]] bool landed(std::size_t turn) noexcept {
    if (lost_ || turns_[turn].landed) return true;
    try {
      return has_landed(turn);
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
    if (losses != nullptr) fleet_->take_losses(turn, losses);
    double norm = 0;
    for (std::size_t r = 0; r < wiring_.ranks(); ++r)
      if (wiring_.own(r)) norm = (*fleet_)[wiring_.gpu_of(r)].iteration.gradient_norm(r, turn);
    return norm;
  }

  /// @throws Error  device, if parameters were lost
  void require_present() const {
    if (spoilt_) refuse();
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
    if (fleet_->alone() || place_.empty()) return;
    if (lost_) refuse();
    detail::gather_parameters(machine_, *fleet_, wiring_, place_);
  }

 private:
  struct Turn {
    bool flies = false;    // was enqueued and not awaited
    bool decided = false;  // its updates were
    bool landed = false;   // before the devices were lost
    bool replayed = false;
  };
  static std::size_t count_of_turns(int ahead) {
    if (ahead < 1)
      raise(Errc::bad_configuration, "the host cannot be ", ahead,
            " steps ahead of its GPUs; use at least 1");
    return static_cast<std::size_t>(ahead);
  }

  [[noreturn]] [[gnu::cold]] static void refuse() {
    raise(Errc::device, "the GPUs or their communicators were lost in an earlier step; make a new "
                         "pipeline");
  }

  void replay() {
    turns_[turn_].replayed = true;
    recordings_.follow(true);
    double const deadline_s = machine_.options().deadline_s;
    if (!recordings_.met()) {
      for (std::size_t i = 1; i < turns(); ++i) {
        std::size_t const turn = (turn_ + i) % turns();
        if (!turns_[turn].flies) continue;
        auto const failure =
            patience_.wait(turn, turns_[turn].replayed, [&] { return has_landed(turn); });
        if (failure) std::rethrow_exception(failure);
      }
      recordings_.meet(meet_s_);
    }
    auto const& arguments = *machine_.ranks().front().arguments;
    auto const microbatches = static_cast<std::size_t>(machine_.program().microbatches);
    if (recordings_.stale(turn_, arguments, microbatches, deadline_s))
      record(arguments, microbatches);
    else
      for (std::size_t g = 0; g < fleet_->size(); ++g) (*fleet_)[g].iteration.put(machine_, turn_);
    if (!machine_.commit()) return;
    try {
      recordings_.replay(turn_);
    } catch (...) {
      machine_.reopen();
      throw;
    }
    decided_ = true;
    (*fleet_)[0].home.record(wiring_.end_of(turn_, 0));
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
    recordings_.record(turn_, arguments, microbatches, [&] {
      enqueue_iteration();
      if (machine_.failed()) raise(Errc::cancelled, "the step ended while its graph was recorded");
    });
  }

  [[nodiscard]] bool has_landed(std::size_t turn) const {
    std::size_t const ends = turns_[turn].replayed ? 1 : fleet_->size();
    for (std::size_t g = 0; g < ends; ++g)
      if (!wiring_.end_of(turn, g).done()) return false;
    return true;
  }

  std::exception_ptr await(std::size_t turn, std::int64_t step, double grace_s) noexcept {
    turns_[turn].flies = false;
    if (turns_[turn].landed) return nullptr;
    if (!lost_)
      if (auto failure = patience_.wait(
              turn, turns_[turn].replayed, [&] { return has_landed(turn); }, grace_s)) {
        reason_ = step == 0 ? failure : detail::of_step(failure, step);
        spoilt_ = spoilt_ || turns_[turn].decided;
        lose(reason_);
        abort();
      }
    return lost_ ? reason_ : nullptr;
  }

  /// Ends a step that could not be enqueued. Those before it stand, if the devices get there.
  [[gnu::cold]] void call_off() noexcept {
    if (wiring_.broken() || !fleet_->alone()) {  // others wait for messages that will not come
      for (std::size_t i = 1; i < turns() && !lost_; ++i) {
        std::size_t const turn = (turn_ + i) % turns();
        if (turns_[turn].flies)
          turns_[turn].landed = await(turn, 0, detail::Patience::grace_s) == nullptr;
      }
      abort();
    } else if (auto failure =
                   patience_.wait(turn_, turns_[turn_].replayed, [&] { return wiring_.idle(); })) {
      for (Turn const& turn : turns_) spoilt_ = spoilt_ || (turn.flies && turn.decided);
      lose(std::move(failure));
      abort();
    }
    recordings_.went(detail::Wiring::none, false);
    if (stuck_ || decided_ || spoilt_) return;
    try {
      undo();
    } catch (...) {
      lose(std::current_exception());
    }
  }

  /// Ends all communicators, and with them what waits for messages.
  [[gnu::cold]] void abort() noexcept {
    lost_ = true;
    fleet_->abort("the step has failed");
    try {
      recordings_.abort("the step has failed");
    } catch (...) {  // no memory for the reason: it ends with the pipeline
    }
    stuck_ = stuck_ || !patience_.let_end([this] { return wiring_.idle() && recordings_.idle(); });
    recordings_.drop();
  }

  /// Ends a step that may have been decided.
  [[gnu::cold]] void lose(std::exception_ptr failure) noexcept {
    if (!reason_) reason_ = failure;
    spoilt_ = spoilt_ || decided_;
    machine_.lose(std::move(failure));
    lost_ = true;
  }

  std::shared_ptr<std::vector<stagger::detail::ParameterMemory>> memories_ =
      std::make_shared<std::vector<stagger::detail::ParameterMemory>>();  // [GPUs]
  double meet_s_ = 0;
  std::vector<int> place_;  // [ranks]
  std::vector<Turn> turns_;
  detail::Recordings recordings_;
  bool shapes_change_;
  bool capture_ = false;
  bool warm_ = false;  // the program has run: its stages hold the memory that they need, and
                       // NCCL has its connections
  std::exception_ptr reason_;  // for which the devices were lost
  bool lost_ = false;          // no further step
  bool spoilt_ = false;        // nor parameters
  bool stuck_ = false;         // the devices may still be at it
  detail::Patience patience_;
  cuda::detail::Caller caller_;
};

}  // namespace stagger::nccl
