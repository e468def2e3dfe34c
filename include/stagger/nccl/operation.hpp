// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A call of a communicator and its state: requested, on the stream, done on the device.

#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

#include <stagger/core/backoff.hpp>
#include <stagger/nccl/detail/issuer.hpp>

namespace stagger::nccl {

/// Poll it, or wait for it.
///
/// If it is dropped, the call continues in the order of its stream and still uses its buffers.
class Operation {
 public:
  Operation() = default;
  Operation(std::shared_ptr<detail::Issuer> issuer, std::shared_ptr<detail::State> state,
            std::uint64_t number, char const* what, bool on_stream = false)
      : issuer_(std::move(issuer)),
        state_(std::move(state)),
        number_(number),
        what_(what),
        on_stream_(on_stream) {}

  /// An operation for the same call that is done as soon as the call is on its stream, so that
  /// kernels can be enqueued after it.
  [[nodiscard]] Operation on_stream() const { return {issuer_, state_, number_, what_, true}; }

  /// Advances it without waiting.
  /// @return whether it is done
  /// @throws Error the error of NCCL or the device; every operation of the communicator then fails
  bool poll() {
    if (!state_) return true;
    detail::State& state = *state_;
    issuer_->progress();
    if (!state.refused.empty()) [[unlikely]]
      state.throw_if_refused(number_);
    if (state.issued >= number_ && (on_stream_ || state.done >= number_)) return true;
    if (!state.failure) static_cast<void>(state.settled());  // progress of peers is noticed here
    if (state.failure) std::rethrow_exception(state.failure);
    if (state.issued < number_ || !state.events[number_ % detail::State::events_kept].done())
      return false;
    state.done = number_;
    return true;
  }

  /// @throws Error            as poll()
  /// @throws stagger::Error   Errc::deadline after so many seconds; it may be waited for again
  void wait(double seconds) {
    if (!stagger::detail::wait_until([this] { return poll(); }, seconds)) expire(seconds);
  }

  /// @throws stagger::Error  Errc::deadline
  [[noreturn]] [[gnu::cold]] void expire(double seconds) const {
    detail::State const& state = *state_;
    raise(Errc::deadline, "rank ", state.rank, " of ", state.size, " waited ", seconds, " s to ",
          what_, ": ",
          state.issued >= number_ ? "it is on the stream and the device has not finished it"
                                  : "NCCL has not enqueued it",
          "; see whether every rank makes the same calls, or abort");
  }

 private:
  std::shared_ptr<detail::Issuer> issuer_;
  std::shared_ptr<detail::State> state_;
  std::uint64_t number_ = 0;
  char const* what_ = "";
  bool on_stream_ = false;
};

}  // namespace stagger::nccl
