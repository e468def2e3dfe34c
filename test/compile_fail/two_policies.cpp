// SPDX-License-Identifier: Apache-2.0
// expect-error -DTWO=staleness: stagger: two staleness models; give at most one
// expect-error -DTWO=partition: stagger: two partitioners; give at most one
// expect-error -DTWO=collective: stagger: two collectives; give at most one
// expect-error -DTWO=placement: stagger: two placements; give at most one
// expect-error -DTWO=optimizer: stagger: two optimizers; give at most one
// expect-error -DTWO=loss: stagger: two losses; give at most one, which may add up several
// expect-error -DTWO=options: stagger: two Options; set all members of one
#include <stagger/stagger.hpp>

#include "half.hpp"

#include <stagger/collective/all_reduce.hpp>

auto staleness() { return sg::staleness::Synchronous{}; }
auto partition() { return sg::partition::Even{2}; }
auto collective() { return sg::collective::AllReduce<>{}; }
auto placement() { return sg::placement::InOrder{}; }
auto optimizer() { return sg::optimizer::Sgd{}; }
auto loss() { return Distance{}; }
auto options() { return sg::Options{}; }

int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(TWO(), TWO()); }
