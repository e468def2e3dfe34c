// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The ring of steps that a device still runs while the host prepares the next one.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

#include <stagger/core/fixed_array.hpp>
#include <stagger/engine/detail/losses.hpp>
#include <stagger/engine/step.hpp>

namespace stagger::detail {

/// Steps in flight, in the order in which they were enqueued.
///
/// @tparam B  back end with
///            finished(slot) -> bool,
///            await(slot, step) noexcept -> std::exception_ptr, null if the step is right,
///            results(slot, losses) -> gradient norm,
///            skipped(slot) -> updates left out
template <class B> class Ahead {
 public:
  explicit Ahead(B const& backend) : slots_(backend.slots()) {}

  [[nodiscard]] std::size_t slots() const noexcept { return slots_.size(); }
  [[nodiscard]] bool empty() const noexcept { return first_ == next_; }
  /// The index in the ring for the next step.
  [[nodiscard]] std::size_t slot() const noexcept { return next_ % slots_.size(); }

  /// Waits until the ring has room for another step.
  void make_room(B& backend) {
    if (next_ - first_ == slots_.size()) finish_first(backend);
  }

  /// @param step  counted from 1, for errors
  /// @param kept  what the step needs until it is done
  TicketPlace& add(StepFacts const& facts, double* losses, std::int64_t step,
                   std::shared_ptr<void const> kept) noexcept {
    Slot& slot = slots_[next_++ % slots_.size()];
    slot.ticket = nullptr;
    slot.facts = facts;
    slot.losses = losses;
    slot.step = step;
    slot.kept = std::move(kept);
    return slot;
  }

  /// Waits for a step and all earlier ones; null: for all steps.
  void settle(B& backend, TicketPlace const* last) {
    while (!empty()) {
      bool const found = &slots_[first_ % slots_.size()] == last;
      finish_first(backend);
      if (found) return;
    }
  }

  /// Finishes the steps that are done.
  void poll(B& backend) {
    while (!empty() && backend.finished(first_ % slots_.size())) finish_first(backend);
  }

  /// Keeps the error of a step whose ticket was dropped, unless it was thrown already: steps behind
  /// one that failed have its error.
  void untold(std::exception_ptr failure) noexcept {
    if (!unreported_ && failure != thrown_) unreported_ = std::move(failure);
  }
  /// @throws  the error of a step whose ticket was dropped
  void rethrow_unreported() {
    if (!unreported_) return;
    thrown_ = std::exchange(unreported_, nullptr);
    std::rethrow_exception(thrown_);
  }

 private:
  struct Slot : TicketPlace {
    StepFacts facts;
    double* losses = nullptr;
    std::int64_t step = 0;
    std::shared_ptr<void const> kept;
  };

  [[gnu::cold]] void finish_first(B& backend) {
    std::size_t const number = first_++ % slots_.size();
    Slot& slot = slots_[number];
    std::exception_ptr failure = backend.await(number, slot.step);
    slot.kept = nullptr;
    Metrics metrics;
    if (!failure)
      metrics = metrics_of(slot.facts, slot.losses, backend.results(number, slot.losses),
                           backend.skipped(number));
    if (slot.ticket != nullptr)
      std::exchange(slot.ticket, nullptr)->resolve(metrics, std::move(failure));
    else if (failure)
      untold(std::move(failure));
  }

  FixedArray<Slot> slots_;
  std::uint64_t first_ = 0;  // number of the oldest step in flight, counted since the beginning
  std::uint64_t next_ = 0;
  std::exception_ptr unreported_;
  std::exception_ptr thrown_;  // the last one
};

/// In place of `Ahead` on a back end that does not run ahead.
struct NotAhead {
  template <class B> explicit NotAhead(B const&) {}
  void untold(std::exception_ptr) noexcept {}
};

}  // namespace stagger::detail
