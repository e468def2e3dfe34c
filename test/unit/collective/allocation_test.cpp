// SPDX-License-Identifier: Apache-2.0
#include <stagger/collective/in_process.hpp>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <vector>

#include "catch.hpp"
#include "sanitized.hpp"

using namespace stagger::collective;

#ifndef TEST_SANITIZED
namespace {
std::atomic<long> allocations{0};
void* counted(std::size_t size, std::size_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  void* const p =
      alignment <= alignof(std::max_align_t)
          ? std::malloc(size == 0 ? 1 : size)
          : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
}  // namespace

[[gnu::noinline]] void* operator new(std::size_t size) { return counted(size, 1); }
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment) {
  return counted(size, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  std::free(p);
}

TEST_CASE("collective/InProcess: nothing is allocated once every kind of call was made",
          "[collective]") {
  for (auto algorithm :
       {AllReduce::slices, AllReduce::ring, AllReduce::recursive_doubling, AllReduce::tree}) {
    auto world = InProcess{algorithm}.connect(4);
    std::vector<std::vector<float>> x(4, std::vector<float>(1000));
    auto const step = [&] {
      InProcessOperation ops[16];
      std::size_t n = 0;
      for (std::size_t r = 0; r < 4; ++r) {
        auto& c = world[r];
        auto const v = std::span(x[r]);
        ops[n++] = c.all_reduce(v);
        ops[n++] = c.broadcast(v, 1);
        ops[n++] = c.send(c.group(), v, static_cast<int>(r + 1) % 4);
        ops[n++] = c.receive(c.group(), v, static_cast<int>(r + 3) % 4);
      }
      for (bool done = false; !done;) {
        done = true;
        for (auto& op : ops) done = op.poll() && done;
      }
    };
    step();
    long const before = allocations.load();
    for (int i = 0; i < 20; ++i) step();
    CHECK(allocations.load() == before);
  }
}
#endif
