// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What the host knows of steps whose gradients are not finite. The devices find them, and
///         leave out their updates, while the host is ahead.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include <stagger/core/fixed_array.hpp>
#include <stagger/cuda/kernels.hpp>
#include <stagger/engine/machine.hpp>

namespace stagger::cuda::detail {

/// Devices count skipped steps and remember a failed one for the length of a period. A new one begins
/// where the host knows the outcome of all steps before.
class NonFiniteSteps {
 public:
  /// @param together  whether other processes take the same steps
  NonFiniteSteps(stagger::detail::Machine& machine, int slots, bool together)
      : machine_(machine),
        all_(static_cast<std::size_t>(std::max(slots, 0))),
        together_(together) {}

  /// Whether the loaded program looks at gradients.
  [[nodiscard]] bool looks() const noexcept {
    return machine_.program().training && machine_.model.parameter_count() != 0 &&
           machine_.options().non_finite != NonFinite::ignore;
  }
  [[nodiscard]] bool skips() const noexcept {
    return looks() && machine_.options().non_finite == NonFinite::skip;
  }
  /// Whether devices find the number of a step, since the host may not know it. Hosts of several
  /// processes see at different times that a step has failed; until all have, steps change nothing.
  [[nodiscard]] bool corrects() const noexcept { return looks() && (skips() || together_); }
  [[nodiscard]] std::int64_t period() const noexcept { return period_; }
  /// The steps before the next one as the devices count them, who subtract those that changed
  /// nothing.
  [[nodiscard]] std::int64_t steps() const noexcept { return machine_.steps() + skipped_; }

  /// An iteration is about to be enqueued.
  void begin(std::size_t slot) noexcept {
    current_ = slot;
    all_[slot] = {steps(), period_};
  }
  /// It was enqueued.
  void went(std::size_t slot) noexcept { all_[slot].in_flight = true; }
  /// A step was called off, of which the devices may have seen a part, or another program is loaded.
  /// @param found  (slot) see `note`
  template <class Found> void begin_period(Found found) noexcept {
    for (std::size_t i = 1; i < all_.size(); ++i) {  // from the oldest one on
      std::size_t const slot = (current_ + i) % all_.size();
      if (all_[slot].in_flight) static_cast<void>(note(slot, found(slot), true));
    }
    raise_period();
  }

  /// Takes note, once, of an iteration that the devices have finished. All earlier ones were noted.
  /// @param found    GradientScale::not_finite of its ranks
  /// @param counted  whether Machine::steps counts it already
  /// @return the error with which it ended; null: it did not fail
  [[nodiscard]] std::exception_ptr note(std::size_t slot, std::int64_t found,
                                        bool counted) noexcept {
    Noted& step = all_[slot];
    if (!std::exchange(step.in_flight, false) || found == 0) return step.failure;
    bool const skips = machine_.options().non_finite == NonFinite::skip;
    if (skips || found == GradientScale::unseen) {
      ++skipped_;
      if (counted) machine_.resume(machine_.steps() - 1);
      step.skipped = skips ? 1 : 0;
      if (!counted) machine_.run.skipped = step.skipped;
      if (!skips && !reason_)
        reason_ = raised(Errc::peer_failed,
                         "another process has seen a step fail that this process has not; make the "
                         "pipeline again in all processes");
      if (!skips) step.failure = reason_;
    } else {
      if (step.period == period_) {  // otherwise an earlier one has failed, and it changed nothing
        std::int64_t const before = step.before - skipped_;
        reason_ = failure_of(found < 0 ? -found : found, before);
        raise_period();
        machine_.resume(before);
      }
      step.failure = reason_;
    }
    return step.failure;
  }
  /// How many updates an iteration has left out.
  [[nodiscard]] int skipped(std::size_t slot) const noexcept { return all_[slot].skipped; }

 private:
  struct Noted {
    std::int64_t before = 0;  // steps(), which stays when earlier ones are found to be skipped
    std::int64_t period = 0;
    bool in_flight = false;
    int skipped = 0;
    std::exception_ptr failure{};
  };

  void raise_period() noexcept {
    ++period_;
    skipped_ = 0;
  }
  [[nodiscard]] [[gnu::cold]] std::exception_ptr failure_of(std::int64_t found,
                                                            std::int64_t before) const noexcept {
    try {
      raise(Errc::not_finite, words(found), ", so ", machine_.run.left_out(), " after step ",
            before, stagger::detail::not_finite_remedy);
    } catch (...) {
      return std::current_exception();
    }
  }
  [[nodiscard]] [[gnu::cold]] std::string words(std::int64_t found) const {
    auto const& program = machine_.program();
    std::string what = program.flushes ? "a gradient is not finite in one of the passes"
                                       : "a gradient is not finite in one of the minibatches";
    if (!program.updates_early()) {
      auto const& layers = machine_.model.parameters;
      std::size_t l = 0;
      auto number = static_cast<std::size_t>(found - 1);
      while (l < layers.size() && number >= layers[l].count()) number -= layers[l++].count();
      what = "the norm of all gradients is not finite, although each of them is";
      std::size_t c = 0;  // of the first holder of the layer
      while (l < layers.size() && machine_.model.layers_of(program.cells[c].stage).last <= l) ++c;
      if (l < layers.size())
        what = text("a gradient of layer ", machine_.model.number(l), " on rank ",
                    program.cells[c].rank, ", or the sum of its squares, is not finite");
    }
    return what;
  }

  stagger::detail::Machine& machine_;
  FixedArray<Noted> all_;    // [slots]
  std::size_t current_ = 0;  // slot of the iteration that was begun last
  bool together_;
  std::int64_t period_ = 1;
  std::int64_t skipped_ = 0;   // in this period, as far as it is known
  std::exception_ptr reason_;  // of the last step that failed
};

}  // namespace stagger::cuda::detail
