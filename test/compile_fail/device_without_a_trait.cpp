// SPDX-License-Identifier: Apache-2.0
// expect-error -DMISSING=spare_places: stagger: DeviceTraits::spare_places is for devices with
// expect-error -DMISSING=parameter_memory: stagger: DeviceTraits::parameter_memory is for devices with
// expect-error -DMISSING=takes_layer_types: stagger: DeviceTraits::takes_layer_types is for devices with
// expect-error -DMISSING=captures: stagger: DeviceTraits::captures is for back ends with
// expect-error -DMISSING=runs_ahead: stagger: DeviceTraits::runs_ahead is for back ends that are RunsAhead
// expect-error -DMISSING=starts_together: stagger: DeviceTraits::starts_together is for back ends that are StartsTogether
// expect-error -DMISSING=gathers_parameters: stagger: DeviceTraits::gathers_parameters is for back ends with
// expect-error -DMISSING=holds_own_stages: stagger: DeviceTraits::holds_own_stages is for back ends with
// expect-error -DMISSING=shares_time: stagger: DeviceTraits::shares_time is for back ends with
#include <stagger/stagger.hpp>

#include "whole_device.hpp"

int main() {
  auto train = sg::Pipeline{Half{}, Half{}}.with(Without<Part::none, Part::MISSING>{}, Distance{});
}
