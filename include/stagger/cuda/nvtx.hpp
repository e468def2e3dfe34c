// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Ranges for NVIDIA's profilers (Nsight Systems), through the toolkit's header-only
/// NVTX 3.

#if !__has_include(<nvtx3/nvToolsExt.h>)
#error "stagger/cuda/nvtx.hpp needs NVTX 3: link stagger::cuda, or add the toolkit's include folder"
#endif
#include <nvtx3/nvToolsExt.h>

#include <stagger/cuda/ranges.hpp>

namespace stagger::cuda {

/// Every action as a range of the domain "stagger": cuda::Gpus{.ranges = cuda::nvtx_ranges()}.
[[nodiscard]] inline Ranges nvtx_ranges() {
  static nvtxDomainHandle_t const domain = nvtxDomainCreateA("stagger");
  Ranges ranges;
  ranges.begin = [](char const* name) {
    nvtxEventAttributes_t attributes{};
    attributes.version = NVTX_VERSION;
    attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
    attributes.message.ascii = name;
    nvtxDomainRangePushEx(domain, &attributes);
  };
  ranges.end = [] { nvtxDomainRangePop(domain); };
  return ranges;
}

}  // namespace stagger::cuda
