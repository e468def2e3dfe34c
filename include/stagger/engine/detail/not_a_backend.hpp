// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The compiler error for a device that cannot work: it names the first member that is
///         missing, or a trait that does not match its functions.

#include <stagger/core/requirements.hpp>

#include <concepts>
#include <coroutine>
#include <cstdint>
#include <exception>
#include <type_traits>
#include <vector>

#include <stagger/engine/backend.hpp>
#include <stagger/engine/device.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/parameters/parameter_memory.hpp>

namespace stagger::detail {

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
                "engine::Machine&, int places)");
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
                "visit_parameters(int to, engine::ParameterVisit const& visit)'; this one has one "
                "without the other");
  static_assert(no<BackendFault::time>,
                "stagger: DeviceTraits::shares_time is for back ends with 'void begin() noexcept', "
                "'bool drive_together()' and a static 'carry(device, link)'; this one has some "
                "without the other");
};

}  // namespace stagger::detail
