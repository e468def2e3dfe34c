// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A thread that carries out the work which a coroutine awaits.

#include <stagger/core/requirements.hpp>

#include <atomic>
#include <coroutine>
#include <cstdint>
#include <exception>
#include <thread>
#include <utility>

namespace stagger::detail {

/// Carries out one piece of work at a time and resumes the coroutine that awaits it. The first one
/// starts the thread.
class Caller {
 public:
  Caller() = default;
  Caller(Caller const&) = delete;
  Caller& operator=(Caller const&) = delete;
  /// @pre  nothing is carried out
  ~Caller() {
    if (!thread_.joinable()) return;
    quit_.store(true);
    request();
    if (thread_.get_id() == std::this_thread::get_id()) {
      *gone_ = true;
      thread_.detach();
    } else {
      thread_.join();
    }
  }

  /// @param work  `drive()` is called, and `fail(why)` if that throws; always the same object
  template <class Work> void ask(std::coroutine_handle<> then, Work& work) {
    then_ = then;
    if (!thread_.joinable()) thread_ = std::thread([this, &work] { serve(work); });
    request();
  }

 private:
  void request() noexcept {
    requests_.fetch_add(1);
    requests_.notify_all();
  }
  template <class Work> void serve(Work& work) {
    for (std::uint32_t served = 0;;) {
      requests_.wait(served, std::memory_order_acquire);
      if (quit_.load(std::memory_order_acquire)) return;
      ++served;
      try {
        work.drive();
      } catch (...) {
        work.fail(std::current_exception());
      }
      bool gone = false;  // the coroutine may drop the last reference to this object
      gone_ = &gone;
      std::exchange(then_, nullptr).resume();
      if (gone) return;
    }
  }

  std::atomic<std::uint32_t> requests_{0};
  std::atomic<bool> quit_{false};
  std::coroutine_handle<> then_{};
  bool* gone_ = nullptr;  // on the stack of the thread, while the coroutine runs there
  std::thread thread_;
};

}  // namespace stagger::detail
