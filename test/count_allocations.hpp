// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Counts every allocation of a program, and its bytes. Include it in one translation unit. It needs glibc,
/// whose `malloc` has a second name, and no sanitizer; COUNTS_ALLOCATIONS says whether it counts.

#include "sanitized.hpp"

#include <atomic>
#include <cstddef>

#if defined(__GLIBC__) && !defined(TEST_SANITIZED)
#define COUNTS_ALLOCATIONS

// Every allocation of the process, by whatever name, while `counting` is on.
namespace {
std::atomic<bool> counting{false};
std::atomic<long> allocations{0};
std::atomic<std::size_t> allocated{0};  // bytes
void count(std::size_t bytes) noexcept {
  if (!counting.load(std::memory_order_relaxed)) return;
  allocations.fetch_add(1, std::memory_order_relaxed);
  allocated.fetch_add(bytes, std::memory_order_relaxed);
}
}  // namespace

extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t size) noexcept {
  count(size);
  return __libc_malloc(size);
}
void* calloc(std::size_t number, std::size_t size) noexcept {
  count(number * size);
  return __libc_calloc(number, size);
}
void* realloc(void* memory, std::size_t size) noexcept {
  count(size);
  return __libc_realloc(memory, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) noexcept {
  count(size);
  return __libc_memalign(alignment, size);
}
void* memalign(std::size_t alignment, std::size_t size) noexcept {
  count(size);
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t size) noexcept {
  count(size);
  *memory = __libc_memalign(alignment, size);
  return *memory == nullptr ? 12 : 0;
}
}

namespace {

template <class Body> long allocations_of(Body body) {
  allocations = 0;
  counting = true;
  body();
  counting = false;
  return allocations;
}
/// All bytes that were allocated, whether they were freed meanwhile or not.
template <class Body> [[maybe_unused]] std::size_t bytes_allocated_by(Body body) {
  allocated = 0;
  allocations_of(body);
  return allocated;
}

}  // namespace

#endif
