// SPDX-License-Identifier: Apache-2.0
// expect-error -DMISSING=constructor: stagger: not a Backend: it needs a constructor that takes \(Device const&, engine::Machine&, int places\)
// expect-error -DMISSING=load: stagger: not a Backend: it needs 'void load\(std::vector<int> const& place\)'
// expect-error -DMISSING=drive: stagger: not a Backend: it needs 'void drive\(\)'
// expect-error -DMISSING=fail: stagger: not a Backend: it needs 'void fail\(std::exception_ptr why\) noexcept'
// expect-error -DMISSING=parameter_memory: stagger: DeviceTraits::parameter_memory is for devices with 'ParameterMemory parameter_memory\(\) const'; this one has one without the other
// expect-error -DMISSING=takes_layer_types: stagger: DeviceTraits::takes_layer_types is for devices with 'template <class Layers> void use_layers\(\)'
// expect-error -DMISSING=captures: stagger: DeviceTraits::captures is for back ends with 'capture\(bool\)'; this one has one without the other
// expect-error -DMISSING=runs_ahead: stagger: DeviceTraits::runs_ahead is for back ends that are RunsAhead; this one is one without the other
// expect-error -DMISSING=starts_together: stagger: DeviceTraits::starts_together is for back ends that are StartsTogether; this one is one without the other
// expect-error -DMISSING=gathers_parameters: stagger: DeviceTraits::gathers_parameters is for back ends with 'gather_parameters\(int to\)'
// expect-error -DMISSING=holds_own_stages: stagger: DeviceTraits::holds_own_stages is for back ends with 'bool visit_parameters\(int to, engine::ParameterVisit const& visit\)'
// expect-error -DMISSING=shares_time: stagger: DeviceTraits::shares_time is for back ends with 'void begin\(\) noexcept', 'bool drive_together\(\)' and a static 'carry\(device, link\)'
// expect-error -DMISSING=carry: stagger: DeviceTraits::shares_time is for back ends with 'void begin\(\) noexcept', 'bool drive_together\(\)' and a static 'carry\(device, link\)'
// accepted: -DMISSING=none
#include <stagger/stagger.hpp>

#include "whole_device.hpp"

int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(Without<Part::MISSING>{}, Distance{}); }
