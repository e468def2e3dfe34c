// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A function with a stack of its own, which can be left inside any call and gone on
///         with later: a worker that waits, on the one thread of a simulation.

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <cxxabi.h>
#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__)
#define FIBER_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FIBER_ADDRESS_SANITIZER 1
#endif
#endif
#ifdef FIBER_ADDRESS_SANITIZER
#include <sanitizer/common_interface_defs.h>
#endif

namespace lab {

class Fiber {
 public:
  /// @param body  lets no exception out
  explicit Fiber(std::function<void()> body) : body_(std::move(body)) {
    if (spare().empty()) {
      stack_ = std::make_unique<Stack>();
    } else {
      stack_ = std::move(spare().back());
      spare().pop_back();
    }
    getcontext(&own_);
    own_.uc_stack.ss_sp = stack_->bytes;
    own_.uc_stack.ss_size = sizeof(stack_->bytes);
    own_.uc_link = nullptr;
    makecontext(&own_, &Fiber::enter, 0);
  }
  Fiber(Fiber const&) = delete;
  Fiber& operator=(Fiber const&) = delete;
  /// @pre ended()
  ~Fiber() { spare().push_back(std::move(stack_)); }

  [[nodiscard]] bool ended() const noexcept { return ended_; }

  /// Goes on with it until it suspends or ends. @pre it does not run, and has not ended
  void resume() {
    Fiber* const before = std::exchange(running(), this);
    [[maybe_unused]] void* fake = nullptr;
    swap_exceptions();
#ifdef FIBER_ADDRESS_SANITIZER
    __sanitizer_start_switch_fiber(&fake, stack_->bytes, sizeof(stack_->bytes));
#endif
    swapcontext(&outside_, &own_);
#ifdef FIBER_ADDRESS_SANITIZER
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
    swap_exceptions();
    running() = before;
  }
  /// Of the one that runs.
  static void suspend() { running()->leave(false); }

 private:
  struct Stack {
    alignas(64) std::byte bytes[std::size_t{256} << 10U];
  };
  /// What the C++ runtime knows of exceptions that are being handled.
  struct Exceptions {
    void* caught = nullptr;
    unsigned uncaught = 0;
  };

  static Fiber*& running() {
    static Fiber* fiber = nullptr;
    return fiber;
  }
  static std::vector<std::unique_ptr<Stack>>& spare() {
    static std::vector<std::unique_ptr<Stack>> stacks;
    return stacks;
  }
  void swap_exceptions() {
    auto* const here = reinterpret_cast<std::byte*>(abi::__cxa_get_globals());
    Exceptions now;
    std::memcpy(&now.caught, here, sizeof(now.caught));
    std::memcpy(&now.uncaught, here + sizeof(now.caught), sizeof(now.uncaught));
    std::memcpy(here, &exceptions_.caught, sizeof(now.caught));
    std::memcpy(here + sizeof(now.caught), &exceptions_.uncaught, sizeof(now.uncaught));
    exceptions_ = now;
  }

  static void enter() {
    Fiber& self = *running();
#ifdef FIBER_ADDRESS_SANITIZER
    __sanitizer_finish_switch_fiber(nullptr, &self.bottom_, &self.bytes_);
#endif
    self.body_();
    self.ended_ = true;
    self.leave(true);
  }
  void leave([[maybe_unused]] bool for_ever) {
    [[maybe_unused]] void* fake = nullptr;
#ifdef FIBER_ADDRESS_SANITIZER
    __sanitizer_start_switch_fiber(for_ever ? nullptr : &fake, bottom_, bytes_);
#endif
    swapcontext(&own_, &outside_);
#ifdef FIBER_ADDRESS_SANITIZER
    __sanitizer_finish_switch_fiber(fake, &bottom_, &bytes_);
#endif
  }

  std::function<void()> body_;
  std::unique_ptr<Stack> stack_;
  ucontext_t own_{};
  ucontext_t outside_{};
  Exceptions exceptions_;
#ifdef FIBER_ADDRESS_SANITIZER
  void const* bottom_ = nullptr;  // of the stack that resumes it
  std::size_t bytes_ = 0;
#endif
  bool ended_ = false;
};

}  // namespace lab
