// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The back end for GPUs, on which every rank is a stream.

#include <stagger/core/requirements.hpp>

#include <atomic>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/cuda/detail/enqueuer.hpp>
#include <stagger/cuda/detail/facts.hpp>
#include <stagger/cuda/detail/graph_cache.hpp>
#include <stagger/cuda/detail/in_flight.hpp>
#include <stagger/cuda/detail/parameter_memory.hpp>

namespace stagger::cuda {

namespace detail {

/// A thread that carries out one step at a time and resumes the coroutine that awaits it. The first
/// step starts it.
class Caller {
 public:
  Caller() = default;
  Caller(Caller const&) = delete;
  Caller& operator=(Caller const&) = delete;
  /// @pre  no step runs
  ~Caller() {
    if (!thread_.joinable()) return;
    quit_.store(true);
    requests_.fetch_add(1);
    requests_.notify_all();
    if (thread_.get_id() == std::this_thread::get_id()) {
      *gone_ = true;
      thread_.detach();
    } else {
      thread_.join();
    }
  }

  /// @param step  () noexcept; the same in every call
  template <class Step> void ask(std::coroutine_handle<> then, Step step) {
    then_ = then;
    if (!thread_.joinable()) thread_ = std::thread([this, step] { serve(step); });
    requests_.fetch_add(1);
    requests_.notify_all();
  }

 private:
  template <class Step> void serve(Step step) {
    for (std::uint32_t served = 0;;) {
      requests_.wait(served, std::memory_order_acquire);
      if (quit_.load(std::memory_order_acquire)) return;
      ++served;
      step();
      bool gone = false;  // the coroutine may drop the last reference to the engine
      gone_ = &gone;
      std::exchange(then_, nullptr).resume();
      if (gone) return;
    }
  }

  std::atomic<std::uint32_t> requests_{0};
  std::atomic<bool> quit_{false};
  std::coroutine_handle<> then_{};
  bool* gone_ = nullptr;
  std::thread thread_;
};

}  // namespace detail

/// Enqueues the instructions of all ranks of this process from one thread, in the order of
/// `detail::Routes`. After the first step of a program it makes no event and allocates nothing, and
/// it synchronises only with the end of a step that is waited for.
///
/// `slot` is that of an iteration in flight, 0 to slots() - 1.
class GpusBackend : detail::Enqueuer {
 public:
  /// Connects with the other GPUs.
  /// @throws Error for a GPU that does not exist or is named twice; deadline for processes that do
  ///         not arrive; mismatch for a process with another pipeline
  template <class Device>
  [[gnu::cold]] GpusBackend(Device const& device, stagger::detail::Machine& machine, int places)
      : Enqueuer(machine, device.options(), device.open(places, machine.options().deadline_s)),
        graphs_(streams_, options_.ahead, options_.counts),
        in_flight_(streams_, graphs_, options_.ahead) {
    static_cast<void>(capture(options_.capture));
    for (std::size_t g = 0; g < gpus_->size(); ++g)
      memories_->push_back(detail::parameter_memory((*gpus_)[g].device));
    machine_.model.keep(memories_);
    if (gpus_->processes() == nullptr) return;
    machine_.traffic.by_back_end();
    gpus_->processes()->agree(detail::facts_of(machine_, options_));
    auto const share = [](void* sums, double* backward_s, double* sum_s) {
      static_cast<detail::GroupSums*>(sums)->share(backward_s, sum_s);
    };
    machine_.set_grouping_peers({&group_sums_, share, nullptr});
  }
  GpusBackend(GpusBackend const&) = delete;
  GpusBackend& operator=(GpusBackend const&) = delete;
  ~GpusBackend() {
    in_flight_.await_all();  // no longer than the deadline
    if (!in_flight_.stuck()) return;
    // The devices may still run enqueued work, so it and its memory are kept.
    detail::leave_behind(streams_.streams());
    detail::leave_behind(std::move(gpus_));
    for (auto& memory : *memories_)
      memory.release = [](stagger::detail::ParameterMemory const&, void*) noexcept {};
    if (machine_.model.memory->device >= 0) machine_.model.abandon_parameters();
  }

