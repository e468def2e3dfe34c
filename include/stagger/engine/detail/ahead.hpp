// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The ring of steps that a device is still at while the host prepares the next one.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <utility>

#include <stagger/core/fixed_array.hpp>
#include <stagger/engine/detail/losses.hpp>
#include <stagger/engine/step.hpp>

namespace stagger::detail {

/// Steps in flight, in the order in which they were enqueued.
///
/// @tparam B  back end with
///            finished(turn) -> bool,
///            await(turn, step) noexcept -> std::exception_ptr, null if the step is right,
///            results(turn, losses) -> gradient norm
template <class B> class Ahead {
 public:
  explicit Ahead(std::size_t turns) : turns_(turns) {}

  [[nodiscard]] std::size_t turns() const noexcept { return turns_.size(); }
  [[nodiscard]] bool empty() const noexcept { return first_ == next_; }
  /// The place in the ring of the next step.
  [[nodiscard]] std::size_t turn() const noexcept { return next_ % turns_.size(); }

  /// Waits until there is a place for another step.
  void make_room(B& backend) {
    if (next_ - first_ == turns_.size()) finish_first(backend);
  }

  /// @param step  counted from 1, for errors
  TicketPlace& add(StepFacts const& facts, double* losses, std::int64_t step) noexcept {
    Turn& turn = turns_[next_++ % turns_.size()];
    turn.ticket = nullptr;
    turn.facts = facts;
    turn.losses = losses;
    turn.step = step;
    return turn;
  }

  /// Waits for a step and all before it; null: for all.
  void settle(B& backend, TicketPlace const* last) {
    while (!empty()) {
      bool const found = &turns_[first_ % turns_.size()] == last;
      finish_first(backend);
      if (found) return;
    }
  }

  /// Finishes what is done.
  void look(B& backend) {
    while (!empty() && backend.finished(first_ % turns_.size())) finish_first(backend);
  }

  /// @throws  what a step ended with whose ticket nobody has
  void rethrow_unreported() {
    if (unreported_) std::rethrow_exception(std::exchange(unreported_, nullptr));
  }

 private:
  struct Turn : TicketPlace {
    StepFacts facts;
    double* losses = nullptr;
    std::int64_t step = 0;
  };

  [[gnu::cold]] void finish_first(B& backend) {
    std::size_t const number = first_++ % turns_.size();
    Turn& turn = turns_[number];
    std::exception_ptr failure = backend.await(number, turn.step);
    Metrics metrics;
    if (!failure)
      metrics = metrics_of(turn.facts, turn.losses, backend.results(number, turn.losses));
    if (turn.ticket != nullptr)
      std::exchange(turn.ticket, nullptr)->resolve(metrics, std::move(failure));
    else if (failure && !unreported_)
      unreported_ = std::move(failure);
  }

  FixedArray<Turn> turns_;
  std::uint64_t first_ = 0;  // of the steps in flight, counted since the beginning
  std::uint64_t next_ = 0;
  std::exception_ptr unreported_;
};

/// Of a back end that does not run ahead.
struct NotAhead {};

}  // namespace stagger::detail
