// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The signals of a program that a parameter server gives: any thread counts them, and the
///         thread that runs the step reads the counts.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/program/program.hpp>

namespace stagger::mpi::detail {

class OutsideCounters {
 public:
  void load(Program const& program) {
    std::size_t const count = program.exchanges() ? program.cells.size() : 0;
    if (counters_.size() != count) counters_ = FixedArray<std::atomic<std::uint32_t>>(count);
    first_ = program.signals.size() - count;
  }
  /// Any thread.
  void give(std::uint32_t signal, std::uint32_t count) noexcept {
    counters_[signal - first_].store(count, std::memory_order_release);
  }
  /// @param given  [signals]
  void show(List<std::uint32_t>& given) const noexcept {
    for (std::size_t c = 0; c < counters_.size(); ++c)
      given[first_ + c] = counters_[c].load(std::memory_order_acquire);
  }
  [[nodiscard]] bool any() const noexcept { return counters_.size() != 0; }

 private:
  FixedArray<std::atomic<std::uint32_t>> counters_{};
  std::size_t first_ = 0;  // signal
};

}  // namespace stagger::mpi::detail