  /// Prepares for a program that the machine has loaded, together with the other processes.
  [[gnu::cold]] void load(std::vector<int> const& places) {
    detail::require_runnable(machine_, options_.kernels);
    if (in_flight_.lost()) refuse();
    if (gpus_->processes() != nullptr)
      gpus_->processes()->agree(detail::facts_of(machine_, places));
    place_ = places;
    streams_.assign(places);
    group_sums_.connect(places);
    messages_.load(places);
    streams_.load(messages_.routes(), slots());
    if (machine_.model.memory->device < 0) detail::settle_parameters(streams_, *memories_);
    group_sums_.load();
    square_sums_.load();
    graphs_.forget();
    warm_ = false;
    for (std::size_t g = 0; g < gpus_->size(); ++g) {
      gpus_->select(g);
      (*gpus_)[g].iteration.load(machine_, options_.kernels, slots());
    }
  }

  /// Carries out the step that the machine has begun. Returns when every stream is done, or when
  /// the devices have not moved for the deadline.
  void drive() noexcept {
    enqueue(0);
    if (machine_.failed() || await(0, 0)) return;
    try {
      for (std::size_t g = 0; g < gpus_->size() && timed_; ++g) {
        gpus_->select(g);
        (*gpus_)[g].timeline.finish(machine_);
      }
      machine_.gradient_norm(results(0, losses()));
    } catch (...) {
      in_flight_.lose(std::current_exception(), decided_);
    }
  }

  // Functions for running ahead.

  [[nodiscard]] bool runs_ahead() const noexcept {
    return !machine_.options().record && !machine_.measures();
  }
  [[nodiscard]] std::size_t slots() const noexcept { return in_flight_.slots(); }

  /// Enqueues the step that the machine has begun. If the machine has failed afterwards, nothing of
  /// the step is in flight: whatever was enqueued of it, and all earlier work, is done.
  void enqueue(std::size_t slot) noexcept {
    begin_step(slot);
    in_flight_.begin(slot);
    try {
      if (in_flight_.lost()) refuse();
      // A graph has no times of its own nodes.
      if (options_.capture && warm_ && machine_.program().training && !timed_) {
        replay();
      } else {
        graphs_.follow(false);
        enqueue_iteration();
        for (std::size_t g = 0; g < gpus_->size() && !machine_.failed(); ++g)
          streams_.record((*gpus_)[g].main_stream, streams_.end_of(slot, g));
        if (machine_.arguments().outputs.first != nullptr && !machine_.options().replicas.empty())
          join_outputs();
      }
    } catch (...) {
      if (decided_)
        in_flight_.lose(std::current_exception(), true);
      else
        fail(std::current_exception());
    }
    if (machine_.failed()) return call_off();
    in_flight_.went(decided_);
    warm_ = true;
  }

  /// Turns graphs on or off; all processes call it.
  /// @return counters of what is done with them
  /// @throws Error bad_configuration if shapes change
  GraphCounts const& capture(bool on) {
    if (on && options_.wires.shapes_change && gpus_->processes() != nullptr)
      raise(Errc::bad_configuration,
            "Gpus::shapes_change has processes wait for shapes in every step, which a graph "
            "cannot; leave it or capture out");
    options_.capture = on;
    return graphs_.counts();
  }

  /// Whether the devices are done with an iteration.
  [[nodiscard]] bool finished(std::size_t slot) const noexcept { return in_flight_.finished(slot); }

  /// Waits until the devices are done with an iteration. All earlier ones must have been awaited.
  /// @param step  its number for an error message; 0: it is not named
  /// @return the error with which it ended; null: it succeeded
  [[nodiscard]] std::exception_ptr await(std::size_t slot, std::int64_t step) noexcept {
    return in_flight_.await(slot, step);
  }

