// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Instructions as host functions of a stream: where each finds what it does, and how they
/// end when their engine goes.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/program/program.hpp>

namespace stagger::cuda::detail {

/// Keeps something for as long as the process lasts, since a device may still use it.
inline void leave_behind(std::shared_ptr<void const> thing) {
  struct Left {
    std::shared_ptr<void const> thing;
    Left* next;
  };
  static std::atomic<Left*> all{nullptr};
  auto* const left = new Left{std::move(thing), all.load()};
  while (!all.compare_exchange_weak(left->next, left)) {
  }
}

/// One address for each instruction of a program, which a stream may be given again and again. A
/// device that hangs may come to them after the engine is gone: then they do nothing.
class Jobs {
 public:
  using Run = void (*)(void* engine, std::size_t rank, Instruction const& in) noexcept;

  Jobs(void* engine, Run run, Program const& program)
      : run_(run), engine_(engine), finished_(program.ranks.size()) {
    std::size_t count = 0;
    for (auto const& rank : program.ranks) {
      first_.push_back(count);
      count += rank.code.size();
    }
    jobs_.reserve(count);
    for (std::size_t r = 0; r < program.ranks.size(); ++r)
      for (std::size_t i = 0; i < program.ranks[r].code.size(); ++i)
        jobs_.push_back({this, &program.ranks[r].code[i], r, i + 1});
  }

  /// What a stream calls the `index`th instruction of a rank with.
  [[nodiscard]] void* job(std::size_t rank, std::size_t index) noexcept {
    return &jobs_[first_[rank] + index];
  }

  /// For cudaLaunchHostFunc.
  static void call(void* data) noexcept {
    auto const& job = *static_cast<Job const*>(data);
    Jobs& jobs = *job.jobs;
    jobs.inside_.fetch_add(1, std::memory_order_seq_cst);
    if (!jobs.dead_.load(std::memory_order_seq_cst)) {
      jobs.run_(jobs.engine_, job.rank, *job.in);
      jobs.finished_[job.rank].store(job.number, std::memory_order_relaxed);
    }
    jobs.inside_.fetch_sub(1, std::memory_order_release);
  }

  /// From now on no job does anything; those that are at it have ended when this returns.
  void end() noexcept {
    dead_.store(true, std::memory_order_seq_cst);
    while (inside_.load(std::memory_order_acquire) != 0) std::this_thread::yield();
  }

  void restart() noexcept {
    for (auto& finished : finished_) finished.store(0, std::memory_order_relaxed);
  }
  /// How many instructions of a rank are known to be done.
  [[nodiscard]] std::size_t finished(std::size_t rank) const noexcept {
    return finished_[rank].load(std::memory_order_relaxed);
  }
  void finished(std::size_t rank, std::size_t count) noexcept {
    if (count > finished(rank)) finished_[rank].store(count, std::memory_order_relaxed);
  }

 private:
  struct Job {
    Jobs* jobs;
    Instruction const* in;
    std::size_t rank;
    std::size_t number;  // counted from 1
  };
  Run run_;
  void* engine_;
  std::vector<std::size_t> first_;  // [ranks]
  std::vector<Job> jobs_;
  std::vector<std::atomic<std::size_t>> finished_;  // [ranks]
  std::atomic<bool> dead_{false};
  std::atomic<std::uint32_t> inside_{0};
};

}  // namespace stagger::cuda::detail
