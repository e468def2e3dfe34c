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
/// A back end, from the constructor to the last step (detail::Backend below, and engine/backend.hpp
/// to write one with):
///
/// | call | when | what it does |
/// |---|---|---|
/// | Backend(device, machine, places) | once | keeps a reference to the machine, which outlives it |
/// | load(place) | before the first step of a program | `machine.program()` is the next to run; rank r runs at place[r] |
/// | drive() | each step that a thread waits for | runs all ranks to the end of the program, or until `fail` |
/// | start(then) | each step that a coroutine awaits | the same without holding the caller; false: it is done already, else resumes `then` |
/// | begin(), drive_together() | devices that share a virtual time: each step | takes part; goes on until some step ends |
/// | fail(why) | whenever anything throws, by any thread | the step ends as soon as it can; the first failure is told |
/// | ready, give, execute, stopping | each instruction | what `advance` needs; devices that enqueue have their own loop |
///
/// The engine promises: one step at a time; `load` and `drive` never run at the same time; a
/// program was checked before it is loaded; steps after the first of a program allocate nothing.
/// What a device can do beyond that is a member of `traits`, and is checked against its functions.

#include <stagger/core/requirements.hpp>

#include <concepts>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <vector>

namespace stagger {

/// Marks a device policy: `using policy_tag = stagger::DeviceTag;`.
struct DeviceTag {};

/// What a device can do: `static constexpr DeviceTraits traits{.obeys_placement = true};`.
struct DeviceTraits {
  bool obeys_placement =
      false;  ///< ranks run where the placement puts them; otherwise `with` refuses one
  bool needs_every_place = false;  ///< a place without a rank is an error: places are processes
  bool spare_places =
      false;  ///< `int spare_places(int ranks) const`: places left for adding up gradients
  bool parameter_memory =
      false;  ///< `ParameterMemory parameter_memory() const`: where parameters lie
  bool takes_layer_types =
      false;  ///< `template <class Layers> void use_layers()`: is given the types of all layers
  bool enqueues_updates = false;  ///< runs optimizers whose update is a kernel
  bool sums_while_running =
      false;  ///< adds up gradients of replicas, group by group, while backward runs
  bool sums_by_library = false;  ///< has collective::By::library: sums by a call of MPI or NCCL
  bool shards_states = false;    ///< each rank keeps the optimizer's state of what it updates alone
  bool keeps_whole_states = false;  ///< cannot share the optimizer's state out
  bool holds_own_stages = false;    ///< a process holds the parameters of its own ranks alone
  bool gathers_parameters =
      false;                ///< GathersParameters: parameters must be fetched before they are read
  bool runs_ahead = false;  ///< RunsAhead: `enqueue` lets the host prepare steps while others run
  bool captures = false;    ///< `capture(bool)`: records a step as a graph
  bool outside_signals = false;  ///< sets Machine::outside: signals that no rank gives
  bool shares_time = false;      ///< SharesTime: steps of several pipelines run on one clock
  bool shares_layers = false;    ///< runs groups of ranks that have a part of a layer each
  bool starts_together = false;  ///< StartsTogether: several processes begin and fail a step as one
};

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

namespace detail {

/// The requirements of a session on every back end.
template <class B>
concept Backend = requires(B& backend, std::vector<int> const& place, std::coroutine_handle<> then,
                           std::exception_ptr failure) {
  backend.load(place);  // the machine's program is the next to run; rank r at place[r]
  backend.drive();      // runs a step to its end
  { backend.start(then) } -> std::same_as<bool>;  // the same on its own; false: done already
  { backend.fail(failure) } noexcept;             // by any thread, at any time
};

/// A back end that can have several steps in flight, each in one of the `slots()` of a ring, which
/// are numbered from 0.
template <class B>
concept RunsAhead = requires(B& backend, B const& seen, std::size_t slot, double* losses) {
  { seen.runs_ahead() } -> std::same_as<bool>;  // in the mode that was asked for
  { seen.slots() } -> std::same_as<std::size_t>;
  backend.enqueue(slot);
  { backend.finished(slot) } -> std::same_as<bool>;  // whether the device has finished that step
  { backend.await(slot, std::int64_t{}) } noexcept -> std::same_as<std::exception_ptr>;
  { seen.results(slot, losses) } -> std::same_as<double>;  // the norm of the gradients
  seen.require_present();                                  // throws where the device is lost
};

/// A back end of several processes, which begin each numbered request together.
template <class B>
concept StartsTogether = requires(B& backend, B const& seen, std::exception_ptr why) {
  backend.open(std::uint32_t{}, true);         // true: no step follows
  { backend.give_up(why) } noexcept;           // this process cannot; the others are told
  { seen.must_load() } -> std::same_as<bool>;  // whether the others may have loaded another program
};

/// A back end whose steps may share one virtual time with those of others, on one thread. It also
/// has `static carry(device, link)`, which gives a link to a parameter server that takes such time.
template <class B>
concept SharesTime = requires(B& backend) {
  { backend.begin() } noexcept;                        // the step takes part from now on
  { backend.drive_together() } -> std::same_as<bool>;  // StepOwner::drive_together
};

/// A back end that must fetch parameters before they are read on the host.
template <class B>
concept GathersParameters = requires(B& backend) {
  backend.gather_parameters(0);  // to this process; below 0: to all
};

}  // namespace detail
}  // namespace stagger
