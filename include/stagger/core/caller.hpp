// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A thread that carries out the work which a coroutine awaits.

#include <stagger/core/requirements.hpp>

#include <atomic>
#include <coroutine>
#include <cstdint>
#include <exception>
#include <thread>

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
    then_.store(then.address());
    if (!thread_.joinable()) thread_ = std::thread([this, &work] { serve(work); });
    request();
  }

  /// The coroutine of the last `ask` is not resumed any more, unless that has begun. Returns when
  /// the work is done.
  template <class Work> void withdraw(Work& work) noexcept {
    if (then_.exchange(nullptr) == nullptr) return;
    if (thread_.get_id() == std::this_thread::get_id()) {  // it cannot wait for itself
      carry_out(work);
      return;
    }
    std::uint32_t const asked = requests_.load();
    for (std::uint32_t done = done_.load(); done != asked; done = done_.load()) done_.wait(done);
  }

 private:
  void request() noexcept {
    requests_.fetch_add(1);
    requests_.notify_all();
  }
  template <class Work> void serve(Work& work) {
    for (;;) {
      requests_.wait(done_.load(std::memory_order_relaxed), std::memory_order_acquire);
      if (quit_.load(std::memory_order_acquire)) return;
      void* const then = carry_out(work);
      if (then == nullptr) continue;  // withdrawn
      bool gone = false;              // the coroutine may drop the last reference to this object
      gone_ = &gone;
      std::coroutine_handle<>::from_address(then).resume();
      if (gone) return;
    }
  }
  /// @return  address of the coroutine to resume; null: it was withdrawn
  template <class Work> void* carry_out(Work& work) noexcept {
    try {
      work.drive();
    } catch (...) {
      work.fail(std::current_exception());
    }
    void* const then = then_.exchange(nullptr);  // before there may be a next one
    done_.fetch_add(1);
    done_.notify_all();
    return then;
  }

  std::atomic<std::uint32_t> requests_{0};
  std::atomic<bool> quit_{false};
  std::atomic<std::uint32_t> done_{0};  // of the requests
  std::atomic<void*> then_{nullptr};    // address of the coroutine that waits
  bool* gone_ = nullptr;  // on the stack of the thread, while the coroutine runs there
  std::thread thread_;
};

}  // namespace stagger::detail
