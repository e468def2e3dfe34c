// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Steps in programs that run on Boost.Asio: awaited on an executor, cancelled by signals,
/// timers and slots.

#if !__has_include(<boost/asio/async_result.hpp>)
#error \
    "stagger/host/asio.hpp needs Boost.Asio: link stagger::host, or find_package(stagger COMPONENTS host)"
#endif

#include <stagger/core/requirements.hpp>

#include <chrono>
#include <coroutine>
#include <exception>
#include <initializer_list>
#include <memory>
#include <optional>
#include <utility>

#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/prefer.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>

#include <stagger/core/stop_token.hpp>
#include <stagger/engine/step.hpp>

namespace stagger::detail {

/// A coroutine that nobody awaits and that destroys itself at its end.
struct Detached {
  struct promise_type {
    Detached get_return_object() noexcept { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() noexcept {}
    void unhandled_exception() { throw; }  // nothing in it throws once the step has begun
  };
};

/// Awaits a step on the engine's threads, even if the calling thread could run it.
struct OnEngineThreads {
  explicit OnEngineThreads(Step& awaited) : step(awaited) {}
  Step& step;
  bool await_ready() const noexcept { return false; }
  bool await_suspend(std::coroutine_handle<> then) const { return step.start(then); }
  Metrics await_resume() const { return step.await_resume(); }
};

template <class Executor, class Handler>
Detached carry_through(Step step, Executor executor, Handler handler) {
  Metrics metrics;
  std::exception_ptr failure;
  OnEngineThreads awaited(step);
  try {
    metrics = co_await awaited;
  } catch (...) {
    failure = std::current_exception();
  }
  // Both in one function: an executor with several threads could run the second of two functions
  // first, and the handler may assign another operation's cancellation to the slot, or destroy the
  // slot.
  boost::asio::post(executor, [handler = std::move(handler), failure, metrics]() mutable {
    auto slot = boost::asio::get_associated_cancellation_slot(handler);
    if (slot.is_connected()) slot.clear();
    std::move(handler)(failure, metrics);
  });
}

}  // namespace stagger::detail

namespace stagger::host {

/// Runs a step on the engine's threads and completes on the handler's executor:
///
///     Metrics m = co_await host::async_run(train.step(batch), boost::asio::use_awaitable);
///
/// The completion signature is void(std::exception_ptr, Metrics). The executor's threads stay free
/// meanwhile. As with any operation that completes from another thread, join the executor's context
/// (`thread_pool::join`, the threads in `io_context::run`) before it is destroyed.
///
/// Any type of Asio's cancellation ends the step with Error(cancelled), besides the token that the
/// step was made with.
template <class CompletionToken> auto async_run(Step step, CompletionToken&& token) {
  return boost::asio::async_initiate<CompletionToken, void(std::exception_ptr, Metrics)>(
      [](auto handler, Step begun) {
        auto const executor = boost::asio::prefer(boost::asio::get_associated_executor(handler),
                                                  boost::asio::execution::outstanding_work.tracked);
        auto slot = boost::asio::get_associated_cancellation_slot(handler);
        if (slot.is_connected()) {
          stagger::stop_source source;
          auto stop = [source]() mutable { source.request_stop(); };
          auto chained =
              std::make_shared<stagger::stop_callback<decltype(stop)>>(begun.stop_token(), stop);
          begun.stop_token(source.get_token());
          slot.assign([stop, chained](boost::asio::cancellation_type) mutable { stop(); });
        }
        stagger::detail::carry_through(std::move(begun), executor, std::move(handler));
      },
      token, std::move(step));
}

/// Requests a stop when a signal of the operating system arrives or a time has passed:
///
///     host::StopOn stop(context.get_executor(), {SIGINT, SIGTERM});
///     run(train.step(batch, stop.token()));
///
/// The executor must be run meanwhile, and its context must outlive this object.
template <class Executor> class StopOn {
 public:
  /// @throws boost::system::system_error  for a signal that cannot be caught
  StopOn(Executor const& executor, std::initializer_list<int> signals)
      : signals_(executor), timer_(executor) {
    for (int const signal : signals) signals_.add(signal);
    signals_.async_wait([source = source_](auto error, int) mutable {
      if (!error) source.request_stop();
    });
  }

  /// Requests the stop when so much time has passed, unless a signal has done so before.
  void after(std::chrono::steady_clock::duration time) {
    timer_.expires_after(time);
    timer_.async_wait([source = source_](auto error) mutable {
      if (!error) source.request_stop();
    });
  }

  /// Stops waiting for signals and the time.
  void cancel() {
    signals_.cancel();
    timer_.cancel();
  }

  [[nodiscard]] stagger::stop_token token() const noexcept { return source_.get_token(); }

 private:
  stagger::stop_source source_;
  boost::asio::basic_signal_set<Executor> signals_;
  typename boost::asio::steady_timer::rebind_executor<Executor>::other timer_;
};

}  // namespace stagger::host
