// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The state of a call of a communicator: requested, on the stream, done on the device.

#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

#include <stagger/core/backoff.hpp>
#include <stagger/nccl/detail/issuer.hpp>

namespace stagger::nccl {

/// Poll it, or wait for it.
///
/// Dropping it forgets it: the call goes on in the order of its stream, and so does the use of its
/// buffers.
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

  /// The same call, done as soon as it is on its stream: from then on kernels may be enqueued
  /// after it.
  [[nodiscard]] Operation on_stream() const { return {issuer_, state_, number_, what_, true}; }

  /// Advances it, without waiting. @return whether it is done
  /// @throws Error  what NCCL or the device failed with; every operation of the communicator then
  /// fails
  bool poll() {
    if (!state_) return true;
    detail::State& state = *state_;
    issuer_->progress();
    if (!state.refused.empty()) [[unlikely]]
      state.throw_if_refused(number_);
    if (state.issued >= number_ && (on_stream_ || state.done >= number_)) return true;
    if (!state.failure) static_cast<void>(state.settled());  // what peers do arrives here
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
