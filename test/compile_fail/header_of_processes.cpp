// SPDX-License-Identifier: Apache-2.0
// mistake: policy: `mpi::Processes` without its header
// expect-error: incomplete type
// expect-error: // stagger: include <stagger/mpi/processes.hpp>
// errors: 1
// see: scaling.md
#include <stagger/stagger.hpp>

#include "half.hpp"

int main() { auto train = sg::Pipeline{Half{}, Half{}}.with(Distance{}, sg::mpi::Processes{}); }
