// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Ranges for NVIDIA's profilers (Nsight Systems), through the toolkit's header-only
/// NVTX 3.

#include <nvtx3/nvToolsExt.h>

#include <stagger/cuda/ranges.hpp>

namespace stagger::cuda {

/// Every action as a range of the domain "stagger": cuda::Gpus{.ranges = cuda::nvtx_ranges()}.
[[nodiscard]] inline Ranges nvtx_ranges() {
  struct Domain {
    static nvtxDomainHandle_t get() {
      static nvtxDomainHandle_t const domain = nvtxDomainCreateA("stagger");
      return domain;
    }
  };
  Ranges ranges;
  ranges.begin = [](char const* name) {
    nvtxEventAttributes_t attributes{};
    attributes.version = NVTX_VERSION;
    attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
    attributes.message.ascii = name;
    nvtxDomainRangePushEx(Domain::get(), &attributes);
  };
  ranges.end = [] { nvtxDomainRangePop(Domain::get()); };
  return ranges;
}

}  // namespace stagger::cuda
