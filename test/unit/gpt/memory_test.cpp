// SPDX-License-Identifier: Apache-2.0
#include "model/model.hpp"

#include <atomic>
#include <cerrno>
#include <cstdlib>

#include <stagger/stagger.hpp>

#include "catch.hpp"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define GPT_TEST_SANITIZED
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
#define GPT_TEST_SANITIZED
#endif

namespace memory_test {

#ifndef GPT_TEST_SANITIZED  // sanitizers bring an allocator of their own

namespace {
std::atomic<long> allocations{0};
}

// Eigen calls malloc, not operator new, so that is where to count.
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t size) {
  ++allocations;
  return __libc_malloc(size);
}
void* calloc(std::size_t count, std::size_t size) {
  ++allocations;
  return __libc_calloc(count, size);
}
void* realloc(void* memory, std::size_t size) {
  ++allocations;
  return __libc_realloc(memory, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  ++allocations;
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t size) {
  ++allocations;
  *memory = __libc_memalign(alignment, size);
  return *memory == nullptr ? ENOMEM : 0;
}
}

TEST_CASE(
    "gpt/model: no step after the first allocates, with uneven microbatches, recomputation and "
    "products of "
    "all sizes",
    "[gpt]") {
  for (bool const recompute : {false, true})
    for (gpt::Index const width : {8, 128}) {
      INFO("width " << width << ", recompute " << recompute);
      auto train = stagger::Pipeline{gpt::make_model<float>({2, width, 4, 32}, 1)}.with(
          stagger::partition::Even{2}, stagger::schedule::OneFOneB{}, stagger::optimizer::AdamW{},
          gpt::CrossEntropy<float>{}, stagger::host::Threads{2},
          stagger::Options{.clip_norm = 1.0, .recompute = recompute, .record = true});
      stagger::Batch<gpt::Tokens, gpt::Tokens> batch;
      for (std::size_t sequences : {3U, 5U, 1U, 4U}) {
        gpt::Tokens tokens({sequences, 32});
        for (std::size_t i = 0; i < tokens.size(); ++i)
          tokens[i] = static_cast<std::uint8_t>(7 * i);
        batch.inputs.push_back(tokens);
        batch.targets.push_back(tokens);
      }
      (void)stagger::run(train.step(batch));
      long const before = allocations;
      REQUIRE(before > 0);
      double loss = 0;
      for (int step = 0; step < 3; ++step) loss = stagger::run(train.step(batch)).loss;
      CHECK(allocations - before == 0);
      CHECK(loss > 0);
    }
}

#endif

}  // namespace memory_test