  /// The results of an iteration that succeeded.
  /// @param losses  [parts][microbatches] receives the losses that the devices have computed; may
  ///                be null
  /// @return the norm of the gradients
  double results(std::size_t slot, double* losses) const noexcept {
    if (losses != nullptr) gpus_->take_losses(slot, losses);
    std::size_t rank = 0;  // any of this process that updates
    while (rank + 1 < streams_.ranks() && !streams_.own(rank)) ++rank;
    return streams_.own(rank) ? (*gpus_)[streams_.gpu_of(rank)].iteration.gradient_norm(rank, slot)
                              : 0;
  }

  /// @throws Error  device, if parameters were lost
  void require_present() const {
    if (in_flight_.corrupted()) refuse();
  }

  /// Runs the step on a thread of its own and then resumes `then` there.
  bool start(std::coroutine_handle<> then) {
    caller_.ask(then, [this] { drive(); });
    return true;
  }

  /// Ends the step with an error; nothing further is enqueued. Any thread may call it.
  void fail(std::exception_ptr failure) noexcept { machine_.fail(std::move(failure)); }

  /// Sends the values and the optimizer state of every layer from the process that updates it. All
  /// processes call it.
  [[gnu::cold]] void gather_parameters(int) {
    if (gpus_->processes() == nullptr || place_.empty()) return;
    if (in_flight_.lost()) refuse();
    detail::gather_parameters(streams_, place_);
  }

 private:
  [[noreturn]] [[gnu::cold]] static void refuse() {
    raise(Errc::device,
          "a GPU or its communicator was lost in an earlier step; make a new pipeline");
  }

  void replay() {
    in_flight_.replays();
    graphs_.follow(true);
    auto* const processes = gpus_->processes();
    if (processes != nullptr && !processes->can_ask_any()) {
      if (auto const failure = in_flight_.wait_for_others()) std::rethrow_exception(failure);
      processes->prepare_any();
    }
    auto const& arguments = *machine_.ranks().front().arguments;
    if (graphs_.stale(slot_, arguments))
      record(arguments);
    else
      for (std::size_t g = 0; g < gpus_->size(); ++g) (*gpus_)[g].iteration.put(machine_, slot_);
    if (!machine_.commit()) return;
    try {
      graphs_.replay(slot_);
    } catch (...) {
      machine_.reopen();
      throw;
    }
    decided_ = true;
    streams_.insist();
    streams_.record((*gpus_)[0].main_stream, streams_.end_of(slot_, 0));
  }

  [[gnu::cold]] void record(stagger::detail::StepArguments const& arguments) {
    struct Reopen {  // it was recorded, not carried out
      GpusBackend* backend;
      ~Reopen() {
        backend->machine_.reopen();
        backend->decided_ = false;
      }
    } const reopen{this};
    graphs_.record(slot_, arguments, [&] {
      enqueue_iteration();
      if (machine_.failed()) raise(Errc::cancelled, "the step ended while its graph was recorded");
    });
  }

  /// Ends a step that could not be enqueued, and undoes it if it was not decided.
  [[gnu::cold]] void call_off() noexcept {
    if (!in_flight_.call_off(decided_)) return;
    try {
      undo();
      if (auto const failure = in_flight_.wait_for_all(machine_.options().deadline_s))
        std::rethrow_exception(failure);
      check(refused(), "take back a step");
    } catch (...) {
      in_flight_.lose(std::current_exception(), true);
    }
  }

  std::shared_ptr<List<stagger::detail::ParameterMemory>> memories_ =
      std::make_shared<List<stagger::detail::ParameterMemory>>();  // [GPUs]
  std::vector<int> place_;                                         // [ranks]
  detail::GraphCache graphs_;
  detail::InFlight in_flight_;
  bool warm_ = false;  // the program has run: its stages hold the memory that they need, and NCCL
                       // has its connections
  detail::Caller caller_;
};

}  // namespace stagger::cuda
