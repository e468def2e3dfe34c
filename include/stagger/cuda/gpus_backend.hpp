// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The back end for GPUs, on which every rank is a stream.

#include <stagger/core/requirements.hpp>

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <stagger/core/caller.hpp>
#include <stagger/cuda/detail/facts.hpp>
#include <stagger/cuda/detail/graph_cache.hpp>
#include <stagger/cuda/detail/group_sums.hpp>
#include <stagger/cuda/detail/host_exchange.hpp>
#include <stagger/cuda/detail/in_flight.hpp>
#include <stagger/cuda/detail/messages.hpp>
#include <stagger/cuda/detail/non_finite.hpp>
#include <stagger/cuda/detail/parameter_memory.hpp>
#include <stagger/cuda/detail/square_sums.hpp>
#include <stagger/engine/backend.hpp>

namespace stagger::cuda {

namespace detail {

/// Enqueues a step, which devices carry out or a graph records.
class Enqueuer {
 protected:
  Enqueuer(stagger::detail::Machine& machine, GpusOptions const& options,
           std::shared_ptr<GpuSet> gpus)
      : machine_(machine),
        options_(options),
        gpus_(std::move(gpus)),
        streams_(machine, gpus_),
        messages_(streams_, options.wires),
        square_sums_(streams_, options.kernels, non_finite_),
        group_sums_(streams_, options.kernels),
        exchange_(streams_),
        state_{machine},
        non_finite_(machine, options.ahead, gpus_->processes() != nullptr) {}
  Enqueuer(Enqueuer const&) = delete;
  Enqueuer& operator=(Enqueuer const&) = delete;
  ~Enqueuer() = default;

  /// Gives the iterations of each GPU their memory for the loaded program.
  [[gnu::cold]] void load_iterations(std::size_t slots) {
    int const processes = gpus_->processes() == nullptr ? 0 : gpus_->processes()->size();
    for (std::size_t g = 0; g < gpus_->size(); ++g) {
      gpus_->select(g);
      auto& gpu = (*gpus_)[g];
      gpu.iteration.load(machine_, options_.kernels, slots, processes,
                         gpu.sums.data() + machine_.model.parameter_count());
    }
  }

  /// Begins to enqueue an iteration, or to record it.
  void begin_step(std::size_t slot) noexcept {
    slot_ = slot;
    decided_ = false;
    non_finite_.begin(slot);
    streams_.begin_step(slot);
    messages_.begin_step();
    group_sums_.begin_step();
    if (exchange_.active()) exchange_.begin_step();
    timed_ = machine_.options().record || machine_.run.grouping_run.measures();
  }

  void enqueue_iteration() {
    if (gpus_->processes() != nullptr) machine_.traffic.measure_step();
    begin_iteration();
    issue();
    launch_updates();
    join();
  }

  /// Enqueues the work that restores what the iteration has changed.
  void undo() {
    for (std::size_t r = 0; r < streams_.ranks(); ++r) {
      if (!streams_.own(r)) continue;
      streams_.use(streams_.gpu_of(r));
      AtPlace const here(streams_.place_of(r));
      state_.undo(r);
    }
  }

  /// The error of a call that CUDA has refused twice, on any GPU, in a step that was decided.
  [[nodiscard]] cudaError_t refused() const noexcept {
    for (std::size_t g = 0; g < gpus_->size(); ++g)
      if (auto const result = (*gpus_)[g].iteration.refused(); result != cudaSuccess) return result;
    return cudaSuccess;
  }

  [[nodiscard]] double* losses() const noexcept {
    return machine_.ranks().front().arguments->losses;
  }

  stagger::detail::Machine& machine_;
  GpusOptions options_;
  std::shared_ptr<GpuSet> gpus_;
  Streams streams_;
  Messages messages_;
  SquareSums square_sums_;
  GroupSums group_sums_;
  HostExchange exchange_;
  DistributedState state_;
  NonFiniteSteps non_finite_;
  std::size_t slot_ = 0;  // of the iteration that is being enqueued, or was last
  bool timed_ = false;    // that iteration, by events
  bool decided_ = false;  // its updates are being enqueued

 private:
  struct Updating {
    stagger::detail::RankState* rank;  // null: of another process
    std::size_t number;
    Instruction const* in;
  };

  /// Whether processes must tell each other that they have reached the updates.
  [[nodiscard]] bool commits_together() const noexcept {
    return gpus_->processes() != nullptr && machine_.program().training &&
           machine_.program().flushes;
  }

