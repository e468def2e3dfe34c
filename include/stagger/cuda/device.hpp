// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The selection of a GPU, which fails if there is none or too little memory.

#include <cstddef>
#include <cstdint>
#include <string>

#include <stagger/cuda/error.hpp>

namespace stagger::cuda {

/// The properties of a GPU.
struct DeviceInfo {
  int index = 0;
  std::string name;
  int compute_capability = 0;  ///< 10 * major + minor
  int multiprocessors = 0;
  std::uint64_t free_bytes = 0;
  std::uint64_t total_bytes = 0;
};

/// The memory of a device that a run needs. With zeros nothing is checked.
struct MemoryNeed {
  std::uint64_t fixed_bytes = 0;      ///< parameters, optimizer state, workspaces
  std::uint64_t in_flight_bytes = 0;  ///< of one microbatch in flight
  int in_flight = 0;                  ///< most microbatches in flight at once
};

/// Number of GPUs that this process may use.
/// @throws Error  without a driver, without a GPU, or with a driver older than the toolkit this was
///                built with
[[nodiscard]] [[gnu::cold]] inline int device_count() {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
    raise(cudaErrorInsufficientDriver,
          "there is no CUDA driver on this machine: install NVIDIA's, or use host::Threads");
  int count = 0;
  cudaError_t const result = cudaGetDeviceCount(&count);
  if (result == cudaErrorInsufficientDriver) {
    static_cast<void>(cudaGetLastError());
    raise(result, "the CUDA driver supports version ", driver / 1000, ".", driver % 1000 / 10,
          " and this program was built for ", CUDART_VERSION / 1000, ".",
          CUDART_VERSION % 1000 / 10, ": update the driver, or build with an older toolkit");
  }
  if (result == cudaErrorNoDevice || (result == cudaSuccess && count == 0)) {
    static_cast<void>(cudaGetLastError());
    raise(cudaErrorNoDevice,
          "there is a CUDA driver but no GPU that this process may use: look at "
          "CUDA_VISIBLE_DEVICES, or use host::Threads");
  }
  check(result, "count the GPUs");
  return count;
}

/// Selects a GPU for the calling thread, after checking whether it is sufficient.
/// @param index  0 <= index < device_count()
/// @throws Error               as device_count()
/// @throws stagger::Error      bad_configuration for an index out of range, or if `need` exceeds
///                             the free memory; the text says what is needed, what is free, and
///                             what would fit
[[gnu::cold]] inline DeviceInfo select_device(int index, MemoryNeed const& need = {}) {
  int const count = device_count();
  if (index < 0 || index >= count)
    raise(Errc::bad_configuration, "there is no GPU ", index, "; this process may use 0 to ",
          count - 1);
  check(cudaSetDevice(index), "select a GPU");
  DeviceInfo info;
  info.index = index;
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index), "read the properties of a GPU");
  info.name = properties.name;
  info.compute_capability = properties.major * 10 + properties.minor;
  info.multiprocessors = properties.multiProcessorCount;
  std::size_t free = 0;
  std::size_t total = 0;
  check(cudaMemGetInfo(&free, &total), "read how much memory is free");
  info.free_bytes = free;
  info.total_bytes = total;
  auto const flying = static_cast<std::uint64_t>(need.in_flight);
  std::uint64_t const needed = need.fixed_bytes + flying * need.in_flight_bytes;
  if (needed <= info.free_bytes) return info;
  std::string fits = "not even the parameters fit; use more stages";
  if (need.in_flight_bytes > 0 && need.fixed_bytes + need.in_flight_bytes <= info.free_bytes)
    fits = text("it fits with ",
                counted((info.free_bytes - need.fixed_bytes) / need.in_flight_bytes, "microbatch"),
                " in flight or fewer");
  else if (need.fixed_bytes <= info.free_bytes)
    fits = "not one microbatch in flight fits; use smaller ones, more stages or recompute";
  raise(Errc::bad_configuration, "GPU ", index, " (", info.name, ") needs ", sized(needed), ": ",
        sized(need.fixed_bytes), " and ", need.in_flight, " x ", sized(need.in_flight_bytes),
        " in flight; free are ", sized(info.free_bytes), " of ", sized(info.total_bytes), "; ",
        fits);
}

}  // namespace stagger::cuda
