// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The closed estimate of one synchronous iteration.
/// @source Fan et al., "DAPPLE", PPoPP 2021, section 4.2, equations 1 to 3.

#include <cstddef>
#include <span>

#include <stagger/core/error.hpp>
#include <stagger/core/math.hpp>

namespace stagger::plan {

/// Seconds of one stage of the estimate for one microbatch: a stage that computes, or the transfer
/// between two of them.
struct StageTime {
  double forward_s = 0;
  double backward_s = 0;
  double all_reduce_s = 0;  ///< of its gradients, once an iteration; 0 for a transfer
  double recompute_s = 0;   ///< of backward_s: what needs no gradient of the next stage

  [[nodiscard]] constexpr double both_s() const noexcept { return forward_s + backward_s; }
};

/// Which equations the estimate uses.
enum class Form : unsigned char {
  corrected,  ///< as pipelines really behave
  printed,    ///< as in the paper: too low, by up to a forward and two backwards of the pivot
};

/// An iteration in three phases.
struct Latency {
  double seconds = 0;     ///< warm_up_s + steady_s + ending_s
  std::size_t pivot = 0;  ///< stage with the least bubble, which sets the steady phase
  double warm_up_s = 0;   ///< until the pivot's first forward ends
  double steady_s = 0;    ///< until the pivot's last backward starts
  double ending_s = 0;    ///< from then to the end of the iteration
};

namespace detail {

constexpr void require_stages(std::span<StageTime const> stages, int microbatches) {
  if (stages.empty())
    raise(Errc::bad_configuration,
          "an iteration without stages cannot be planned; give one or more");
  if (microbatches < 1)
    raise(Errc::bad_configuration, "an iteration of ", microbatches,
          " microbatches cannot be planned; give one or more");
  for (std::size_t s = 0; s < stages.size(); ++s) {
    StageTime const& t = stages[s];
    using stagger::detail::math::finite_and_not_negative;
    if (finite_and_not_negative(t.forward_s) && finite_and_not_negative(t.backward_s) &&
        finite_and_not_negative(t.all_reduce_s))
      continue;
    raise(Errc::bad_data, "stage ", s, " takes ", t.forward_s, " s forward, ", t.backward_s,
          " s backward and ", t.all_reduce_s,
          " s for its gradients; times must be finite and not negative");
  }
}

/// The estimate without a check of its input.
[[nodiscard]] constexpr Latency latency_of(std::span<StageTime const> stages, int microbatches,
                                           Form form) noexcept {
  bool const printed = form == Form::printed;
  double const later = microbatches - 1;  // than the first
  auto const both = [&](std::size_t s) { return stages[s].both_s(); };
  std::size_t pivot = stages.size() - 1;
  double between = 0;  // both() of the stages after s, up to, or just before, the pivot
  for (std::size_t s = pivot; s-- > 0;) {
    if (!printed || s + 1 < pivot) between += both(s + 1);
    if (later * both(s) > later * both(pivot) + between) {
      pivot = s;
      between = 0;
    }
  }
  Latency l{.pivot = pivot, .steady_s = later * both(pivot)};
  for (std::size_t s = 0; s <= pivot; ++s) l.warm_up_s += stages[s].forward_s;
  double owed = 0;  // backwards from s to the pivot that still follow the pivot's last one's start
  bool any = false;
  auto const consider = [&](double ending) {
    l.ending_s = any && l.ending_s > ending ? l.ending_s : ending;
    any = true;
  };
  for (std::size_t s = pivot + 1; s-- > 0;) {
    owed += stages[s].backward_s;
    if (!printed || s < pivot) consider(stages[s].all_reduce_s + owed);
  }
  double hidden = printed ? stages[pivot].backward_s : 0;
  if (printed) consider(stages[pivot].all_reduce_s - hidden);
  for (std::size_t s = pivot + 1; s < stages.size(); ++s) {
    if (printed) hidden += stages[s].backward_s;
    consider(stages[s].all_reduce_s - hidden);
    if (!printed) hidden += stages[s].backward_s;
  }
  l.seconds = l.warm_up_s + l.steady_s + l.ending_s;
  return l;
}

}  // namespace detail

/// Seconds of an iteration whose warm-up is deep enough to hide transfers.
///
/// The pivot is the stage that ends last if it never waits: argmax over s of (M-1)(F_s + B_s) + sum
/// over a <= s of (F_a + B_a). The stages up to the pivot still have to run backwards after it;
/// those after it end earlier, which hides part of their all-reduce. As in the paper, a
/// recomputation waits for the gradient like the backward that it belongs to.
/// @param stages        computing stages with the transfers between them, in order
/// @param microbatches  M >= 1
/// @throws Error        bad_configuration without stages or microbatches, bad_data for a time that
///                      is not finite and not negative
/// @complexity          O(stages)
[[nodiscard]] constexpr Latency latency(std::span<StageTime const> stages, int microbatches,
                                        Form form = Form::corrected) {
  detail::require_stages(stages, microbatches);
  return detail::latency_of(stages, microbatches, form);
}

}  // namespace stagger::plan
