// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Budget policies: how many bytes may be late.
/// @source Chen et al., "OSP", ICPP 2023, equation 5 and algorithm 1.

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <limits>
#include <tuple>
#include <utility>

#include <stagger/core/error.hpp>
#include <stagger/core/math.hpp>
#include <stagger/parameters/late_layers.hpp>

namespace stagger::staleness::overlapped {

namespace detail {
/// The largest share of the model's bytes that may be late.
inline constexpr double most_late = 0.8;
}  // namespace detail

/// `bytes(step)`: how many bytes may be late in the step after one that has ended; none if that is
/// not positive. Called at the server once for each step, in order, so that it may keep state, also
/// while workers fail and begin again; if several servers keep the layers, it is called at each
/// worker, and then starts over. A step has `step.step` (from 0), `step.loss` (the mean over
/// workers), `step.model_bytes` and `step.workers`. An optional member `check()` throws an Error
/// for numbers out of range.
template <class B>
concept Budget = std::copyable<B> && std::equality_comparable<B> &&
                 requires(B& budget, stagger::detail::EndedStep const& step) {
                   { budget.bytes(step) } -> std::same_as<double>;
                 };

/// Instantiated if the concept does not hold.
template <class B> struct NotABudget {
  static_assert(sizeof(B) == 0,
                "stagger: not a budget of late layers: it needs 'double bytes(auto const& step)', "
                "and == by which workers are compared");
};

/// Nothing is late: bulk synchronous parallelism, and compiled as such.
struct NothingLate {
  template <class Step> [[nodiscard]] constexpr double bytes(Step const&) const { return 0; }
  friend bool operator==(NothingLate const&, NothingLate const&) = default;
};

/// Everything is late: each gradient arrives one step late, with a prediction in its place.
struct AllLate {
  template <class Step> [[nodiscard]] constexpr double bytes(Step const&) const {
    return std::numeric_limits<double>::infinity();
  }
  friend bool operator==(AllLate const&, AllLate const&) = default;
};

/// A fixed share of the model is late.
struct ShareLate {
  double share = 0.5;  ///< of the model's bytes, 0 to 0.8

  template <class Step> [[nodiscard]] constexpr double bytes(Step const& step) const {
    return share * static_cast<double>(step.model_bytes);
  }
  /// @throws Error  bad_configuration
  void check() const {
    if (!(share >= 0 && share <= detail::most_late))
      raise(Errc::bad_configuration, "a share of ", share,
            " of the model cannot be late; use 0 to 0.8, or AllLate");
  }
  friend bool operator==(ShareLate const&, ShareLate const&) = default;
};

/// How the loss of messages enters the bound on the bytes whose exchange can be hidden.
enum class Bound : std::uint8_t {
  physical,    ///< rate * (computation_s - latency_s) / (ways * N * (1 + loss))
  as_printed,  ///< the paper's equation 5: rate * (1 + loss) * computation_s / N
};

/// When the training loss adjusts the budget.
enum class Tuning : std::uint8_t {
  by_epoch,  ///< at the end of each epoch, for the next; nothing is late in the first two epochs
  running,   ///< after each step, by an exponential moving average
};

/// The bytes whose exchange the computation of a step hides, times 1 - loss / first loss, so that
/// more is late as training proceeds; at most 0.8 of the model. If the first loss is not positive
/// and finite, nothing is ever late; nor is anything late after a step or epoch whose loss is not
/// finite.
struct LossTuned {
  double rate = 0;           ///< of the server's link, bytes/s, > 0
  double computation_s = 0;  ///< of a step, forward and backward, >= 0
  double latency_s = 0;      ///< >= 0
  double loss = 0;           ///< of each byte sent, `loss` more are sent again; 0 <= loss < 1
  int ways = 1;              ///< 1: pushes and answers overlap; 2: they share the link
  Bound bound = Bound::physical;
  Tuning tuning = Tuning::by_epoch;
  int steps = 0;      ///< by epoch: steps of an epoch, >= 1
  double keep = 0.9;  ///< running: weight of the mean so far, 0 <= keep < 1
  /// The state, which only the server's copy has.
  struct Seen {
    bool began = false;  // whether `first` is known
    double first = 0;    // loss, of the first epoch or step
    double sum = 0;      // of losses in the current epoch
    double mean = 0;     // running
    double factor = 0;   // by which the bound is multiplied
    friend bool operator==(Seen const&, Seen const&) = default;
  } seen{};

  template <class Step> [[nodiscard]] double bytes(Step const& ended) {
    if (tuning == Tuning::by_epoch) {
      seen.sum += ended.loss;
      if ((ended.step + 1) % steps == 0) tune(std::exchange(seen.sum, 0.0) / steps);
    } else {
      seen.mean = ended.step == 0 ? ended.loss : keep * seen.mean + (1 - keep) * ended.loss;
      tune(seen.mean);
    }
    return std::min(most(ended.workers),
                    detail::most_late * static_cast<double>(ended.model_bytes)) *
           seen.factor;
  }
  /// U_max: the bytes that N workers can push and pull while they compute.
  [[nodiscard]] double most(int workers) const {
    if (bound == Bound::as_printed) return rate * (1 + loss) * computation_s / workers;
    return std::max(0.0, rate * (computation_s - latency_s) / (ways * workers * (1 + loss)));
  }
  /// @throws Error  bad_configuration
  void check() const {
    if (!(rate > 0))
      raise(Errc::bad_configuration, "LossTuned cannot plan for a link of ", rate,
            " bytes/s; let rate be that of the server's link");
    if (!(computation_s >= 0) || !(latency_s >= 0))
      raise(Errc::bad_configuration, "LossTuned cannot plan with a computation of ", computation_s,
            " s and a latency of ", latency_s, " s; both are at least 0");
    if (!(loss >= 0 && loss < 1))
      raise(Errc::bad_configuration, "LossTuned cannot plan for a loss of ", loss,
            " of each byte; use 0 to 1, less than 1");
    if (ways != 1 && ways != 2)
      raise(Errc::bad_configuration, "LossTuned::ways cannot be ", ways,
            "; use 1 where pushes and answers overlap, and 2 where they share the link");
    if (tuning == Tuning::by_epoch ? steps < 1 : !(keep >= 0 && keep < 1))
      raise(Errc::bad_configuration, "LossTuned cannot tune with ", steps,
            " steps an epoch and a mean that keeps ", keep,
            "; use at least 1 step, and 0 <= keep < 1");
  }
  /// The numbers by which workers in other processes are compared.
  [[nodiscard]] auto fields() const {
    return std::tie(rate, computation_s, latency_s, loss, ways, bound, tuning, steps, keep);
  }
  friend bool operator==(LossTuned const&, LossTuned const&) = default;

 private:
  /// Sets the factor from the ratio of the current loss to the first one.
  void tune(double loss_now) {
    if (!std::exchange(seen.began, true)) seen.first = loss_now;
    bool const known = seen.first > 0 && stagger::detail::math::isfinite(seen.first) &&
                       stagger::detail::math::isfinite(loss_now);
    seen.factor = known ? std::clamp(1 - loss_now / seen.first, 0.0, 1.0) : 0.0;
  }
};

}  // namespace stagger::staleness::overlapped
