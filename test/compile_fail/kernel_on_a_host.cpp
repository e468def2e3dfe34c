// SPDX-License-Identifier: Apache-2.0
// mistake: policy: an optimizer of kernels on threads
// expect-error: stagger: this optimizer updates by a kernel, which this device cannot run; give Pipeline::with a device of stagger/cuda
// expect-error -DWITH=on_one_device: stagger: this optimizer updates by a kernel, which a loop on the calling thread cannot run
// accepted: -DKERNEL=false
// see: policies.md#optimizer
#include <stagger/stagger.hpp>

#include "half.hpp"

#ifndef WITH
#define WITH with
#endif
#ifndef KERNEL
#define KERNEL true
#endif

struct Kernel : sg::optimizer::Sgd {
  static constexpr bool enqueues = KERNEL;
};

int main() { auto train = sg::Pipeline{Half{}, Half{}}.WITH(Kernel{}, Distance{}); }