  void begin_iteration() {
    updates_.clear();
    if (square_sums_.wanted() || commits_together()) square_sums_.clear();
    for (std::size_t g = 0; g < gpus_->size(); ++g) {
      streams_.use(g);
      auto& gpu = (*gpus_)[g];
      gpu.iteration.send(machine_, non_finite_, gpu.main_stream, slot_, streams_.first_on(g));
      if (timed_) gpu.timeline.begin(gpu.main_stream);
    }
    streams_.fork();
  }

  void issue() {
    auto& ranks = machine_.ranks();
    for (Issue const& issue : messages_.routes().order) {
      if (machine_.failed()) return;
      auto& rank = ranks[issue.rank];
      Instruction const& in = rank.begin[issue.index];
      if (reduces(in.op) && group_sums_.apart(in.cell)) add_up(issue.rank, in);
      if (streams_.own(issue.rank))
        execute(rank, issue.rank, in);
      else if (ends_step(in.op) && updates(in.op))
        updates_.push_back({nullptr, issue.rank, &in});
      messages_.give(issue, in);
    }
  }

  void add_up(std::size_t rank, Instruction const& in) {
    group_sums_.add_up(in, [&](std::size_t g, Stream const& stream, auto enqueue) {
      if (!timed_ || !group_sums_.measures(in)) return enqueue();
      streams_.use(g);
      (*gpus_)[g].timeline.action(rank, in, stream, [&] {
        enqueue();
        streams_.use(g);
      });
    });
  }

  void execute(stagger::detail::RankState& rank, std::size_t r, Instruction const& in) {
    messages_.await(rank, r, in);
    if (ends_step(in.op) && updates(in.op)) return updates_.push_back({&rank, r, &in});
    if (reduces(in.op) && group_sums_.apart(in.cell)) return group_sums_.await(r, in);
    if (exchanges(in.op)) return exchange_.reach(r, in);
    AtPlace const here(streams_.place_of(r, in));
    if (ends_step(in.op) && adds_up(in.op)) {
      messages_.await_gradients(r);
      stagger::detail::StepEnd{machine_.model, machine_.run}.finish(
          rank.number, (*gpus_)[streams_.gpu_of(r)].sums.data());
      if (exchange_.begins_early()) exchange_.make(r);
      return;
    }
    if (in.op == Op::apply && non_finite_.looks()) square_sums_.find_scale(r, in);
    if (options_.ranges.begin != nullptr) [[unlikely]]
      return announce(rank, r, in);
    carry_out(rank, r, in);
  }
  void carry_out(stagger::detail::RankState& rank, std::size_t r, Instruction const& in) try {
    if (!timed_ || !Timeline::shows(in)) return stagger::detail::carry_out(machine_, rank, in);
    (*gpus_)[streams_.gpu_of(r)].timeline.action(
        r, in, streams_.compute(r), [&] { stagger::detail::carry_out(machine_, rank, in); });
  } catch (...) {
    stagger::detail::note_thrown(rank, &in);
    throw;
  }
  [[gnu::cold]] void announce(stagger::detail::RankState& rank, std::size_t r,
                              Instruction const& in) {
    Range const range(options_.ranges, stagger::detail::describe(in).c_str());
    carry_out(rank, r, in);
  }

  /// Enqueues the updates after all calls that CUDA and NCCL may refuse. On the devices, too, they
  /// follow the work of all ranks of all processes.
  void launch_updates() {
    if (machine_.failed()) return;
    if (square_sums_.wanted() || commits_together()) square_sums_.share();
    for (auto const& [rank, r, in] : updates_)
      if (rank != nullptr && square_sums_.wanted()) square_sums_.find_scale(r);
    check(refused(), "change parameters");  // without a flush
    if (exchange_.active()) return exchange_.end(updates_, decided_);
    if (updates_.empty() || !machine_.commit()) return;
    decided_ = true;
    streams_.insist();
    for (auto const& [rank, r, in] : updates_) {
      if (rank != nullptr) {
        streams_.use(streams_.gpu_of(r));
        messages_.await_handing_in(r);
        AtPlace const here(streams_.place_of(r));
        machine_.execute_end(*rank, *in);
        group_sums_.update(r);
      }
      messages_.send_values(r);
    }
    group_sums_.take_values();
  }

  void join() {
    if (machine_.failed()) return;
    messages_.predicted().exchange();
    streams_.join();
    for (std::size_t g = 0; g < gpus_->size(); ++g) {
      auto& gpu = (*gpus_)[g];
      streams_.use(g);
      if (gpus_->processes() != nullptr && losses() != nullptr)
        gpus_->processes()->all_reduce(
            std::span(gpu.iteration.place(0).losses, gpu.iteration.loss_count()));
      streams_.ask([&] { return gpu.iteration.fetch(gpu.main_stream, slot_); },
                   "fetch the loss of a step");
    }
    check(refused(), "change parameters of a step that was decided");
  }

