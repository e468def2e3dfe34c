// SPDX-License-Identifier: Apache-2.0
// component: cuda
// expect-error -DRULE=Named: stagger: an enqueued optimizer is copied to the GPU: its rule must be trivially copyable, and its Launch without members
// expect-error -DLAUNCH=Counted: stagger: an enqueued optimizer is copied to the GPU: its rule must be trivially copyable, and its Launch without members
// accepted: -DRULE=Copied -DLAUNCH=Empty
#include <stagger/cuda/kernels.hpp>

#include <string>

namespace sg = stagger;

#ifndef RULE
#define RULE Copied
#endif
#ifndef LAUNCH
#define LAUNCH Empty
#endif

struct Copied : sg::optimizer::Sgd {};

struct Named : sg::optimizer::Sgd {
  std::string name;
};

struct Empty {
  template <class Update> cudaError_t operator()(Update const&, cudaStream_t) const {
    return cudaSuccess;
  }
};

struct Counted : Empty {
  int blocks = 0;
};

int main() { sg::cuda::Enqueued<RULE, LAUNCH> const optimizer{}; }
