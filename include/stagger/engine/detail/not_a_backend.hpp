// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The engine's requirements on a back end, and the compiler error for a device that cannot
///         work: it names the first member that is missing, or a trait that does not match its
///         functions.

#include <stagger/core/requirements.hpp>

#include <concepts>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <type_traits>
#include <vector>

#include <stagger/core/list.hpp>
#include <stagger/engine/device.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/engine/session.hpp>
#include <stagger/parameters/parameter_link.hpp>
#include <stagger/parameters/parameter_memory.hpp>

namespace stagger::detail {

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

/// A back end whose steps may share one virtual time with those of others, on one thread.
template <class B>
concept SharesTime = requires(B& backend) {
  { backend.begin() } noexcept;                        // the step takes part from now on
  { backend.drive_together() } -> std::same_as<bool>;  // StepOwner::drive_together
};
/// The same back end also gives a link to a parameter server that takes such time.
template <class B, class Device>
concept Carries = requires(Device const& device, std::shared_ptr<ParameterLink> const& link) {
  { B::carry(device, link) } -> std::convertible_to<std::shared_ptr<ParameterLink>>;
};

/// A back end that must fetch parameters before they are read on the host.
template <class B>
concept GathersParameters = requires(B& backend) {
  backend.gather_parameters(0);  // to this process; below 0: to all
};

/// A back end of processes that hold the parameters of their own ranks alone.
template <class B>
concept VisitsParameters = requires(B& backend, ParameterVisit const& visit) {
  // Calls `visit` for each parameter in process 0; whether that is this one.
  { backend.visit_parameters(0, visit) } -> std::same_as<bool>;
};

/// What is wrong with a device and its back end.
enum class BackendFault : std::uint8_t {
  none,
  constructor,
  load,
  drive,
  start,
  fail,
  spare,
  memory,
  layers,
  captures,
  ahead,
  together,
  gathers,
  visits,
  time
};

/// The members of a device and its back end.
template <class Device> struct BackendFacts {
  using B = typename Device::Backend;
  static constexpr DeviceTraits traits = Device::traits;

  static constexpr bool loads = requires(B& b, std::vector<int> const& place) { b.load(place); };
  static constexpr bool drives = requires(B& b) { b.drive(); };
  static constexpr bool starts = requires(B& b, std::coroutine_handle<> then) {
    { b.start(then) } -> std::same_as<bool>;
  };
  static constexpr bool fails = requires(B& b, std::exception_ptr why) {
    { b.fail(why) } noexcept;
  };
  static constexpr bool spare = requires(Device const& d) {
    { d.spare_places(1) } -> std::same_as<int>;
  };
  static constexpr bool memory = requires(Device const& d) {
    { d.parameter_memory() } -> std::same_as<ParameterMemory>;
  };
  static constexpr bool layers = requires(Device& d) { d.template use_layers<Layer>(); };
  static constexpr bool captures = requires(B& b) { b.capture(true); };
  static constexpr bool time =
      traits.shares_time ? SharesTime<B> && Carries<B, Device> : !SharesTime<B>;

  /// The first fault.
  static constexpr BackendFault fault =
      !std::is_constructible_v<B, Device const&, Machine&, int> ? BackendFault::constructor
      : !loads                                                  ? BackendFault::load
      : !drives                                                 ? BackendFault::drive
      : !starts                                                 ? BackendFault::start
      : !fails                                                  ? BackendFault::fail
      : spare != traits.spare_places                            ? BackendFault::spare
      : memory != traits.parameter_memory                       ? BackendFault::memory
      : layers != traits.takes_layer_types                      ? BackendFault::layers
      : captures != traits.captures                             ? BackendFault::captures
      : RunsAhead<B> != traits.runs_ahead                       ? BackendFault::ahead
      : StartsTogether<B> != traits.starts_together             ? BackendFault::together
      : GathersParameters<B> != traits.gathers_parameters       ? BackendFault::gathers
      : VisitsParameters<B> != traits.holds_own_stages          ? BackendFault::visits
      : !time                                                   ? BackendFault::time
                                                                : BackendFault::none;
};

template <class Device> struct NotABackend {
  template <BackendFault fault> static constexpr bool no = BackendFacts<Device>::fault != fault;
  static_assert(no<BackendFault::constructor>,
                "stagger: not a Backend: it needs a constructor that takes (Device const&, "
                "detail::Machine&, int places)");
  static_assert(no<BackendFault::load>,
                "stagger: not a Backend: it needs 'void load(std::vector<int> const& place)'");
  static_assert(no<BackendFault::drive>, "stagger: not a Backend: it needs 'void drive()'");
  static_assert(
      no<BackendFault::start>,
      "stagger: not a Backend: it needs 'bool start(std::coroutine_handle<> then)', false "
      "if the step is done already");
  static_assert(no<BackendFault::fail>,
                "stagger: not a Backend: it needs 'void fail(std::exception_ptr why) noexcept'");
  static_assert(no<BackendFault::spare>,
                "stagger: DeviceTraits::spare_places is for devices with 'int spare_places(int "
                "ranks) const'; this one has one without the other");
  static_assert(no<BackendFault::memory>,
                "stagger: DeviceTraits::parameter_memory is for devices with 'ParameterMemory "
                "parameter_memory() const'; this one has one without the other");
  static_assert(no<BackendFault::layers>,
                "stagger: DeviceTraits::takes_layer_types is for devices with 'template <class "
                "Layers> void use_layers()'; this one has one without the other");
  static_assert(no<BackendFault::captures>,
                "stagger: DeviceTraits::captures is for back ends with 'capture(bool)'; this one "
                "has one without the other");
  static_assert(no<BackendFault::ahead>,
                "stagger: DeviceTraits::runs_ahead is for back ends that are RunsAhead; this one "
                "is one without the other");
  static_assert(no<BackendFault::together>,
                "stagger: DeviceTraits::starts_together is for back ends that are StartsTogether; "
                "this one is one without the other");
  static_assert(no<BackendFault::gathers>,
                "stagger: DeviceTraits::gathers_parameters is for back ends with "
                "'gather_parameters(int to)'; this one has one without the other");
  static_assert(no<BackendFault::visits>,
                "stagger: DeviceTraits::holds_own_stages is for back ends with 'bool "
                "visit_parameters(int to, detail::ParameterVisit const& visit)'; this one has one "
                "without the other");
  static_assert(no<BackendFault::time>,
                "stagger: DeviceTraits::shares_time is for back ends with 'void begin() noexcept', "
                "'bool drive_together()' and a static 'carry(device, link)'; this one has some "
                "without the other");
};

}  // namespace stagger::detail
