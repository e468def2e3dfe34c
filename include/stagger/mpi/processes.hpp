// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The device that runs the ranks of one pipeline in several processes, over an existing
///         MPI.

#include <stagger/core/requirements.hpp>

#include <algorithm>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/engine/session.hpp>
#include <stagger/engine/setup.hpp>
#include <stagger/mpi/detail/agreement.hpp>
#include <stagger/mpi/detail/batch_parts.hpp>
#include <stagger/mpi/detail/channels.hpp>
#include <stagger/mpi/detail/exchange.hpp>
#include <stagger/mpi/detail/gradient_sums.hpp>
#include <stagger/mpi/detail/message_codec.hpp>
#include <stagger/mpi/detail/owners.hpp>
#include <stagger/mpi/detail/placement.hpp>
#include <stagger/mpi/detail/routes.hpp>
#include <stagger/mpi/detail/step_run.hpp>
#include <stagger/mpi/session.hpp>

namespace stagger::mpi {

/// Runs the ranks of this process, and makes the agreements of all processes before and between
/// steps.
class ProcessesBackend {
 public:
  /// Connects with the other processes.
  /// @throws Error mismatch if they have another pipeline, naming the first difference; deadline
  ///         for processes that do not arrive; bad_configuration for a deadline that is not above 0
  template <class Device>
  ProcessesBackend(Device const& device, stagger::detail::Machine& machine, int places)
      : codec_{machine, device.ports, device.port_count},
        machine_(machine),
        join_deadline_s_(stagger::detail::require_deadline("Processes::join_deadline_s",
                                                           device.join_deadline_s)),
        world_(detail::callable(device.processes, device.places(), places), join_deadline_s_),
        channels_(detail::duplicate(device.processes, join_deadline_s_)),
        sent_(machine, channels_),
        parts_(machine,
               {device.contents, device.tells_inputs, device.check_batches, device.own_rows}),
        steps_(codec_, channels_, sums_, sent_, parts_) {
    machine.outside({this,
                     [](void* self, std::uint32_t signal, std::uint32_t count) noexcept {
                       static_cast<ProcessesBackend*>(self)->steps_.outside().give(signal, count);
                     },
                     [](void* self, std::exception_ptr why) noexcept {
                       static_cast<ProcessesBackend*>(self)->fail(std::move(why));
                     }});
    auto facts = detail::facts_of(codec_);
    facts.push_back({"Processes::own_rows", device.own_rows ? "true" : "false"});
    detail::agree(world_, facts, join_deadline_s_);
    if (channels_.size() == 1) return;
    machine_.run.grouping_peers = grouping_.peers();
  }
  ProcessesBackend(ProcessesBackend const&) = delete;
  ProcessesBackend& operator=(ProcessesBackend const&) = delete;

  /// Opens the round of a requested step, or of the preparation of one.
  /// @param number  of the round: each process counts the requests, including those that fail
  void open(std::uint32_t number, bool prepares = false) noexcept {
    prepares_ = prepares;
    steps_.open(number);
  }
  /// Called if the round cannot begin here: tells the others, which would wait for this process.
  void give_up(std::exception_ptr const& why) noexcept {
    must_load_ = true;
    if (!steps_.round().told()) steps_.round().tell(why);
  }
  /// Whether all processes must load their program again, as after a failure.
  [[nodiscard]] bool must_load() const noexcept { return must_load_; }

  /// Prepares for a program that the machine has loaded, together with the other processes.
  /// @param process_of  [ranks]
  void load(std::vector<int> const& process_of) {
    auto const& program = machine_.program();
    wanted_.assign(process_of, channels_.size(), channels_.rank());
    // The deadline is shorter after a failed step, since the others then answer soon or not at all.
    bool const again = must_load_ && !placement_.empty();
    double const join_deadline_s =
        again ? std::min(join_deadline_s_, machine_.options().deadline_s) : join_deadline_s_;
    must_load_ = true;
    codec_.edges.require_portable(process_of.data());
    if (program.training && channels_.size() > 1)
      stagger::detail::require_numbers(machine_.optimizer_digest());
    parts_.load(wanted_);
    owners_.allocate(codec_, wanted_);
    steps_.round().agree_on_load(world_, wanted_, prepares_, join_deadline_s);
    std::swap(placement_, wanted_);
    owners_.move(world_, codec_, placement_);
    sums_.load(codec_, placement_, world_, join_deadline_s);
    steps_.load(placement_);
    machine_.runs(placement_.runs_here());
    must_load_ = false;
  }

  /// Checks that this process is given what its ranks read, and adds what only the others know.
  /// @param terms  [microbatches] of the targets that are given
  void complete(stagger::detail::StepArguments& step, double* terms) {
    parts_.require(step);
    if (channels_.size() > 1 && parts_.shares_rows()) steps_.round().exchange_parts(step, terms);
  }

