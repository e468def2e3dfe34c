// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A counter of all allocations of the program, which replaces `operator new` and
/// interposes `malloc`.
///
/// Include it in one translation unit of a program. It needs glibc, whose `malloc` has a second
/// name, `__libc_malloc`.

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace bench {

/// Calls since the start of the program, on all threads.
struct AllocationCounts {
  std::uint64_t operator_new = 0;
  std::uint64_t malloc = 0;  ///< with calloc etc., and the calls by `operator new`
};

namespace detail {
inline std::atomic<std::uint64_t> operator_new_calls{0};
inline std::atomic<std::uint64_t> malloc_calls{0};
}  // namespace detail

[[nodiscard]] inline AllocationCounts allocation_counts() {
  return {detail::operator_new_calls.load(), detail::malloc_calls.load()};
}

}  // namespace bench

extern "C" {

void* __libc_malloc(std::size_t) noexcept;
void* __libc_calloc(std::size_t, std::size_t) noexcept;
void* __libc_realloc(void*, std::size_t) noexcept;
void* __libc_memalign(std::size_t, std::size_t) noexcept;
void __libc_free(void*) noexcept;

void* malloc(std::size_t bytes) noexcept {
  ++bench::detail::malloc_calls;
  return __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) noexcept {
  ++bench::detail::malloc_calls;
  return __libc_calloc(count, bytes);
}
void* realloc(void* memory, std::size_t bytes) noexcept {
  ++bench::detail::malloc_calls;
  return __libc_realloc(memory, bytes);
}
void* memalign(std::size_t alignment, std::size_t bytes) noexcept {
  ++bench::detail::malloc_calls;
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
  return memalign(alignment, bytes);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) noexcept {
  *memory = memalign(alignment, bytes);
  return *memory == nullptr ? ENOMEM : 0;
}
void free(void* memory) noexcept { __libc_free(memory); }

}  // extern "C"

// The other forms of new and delete call these two.
void* operator new(std::size_t bytes) {
  ++bench::detail::operator_new_calls;
  if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  ++bench::detail::operator_new_calls;
  if (void* const memory = memalign(static_cast<std::size_t>(alignment), bytes == 0 ? 1 : bytes))
    return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
