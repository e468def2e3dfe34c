// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The device axis: where the ranks of a pipeline run.
///
/// A device is a value that names its back end, the class that carries out programs: on threads, on
/// streams, in processes, in virtual time. `Pipeline::with` asks the device what it offers, and
/// makes one back end for the life of the trainer.
///
/// | device | ranks run | take it when |
/// |---|---|---|
/// | host::Threads{n} | on n threads of this process | the model computes on the CPU (the default, n = 1) |
/// | sim::VirtualClock{costs} | one after the other, timed by their costs | a schedule is to be compared, or a plan to be tested |
/// | cuda::Gpus{.devices = {0}} | on streams of one GPU, or of several GPUs of this process | there is a GPU |
/// | nccl::Gpus{...} | in several processes, each with a GPU | GPUs are on several machines |
/// | mpi::Processes{} | in processes, on several machines | one machine is not enough |
///
/// A back end, from the constructor to the last step. engine/backend.hpp has the concepts for the
/// functions that only some back ends have, and what is needed to write one:
///
/// | call | when | what it does |
/// |---|---|---|
/// | device.places(), and what a trait asks of a device | once, by `with` | how many ranks can run at a time, and what the trait says |
/// | Backend(device, machine, places) | once | keeps a reference to the machine, which outlives it |
/// | load(place) | before the first step of a program | `machine.program()` is the next to run; rank r runs at place[r] |
/// | drive() | each step that a thread waits for | runs all ranks to the end of the program, or until `fail` |
/// | start(then) | each step that a coroutine awaits | the same without holding the caller; false: it is done already, else resumes `then` |
/// | withdraw() noexcept | `start` has returned true, and the coroutine is gone; needed where it may | does not resume `then`; returns when the step is done, after `fail` |
/// | enqueue(slot) and the rest of RunsAhead | devices that run ahead: each step | hands the step to the device and returns |
/// | open(number, prepares), give_up(why) | devices of several processes: each request | all processes begin together, or none |
/// | complete(arguments, terms) | each request, before losses are weighed; needed with `open` | compares what the processes are given, and adds what only others know |
/// | begin(), drive_together() | devices that share a virtual time: each step | takes part; goes on until some step ends |
/// | capture(on) | devices that record graphs: when the user asks | later steps are recorded and replayed, or not |
/// | fail(why) | whenever anything throws, by any thread | the step ends as soon as it can; the first failure is told |
/// | ready, give, execute, stopping, timed | each instruction | what `go_on` needs; devices that enqueue have their own loop |
/// | gather_parameters(to) | devices whose parameters the host must fetch: when `Trainer::gather_parameters` or `each_parameter` is called | brings them to process `to`, below 0 to all |
/// | visit_parameters(to, visit) | devices that hold their own stages: all processes call it between steps | calls `visit` for each parameter in process `to`; returns whether that is this one |
///
/// The engine promises: one step at a time, or with `runs_ahead` as many as it has slots for;
/// `load` and `drive` never run at the same time; a program was checked before it is loaded;
/// steps after the first of a program allocate nothing. What a device can do beyond that is a
/// member of `traits`, which is checked against its functions if it has any.
///
/// In examples/15_own_device.cpp, with the back end:
/// @code
/// struct Logged {
///   using policy_tag = sg::DeviceTag;
///   using Backend = LoggingBackend;
///   static constexpr sg::DeviceTraits traits{};
///   std::string* log = nullptr;  ///< must outlive the pipeline
///   int places() const noexcept { return 1; }
/// };
/// @endcode
/// A type that lacks a member gets "stagger: not a DevicePolicy: it needs ...", its back end
/// "stagger: not a Backend: it needs ...", and a trait without its functions, or functions without
/// their trait, "stagger: DeviceTraits::captures is for back ends with ...".

#include <stagger/core/requirements.hpp>

#include <concepts>

#include <stagger/core/combinations.hpp>

namespace stagger {

/// Marks a device policy: `using policy_tag = stagger::DeviceTag;`.
struct DeviceTag {};

/// What a device can do: `static constexpr DeviceTraits traits{.obeys_placement = true};`.
struct DeviceTraits {
  /// Ranks run where the placement puts them; otherwise `with` refuses one.
  bool obeys_placement = false;
  /// A place without a rank is an error: places are processes.
  bool needs_every_place = false;
  /// `int spare_places(int ranks) const`: places left for adding up gradients.
  bool spare_places = false;
  /// `ParameterMemory parameter_memory() const`: where parameters lie.
  bool parameter_memory = false;
  /// `template <class Layers> void use_layers()`: is given the types of all layers.
  bool takes_layer_types = false;
  /// Runs optimizers whose update is a kernel.
  bool enqueues_updates = false;
  /// Adds up gradients of replicas, group by group, while backward runs.
  bool sums_while_running = false;
  /// Has collective::By::library: sums by a call of MPI or NCCL.
  bool sums_by_library = false;
  /// AllReduce::shard_optimizer: replicas with a memory each keep the optimizer's state of the part
  /// that they update.
  bool shards_states = false;
  /// VisitsParameters: a process holds the parameters of its own ranks alone.
  bool holds_own_stages = false;
  /// GathersParameters: parameters can be fetched to the host.
  bool gathers_parameters = false;
  /// RunsAhead: `enqueue` lets the host prepare steps while others run.
  bool runs_ahead = false;
  /// `capture(bool)`: records a step as a graph.
  bool captures = false;
  /// Sets Machine::outside: signals that no rank gives.
  bool outside_signals = false;
  /// SharesTime: steps of several pipelines run on one clock.
  bool shares_time = false;
  /// Runs groups of ranks that have a part of a layer each.
  bool shares_layers = false;
  /// StartsTogether: several processes begin and fail a step as one.
  bool starts_together = false;
};

namespace detail {
/// What a device can do, as the rules of core/combinations.hpp have it.
[[nodiscard]] constexpr Features device_features(DeviceTraits const& traits) noexcept {
  return Features{}
      .with(feature::obeys_placement, traits.obeys_placement)
      .with(feature::enqueues, traits.enqueues_updates)
      .with(feature::own_memory, traits.parameter_memory)
      .with(feature::shards_states, traits.shards_states)
      .with(feature::library_sums, traits.sums_by_library)
      .with(feature::signalled, traits.outside_signals)
      .with(feature::shares_layers, traits.shares_layers)
      .with(feature::own_stages, traits.holds_own_stages)
      .with(feature::virtual_time, traits.shares_time)
      .with(feature::captures, traits.captures)
      .with(feature::runs_ahead, traits.runs_ahead);
}
}  // namespace detail

/// A device policy: the part of the concept that `with` requires of the policy itself.
template <class D>
concept DevicePolicy = std::copyable<D> && std::same_as<typename D::policy_tag, DeviceTag> &&
                       requires(D const& device) {
                         typename D::Backend;
                         { D::traits } -> std::convertible_to<DeviceTraits>;
                         {
                           device.places()
                         } -> std::same_as<int>;  // for ranks; INT_MAX: as many as there are ranks
                       };

}  // namespace stagger