  std::vector<Updating> updates_;  // of this iteration, in the order of issue
};

}  // namespace detail

/// Enqueues the instructions of all ranks of this process from one thread, in the order of
/// `detail::Routes`. After the first step of a program it makes no event and allocates nothing, and
/// it synchronises only with the end of a step that is waited for.
///
/// `slot` is that of an iteration in flight, 0 to slots() - 1.
class GpusBackend : detail::Enqueuer {
 public:
  /// @throws Error for a GPU that does not exist or is named twice; deadline for processes that do
  ///         not arrive; mismatch for a process with another pipeline
  template <class Device>
  [[gnu::cold]] GpusBackend(Device const& device, stagger::detail::Machine& machine, int places)
      : Enqueuer(machine, device.options(), device.open(places, machine.options().deadline_s)),
        graphs_(streams_, options_.ahead, options_.counts),
        in_flight_(streams_, options_.ahead) {
    static_cast<void>(capture(options_.capture));
    for (std::size_t g = 0; g < gpus_->size(); ++g)
      memories_->push_back(detail::parameter_memory((*gpus_)[g].device));
    machine_.model.keep(memories_);
    if (gpus_->processes() == nullptr) return;
    machine_.traffic.by_back_end();
    gpus_->processes()->agree(detail::facts_of(machine_, options_));
    machine_.run.grouping_peers = group_sums_.peers();
  }
  GpusBackend(GpusBackend const&) = delete;
  GpusBackend& operator=(GpusBackend const&) = delete;
  ~GpusBackend() {
    in_flight_.await_all();  // no longer than the deadline
    if (!in_flight_.stuck()) return;
    // The devices may still run enqueued work, so it and its memory are kept.
    detail::leave_behind(streams_.streams());
    detail::leave_behind(std::move(gpus_));
    for (auto& memory : *memories_) memory.abandon();
    if (machine_.model.memory->device >= 0) machine_.model.device_memory.abandon();
    machine_.model.host_memory.abandon();
  }

  /// Prepares for a program that the machine has loaded, together with the other processes.
  [[gnu::cold]] void load(std::vector<int> const& places) {
    detail::require_runnable(machine_, options_.kernels, gpus_->processes() != nullptr);
    if (in_flight_.lost()) detail::refuse_lost();
    if (gpus_->processes() != nullptr)
      gpus_->processes()->agree(detail::facts_of(machine_, places));
    place_ = places;
    non_finite_.begin_period([](std::size_t) { return 0; });
    streams_.assign(places);
    group_sums_.connect(places);
    messages_.load(places);
    exchange_.load();
    streams_.load(messages_.routes(), slots());
    if (machine_.model.memory->device < 0) detail::settle_parameters(streams_, *memories_);
    group_sums_.load();
    square_sums_.load();
    graphs_.forget();
    warm_ = false;
    load_iterations(slots());
  }
  /// Compares what the processes are given, in the first step of a loaded program.
  void complete(stagger::detail::StepArguments const& step, double*) {
    if (step.outputs.first != nullptr) messages_.predicted().require();
    if (!warm_) detail::compare_batches(gpus_->processes(), machine_, options_, step);
  }

  /// Carries out the step that the machine has begun. Returns when every stream is done, or when
  /// the devices have not moved for the deadline.
  void drive() noexcept {
    if (!enqueue(0)) return;
    if (machine_.failed() || !exchange_.push_groups(in_flight_)) return call_off();
    if (done(0, 0)) return;
    try {
      if (timed_) gpus_->tell_times(machine_);
      machine_.gradient_norm(results(0, losses()));
      if (auto const failure = non_finite_.note(0, square_sums_.not_finite_anywhere(0), false)) {
        machine_.lose(failure);
        if (machine_.program().updates_early()) take_back();
      }
    } catch (...) {
      in_flight_.lose(std::current_exception(), decided_);
    }
    if (!exchange_.finish(in_flight_)) call_off();
  }

  /// A worker never runs ahead: the host waits for its parameter server in each step.
  [[nodiscard]] bool runs_ahead() const noexcept {
    return !machine_.options().record && !machine_.run.grouping_run.measures() &&
           machine_.exchange() == nullptr;
  }
  [[nodiscard]] std::size_t slots() const noexcept { return in_flight_.slots(); }

