// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Counts what C++ asks for in this program; MPI is written in C and not counted. Include it
///         in one translation unit. It needs a program without a sanitizer.

#include "sanitized.hpp"

#ifndef TEST_SANITIZED

#include <malloc.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

std::atomic<bool> counting{false};
std::atomic<long> allocations{0};    // while `counting` is on
std::atomic<std::size_t> in_use{0};  // bytes
std::atomic<std::size_t> peak{0};

void* counted(std::size_t size, std::size_t alignment) {
  if (counting) ++allocations;
  void* const memory =
      alignment <= alignof(std::max_align_t)
          ? std::malloc(size)
          : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  std::size_t const bytes = malloc_usable_size(memory);
  std::size_t const now = in_use.fetch_add(bytes) + bytes;
  for (std::size_t most = peak; most < now && !peak.compare_exchange_weak(most, now);) {
  }
  return memory;
}
void give_back(void* memory) noexcept {
  in_use -= malloc_usable_size(memory);
  std::free(memory);
}

/// By any thread.
template <class Body> long allocations_of(Body body) {
  allocations = 0;
  counting = true;
  body();
  counting = false;
  return allocations;
}

}  // namespace

void* operator new(std::size_t size) { return counted(size, 1); }
void* operator new[](std::size_t size) { return counted(size, 1); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return counted(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return counted(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { give_back(memory); }
void operator delete[](void* memory) noexcept { give_back(memory); }
void operator delete(void* memory, std::size_t) noexcept { give_back(memory); }
void operator delete[](void* memory, std::size_t) noexcept { give_back(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { give_back(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { give_back(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { give_back(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { give_back(memory); }

#endif
