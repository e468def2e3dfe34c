// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A thread of the engine that carries out the steps which a coroutine awaits.

#include <stagger/core/requirements.hpp>

#include <atomic>
#include <coroutine>
#include <cstdint>
#include <thread>
#include <utility>

namespace stagger::cuda::detail {

/// Carries out one step at a time and resumes the coroutine that awaits it. The first step starts
/// the thread.
class Caller {
 public:
  Caller() = default;
  Caller(Caller const&) = delete;
  Caller& operator=(Caller const&) = delete;
  /// @pre  no step runs
  ~Caller() {
    if (!thread_.joinable()) return;
    quit_.store(true);
    requests_.fetch_add(1);
    requests_.notify_all();
    if (thread_.get_id() == std::this_thread::get_id()) {
      *gone_ = true;
      thread_.detach();
    } else {
      thread_.join();
    }
  }

  /// @param step  () noexcept; the same in every call
  template <class Step> void ask(std::coroutine_handle<> then, Step step) {
    then_ = then;
    if (!thread_.joinable()) thread_ = std::thread([this, step] { serve(step); });
    requests_.fetch_add(1);
    requests_.notify_all();
  }

 private:
  template <class Step> void serve(Step step) {
    for (std::uint32_t served = 0;;) {
      requests_.wait(served, std::memory_order_acquire);
      if (quit_.load(std::memory_order_acquire)) return;
      ++served;
      step();
      bool gone = false;  // the coroutine may drop the last reference to the engine
      gone_ = &gone;
      std::exchange(then_, nullptr).resume();
      if (gone) return;
    }
  }

  std::atomic<std::uint32_t> requests_{0};
  std::atomic<bool> quit_{false};
  std::coroutine_handle<> then_{};
  bool* gone_ = nullptr;
  std::thread thread_;
};

}  // namespace stagger::cuda::detail
