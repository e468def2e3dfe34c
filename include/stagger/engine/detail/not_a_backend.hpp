// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The compiler error for a device that cannot work: it names the first member that its
///         back end lacks, or a trait that does not match its functions.

#include <type_traits>

#include <stagger/core/list.hpp>
#include <stagger/engine/device.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/parameters/parameter_memory.hpp>

namespace stagger::detail {

/// The members of a device and its back end, as bools, since compilers explain every part of a
/// concept.
template <class Device> struct BackendFacts {
  using B = typename Device::Backend;
  static constexpr DeviceTraits traits = Device::traits;

  static constexpr bool made = std::is_constructible_v<B, Device const&, Machine&, int>;
  static constexpr bool loads = requires(B& b, std::vector<int> const& place) { b.load(place); };
  static constexpr bool drives = requires(B& b) { b.drive(); };
  static constexpr bool starts = requires(B& b, std::coroutine_handle<> then) {
    { b.start(then) } -> std::same_as<bool>;
  };
  static constexpr bool fails = requires(B& b, std::exception_ptr why) {
    { b.fail(why) } noexcept;
  };
  static constexpr bool runs = made && Backend<B>;

  static constexpr bool has_spare_places = requires(Device const& d) {
    { d.spare_places(1) } -> std::same_as<int>;
  };
  static constexpr bool has_memory = requires(Device const& d) {
    { d.parameter_memory() } -> std::same_as<ParameterMemory>;
  };
  static constexpr bool spare = has_spare_places == traits.spare_places;
  static constexpr bool memory = has_memory == traits.parameter_memory;
  static constexpr bool captures = requires(B& b) { b.capture(true); } == traits.captures;
  static constexpr bool ahead = RunsAhead<B> == traits.runs_ahead;
  static constexpr bool together = StartsTogether<B> == traits.starts_together;
  static constexpr bool gathers = GathersParameters<B> == traits.gathers_parameters;
  static constexpr bool time = SharesTime<B> == traits.shares_time;

  static constexpr bool fit =
      runs && spare && memory && captures && ahead && together && gathers && time;
};

template <class Device> struct NotABackend {
  using Has = BackendFacts<Device>;
  static constexpr bool made = Has::made, loads = Has::loads, drives = Has::drives,
                        starts = Has::starts, runs = Has::runs, spare = Has::spare,
                        memory = Has::memory, captures = Has::captures, ahead = Has::ahead,
                        together = Has::together;
  static_assert(made,
                "stagger: not a Backend: it needs a constructor that takes (Device const&, "
                "detail::Machine&, int places)");
  static_assert(!made || loads,
                "stagger: not a Backend: it needs 'void load(std::vector<int> const& place)'");
  static_assert(!made || !loads || drives, "stagger: not a Backend: it needs 'void drive()'");
  static_assert(
      !made || !loads || !drives || starts,
      "stagger: not a Backend: it needs 'bool start(std::coroutine_handle<> then)', false "
      "if the step is done already");
  static_assert(!made || !loads || !drives || !starts || runs,
                "stagger: not a Backend: it needs 'void fail(std::exception_ptr why) noexcept'");
  static_assert(!runs || spare,
                "stagger: DeviceTraits::spare_places is for devices with 'int spare_places(int "
                "ranks) const'; this one has one without the other");
  static_assert(!runs || !spare || memory,
                "stagger: DeviceTraits::parameter_memory is for devices with 'ParameterMemory "
                "parameter_memory() const'; this one has one without the other");
  static_assert(!runs || !spare || !memory || captures,
                "stagger: DeviceTraits::captures is for back ends with 'capture(bool)'; this one "
                "has one without the other");
  static_assert(
      !runs || !spare || !memory || !captures || ahead,
      "stagger: DeviceTraits::runs_ahead is for back ends that are RunsAhead; this one is "
      "one without the other");
  static_assert(!runs || !spare || !memory || !captures || !ahead || together,
                "stagger: DeviceTraits::starts_together is for back ends that are StartsTogether; "
                "this one is one without the other");
  static_assert(!runs || !spare || !memory || !captures || !ahead || !together,
                "stagger: DeviceTraits::gathers_parameters is for back ends that are "
                "GathersParameters; this one is one without the other");
  static_assert(!runs || !spare || !memory || !captures || !ahead || !together || !Has::gathers ||
                    Has::fit,
                "stagger: DeviceTraits::shares_time is for back ends that are SharesTime; this one "
                "is one without the other");
};

}  // namespace stagger::detail