  /// Runs the ranks of this process in the step that the machine has begun. Returns when all ranks
  /// of all processes have finished, or when the step has failed.
  void drive() {
    must_load_ = !steps_.run();
    sent_.count_rest(placement_);
  }
  bool start(std::coroutine_handle<>) {
    drive();
    return false;
  }
  /// Ends the step with an error, unless this process has voted not to. Any thread may call it.
  void fail(std::exception_ptr failure) noexcept { steps_.fail(std::move(failure)); }

  /// Sends the values and the optimizer state of every layer from the process that updates it. All
  /// processes call it.
  /// @param to  the process that receives them; -1, or with sharded optimizer state: every process
  void gather_parameters(int to) { owners_.gather(world_, codec_, placement_, to); }
  /// Shows all parameters in one process, one after the other. All processes call it.
  bool visit_parameters(int to, stagger::detail::ParameterVisit const& visit) {
    return owners_.visit(world_, codec_, placement_, to, visit);
  }

 private:
  detail::MessageCodec codec_;
  stagger::detail::Machine& machine_;
  double join_deadline_s_;
  detail::Exchange world_;     // for agreements outside of steps
  detail::Channels channels_;  // for steps
  detail::LibrarySums sums_{};
  detail::SentCounts sent_;
  detail::BatchParts parts_;
  detail::StepRun steps_;
  detail::Placement placement_{};
  detail::GroupingAgreement grouping_{world_, sums_, machine_, placement_};
  detail::Placement wanted_{};  // of the program that is being loaded
  detail::Owners owners_{};
  bool prepares_ = false;  // instead of taking a step
  bool must_load_ = true;
};

/// Device policy: the ranks are distributed over the processes that mpirun or Slurm has started.
/// Each process runs its ranks on the thread that takes the step.
///
/// Every process makes the same pipeline and takes the same steps with the same batches, of which it
/// may leave out what its ranks do not read: see Batch. A step that one process cannot begin, or
/// that processes begin differently, fails in all of them; all can then take the next one. A process
/// keeps the parameters of its own stages up to date; see Trainer::gather_parameters. Values that go
/// from stage to stage must be Portable. MPI must be running while the pipeline lives: see Session.
///
/// @code
///     mpi::Session const session;
///     auto train = Pipeline{...}.with(schedule::OneFOneB{}, mpi::Processes{});   // mpirun -n 4
/// @endcode
struct Processes {
  using policy_tag = DeviceTag;
  using Backend = ProcessesBackend;
  static constexpr DeviceTraits traits{.obeys_placement = true,
                                       .needs_every_place = true,
                                       .takes_layer_types = true,
                                       .sums_while_running = true,
                                       .sums_by_library = true,
                                       .shards_states = true,
                                       .holds_own_stages = true,
                                       .gathers_parameters = true,
                                       .outside_signals = true,
                                       .shares_layers = true,
                                       .starts_together = true};
  static_assert(stagger::detail::device_features(traits) == stagger::detail::feature::of_processes);

  MPI_Comm processes = MPI_COMM_WORLD;  ///< duplicated; never used for messages itself
  double join_deadline_s = 60;  ///< > 0: for all processes to make the pipeline, or to lay out a
                                ///< program
  /// Whether steps, evaluations and predictions fail if processes are given different batches, or,
  /// with own_rows, the same inputs for different rows. What is compared are digests of numbers,
  /// tensors, vectors and types with `fields()`; of other types the sizes.
  bool check_batches = true;
  /// Whether a process is given only the rows that its own replicas work on (Options::replicas):
  /// in the order of replicas, they are a microbatch. Costs a message to each process per step.
  bool own_rows = false;

  /// How many places a placement policy may spread the ranks over: the processes. By default
  /// process p of P runs the ranks from p N / P on.
  /// @throws Error bad_configuration if MPI is not running
  [[nodiscard]] int places() const {
    require_callable();
    int size = 0;
    MPI_Comm_size(processes, &size);
    return size;
  }

  /// `Pipeline::with` names the types of all layers here, so that the device knows what it sends.
  template <class Layers> void use_layers() noexcept {
    ports = detail::PortTypes<Layers>::table;
    port_count = detail::PortTypes<Layers>::count;
  }
  /// Likewise the types of a batch.
  template <class Input, class Target> void use_batches() noexcept {
    contents = stagger::detail::batch_contents<Input, Target>;
    tells_inputs = stagger::detail::has_content<Input>;
  }
  detail::PortType const* ports = nullptr;
  std::size_t port_count = 0;
  stagger::detail::BatchContents contents{};
  bool tells_inputs = false;  // whether digests of inputs say all that these contain
};

}  // namespace stagger::mpi

#ifdef STAGGER_SEPARATE_COMPILATION_MPI
namespace stagger::detail {
extern template std::shared_ptr<Session> make_session(mpi::Processes const&, List<Layer>, Setup&);
}
#else
#include <stagger/engine/make_session.hpp>
#endif
