// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Host memory as a back end's, for parameters that have not been given to a GPU.

#include <cstddef>
#include <cstring>
#include <new>

#include <stagger/engine/parameter_memory.hpp>

namespace stagger::nccl::detail {

/// Parameters wait there until a program says where they are needed; those of stages that other
/// processes run stay. No step works on them.
[[nodiscard]] inline stagger::detail::ParameterMemory staging_memory() noexcept {
  using stagger::detail::ParameterMemory;
  ParameterMemory memory{};
  memory.device = -1;
  memory.allocate = [](ParameterMemory const&, std::size_t bytes) -> void* {
    void* const block = ::operator new(bytes, std::align_val_t{alignment_bytes});
    std::memset(block, 0, bytes);
    return block;
  };
  memory.release = [](ParameterMemory const&, void* block) noexcept {
    stagger::detail::AlignedDelete{}(block);
  };
  memory.upload = memory.download =
      memory.copy = [](ParameterMemory const&, void* to, void const* from, std::size_t bytes) {
        std::memcpy(to, from, bytes);
      };
  memory.zero = [](ParameterMemory const&, void* block, std::size_t bytes) noexcept {
    std::memset(block, 0, bytes);
  };
  memory.add = [](ParameterMemory const&, ElementType, void*, void const*, std::size_t) {};
  memory.sum_squares = [](ParameterMemory const&, ElementType, void const*, std::size_t, double*) {
  };
  return memory;
}

}  // namespace stagger::nccl::detail