  /// Enqueues the step that the machine has begun.
  /// @return false: it has failed, and whatever was enqueued of it, and all earlier work, is done
  bool enqueue(std::size_t slot) noexcept {
    begin_step(slot);
    in_flight_.begin(slot);
    try {
      if (in_flight_.lost()) detail::refuse_lost();
      // A graph has no times of its own nodes.
      if (options_.capture && warm_ && machine_.program().training && !timed_) {
        replay();
      } else {
        graphs_.follow(false);
        enqueue_iteration();
        for (std::size_t g = 0; g < gpus_->size() && !machine_.failed(); ++g)
          streams_.record((*gpus_)[g].main_stream, streams_.end_of(slot, g));
        messages_.predicted().join(slot);
      }
    } catch (...) {
      if (decided_)
        in_flight_.lose(std::current_exception(), true);
      else
        fail(std::current_exception());
    }
    if (machine_.failed()) return call_off(), false;
    in_flight_.went(decided_);
    non_finite_.went(slot);
    graphs_.went(slot, in_flight_.replayed(slot));
    return warm_ = true;
  }

  /// Turns graphs on or off; all processes call it.
  /// @return counters of what is done with them
  /// @throws Error bad_configuration if shapes change
  GraphCounts const& capture(bool on) {
    detail::require_capture(on, options_, gpus_->processes() != nullptr,
                            machine_.exchange() != nullptr);
    options_.capture = on;
    return graphs_.counts();
  }

  /// Whether the devices are done with an iteration.
  [[nodiscard]] bool finished(std::size_t slot) const noexcept { return in_flight_.finished(slot); }

  /// Waits until the devices are done with an iteration. All earlier ones must have been awaited.
  /// @param step  its number for an error message; 0: it is not named
  /// @return the error with which it ended; null: it succeeded
  [[nodiscard]] std::exception_ptr await(std::size_t slot, std::int64_t step) noexcept {
    auto const failure = done(slot, step);
    return failure ? failure : non_finite_.note(slot, square_sums_.not_finite(slot), true);
  }

  /// The results of an iteration that succeeded.
  /// @param losses  [parts][microbatches] receives the losses that the devices have computed; may
  ///                be null
  /// @return the norm of the gradients
  double results(std::size_t slot, double* losses) const noexcept {
    if (losses != nullptr) {
      gpus_->take_losses(slot, losses);
      state_.leave_out_uncounted(losses);
    }
    return square_sums_.norm(slot);
  }
  /// How many updates an iteration has left out.
  [[nodiscard]] int skipped(std::size_t slot) const noexcept { return non_finite_.skipped(slot); }

  /// @throws Error  device, if parameters were lost
  void require_present() const {
    if (in_flight_.corrupted()) detail::refuse_lost();
  }

  /// Runs the step on a thread of its own and then resumes `then` there.
  bool start(std::coroutine_handle<> then) {
    caller_.ask(then, *this);
    return true;
  }
  /// Does not resume what `start` was given. Returns when the step is done.
  void withdraw() noexcept { caller_.withdraw(*this); }

  /// The step ends as soon as it can. Any thread may call it.
  void fail(std::exception_ptr failure) noexcept { machine_.fail(std::move(failure)); }

  /// Brings all parameters to all processes, which all call it.
  [[gnu::cold]] void gather_parameters(int) {
    if (gpus_->processes() == nullptr || place_.empty()) return;
    if (in_flight_.lost()) detail::refuse_lost();
    detail::gather_parameters(streams_, place_, group_sums_.loaded());
  }

 private:
  /// As `await`, whatever the gradients are.
  [[nodiscard]] std::exception_ptr done(std::size_t slot, std::int64_t step) noexcept {
    auto const failure = in_flight_.await(slot, step);
    if (in_flight_.lost()) graphs_.drop();
    return failure;
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
      for (std::size_t g = 0; g < gpus_->size(); ++g)
        (*gpus_)[g].iteration.put(machine_, non_finite_, slot_);
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
    bool const can_be_undone = in_flight_.call_off(decided_);
    graphs_.went(detail::Streams::none, false);
    if (in_flight_.lost()) graphs_.drop();
    if (!can_be_undone) return;
    non_finite_.begin_period([this](std::size_t slot) { return square_sums_.not_finite(slot); });
    take_back();
  }

  /// Restores what the current iteration has changed.
  [[gnu::cold]] void take_back() noexcept {
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
  bool warm_ = false;  // the program has run: stages have their memory, and NCCL its connections
  stagger::detail::Caller caller_;
};

}  // namespace stagger::cuda
