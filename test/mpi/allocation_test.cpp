// SPDX-License-Identifier: Apache-2.0
#include <stagger/mpi/processes.hpp>

#include <cstddef>
#include <cstdlib>
#include <new>
#include <utility>

#include <stagger/collective/grouped.hpp>
#include <stagger/collective/grouping/layerwise.hpp>
#include <stagger/engine/pipeline.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/schedule/chimera.hpp>
#include <stagger/schedule/gpipe.hpp>

#include "catch.hpp"
#include "engine/row_oracle.hpp"

using namespace small_model;

#ifndef TEST_SANITIZED

// What C++ asks for in this program while `counting` is on; MPI is written in C and not counted.
namespace {
bool counting = false;
long allocations = 0;
void* counted(std::size_t size, std::size_t alignment) {
  if (counting) ++allocations;
  void* const memory =
      alignment <= alignof(std::max_align_t)
          ? std::malloc(size)
          : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
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
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

TEST_CASE("mpi/Processes: later steps allocate nothing, whatever arrives when", "[mpi]") {
  using namespace sg::schedule;
  namespace collective = sg::collective;
  auto const count = [](Made const& schedule, int positions, sg::Replicas const& replicas,
                        bool clips) {
    sg::Options options;
    options.deadline_s = 600;  // processes that wait for long tell each other so
    options.replicas = replicas;
    if (clips) options.clip_norm = 0.1;
    auto train = sg::Pipeline{row_model::model()}.with(
        sg::partition::Even{positions * schedule.each}, schedule, Loss{}, sg::optimizer::AdamW{},
        sg::mpi::Processes{}, collective::Grouped<collective::grouping::Layerwise>{}, options);
    auto const data = row_model::batch(0, 4, 4, true);
    for (int step = 0; step < 3; ++step) sg::run(train.step(data));
    allocations = 0;
    counting = true;
    for (int step = 0; step < 25; ++step) sg::run(train.step(data));
    counting = false;
    CHECK(allocations == 0);
  };
  for (bool const clips : {false, true}) {
    count(made(OneFOneB{}), 4, {}, clips);
    count(made(GPipe{}), 4, {}, clips);
    count(made(OneFOneB{}), 2, {2, 2}, clips);
    count(made(GPipe{}), 2, {3, 1}, clips);
    count(made(Chimera{}), 4, {}, clips);
  }
}

#endif
