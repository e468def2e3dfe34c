// SPDX-License-Identifier: Apache-2.0
// component: cuda
// expect-error -DHOLDER=Pinned: stagger: pinned memory holds trivially copyable elements
// expect-error -DHOLDER=Tensor: stagger: a Tensor holds trivially copyable elements
// accepted: -DHOLDER=Pinned -DELEMENT=float
// accepted: -DHOLDER=Tensor -DELEMENT=float
#include <stagger/cuda/memory.hpp>
#include <stagger/cuda/tensor.hpp>

#include <string>

#ifndef ELEMENT
#define ELEMENT std::string
#endif

int main() { stagger::cuda::HOLDER<ELEMENT> const held; }
