// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Fifo: each rank runs what became ready first, with a bounded number of microbatches in
///         the pipeline.
/// @source Park et al., "HetPipe", USENIX ATC 2020, section 4: what a stage does next.

#include <algorithm>
#include <limits>
#include <tuple>

#include <stagger/core/error.hpp>
#include <stagger/core/grid.hpp>
#include <stagger/schedule/detail/greedy.hpp>
#include <stagger/schedule/legal.hpp>
#include <stagger/schedule/policy.hpp>

namespace stagger::schedule {

/// What a worker of a parameter server waits for, under staleness::WaveSynchronous: each stage
/// pushes a wave of Nm minibatches when the last of them has come back, and has the answer
/// `exchange_s` later, where the other workers push no later than this one.
struct WaveGate {
  double exchange_s = 0;  ///< >= 0: of a push and its answer, seconds
  int distance = -1;      ///< D >= 0: how many waves a worker may be ahead; below 0: no gate
};

namespace detail {

/// When stages have waves.
class WaveArrivals {
 public:
  constexpr WaveArrivals(WaveGate const& gate, int in_flight, Shape shape)
      : gate_(gate),
        in_flight_(in_flight),
        waves_(shape.microbatches / in_flight + 1),
        at_(shape.ranks * waves_, -1.0) {}

  [[nodiscard]] constexpr double opens(StagePart const& part, int n, double input_s) const {
    int const wave = (n + 1) / in_flight_ - 1 - gate_.distance;
    if (gate_.distance < 0 || wave <= 0 || input_s < 0) return input_s;
    double const at = at_[part.stage * waves_ + wave];
    return at < 0 ? at : std::max(at, input_s);
  }
  constexpr double ended(StagePart const& part, int n, double end_s) {
    if (gate_.distance < 0 || (n + 1) % in_flight_ != 0) return -1;
    return at_[part.stage * waves_ + (n + 1) / in_flight_] = end_s + gate_.exchange_s;
  }

 private:
  WaveGate gate_;
  int in_flight_;
  int waves_;
  Grid<double> at_;  // [stages][waves]
};

}  // namespace detail

/// At most Nm microbatches are injected and not yet back; forwards and backwards of a rank keep
/// microbatch order and otherwise run in order of readiness, ties backward first, then the lower
/// microbatch. The last stage runs forward and backward of a microbatch as one. The given
/// costs say when an action becomes ready, so that the order can be written down as a table.
struct Fifo {
  using policy_tag = ScheduleTag;
  static constexpr bool flushes = false;
  static constexpr bool proven = true;

  int in_flight = 0;  ///< Nm >= 1; 0: one for each rank
  Costs costs{};      ///< for each stage, or the same for all
  WaveGate gate{};    ///< of a worker of a parameter server: nothing waits behind a forward that
                      ///< may not begin yet

  /// One stage on each rank.
  [[nodiscard]] constexpr int chunks() const noexcept { return 1; }

  /// Versions of its weights that a rank keeps: each of the Nm microbatches in the pipeline may
  /// have entered with another version, which it then sees at every stage.
  [[nodiscard]] constexpr int weight_versions(Shape shape, int) const noexcept {
    return std::min(in_flight == 0 ? shape.ranks : in_flight, shape.microbatches);
  }

  /// @param shape  any P and M, V = 1
  /// @throws Error bad_configuration, bad_data for costs that are not finite and not negative
  [[nodiscard]] constexpr Table table(Shape shape) const {
    require_counts("fifo", shape, 1);
    require(in_flight >= 0, "fifo", Count::in_flight, in_flight, 1, "at least one is injected");
    require_costs(costs, shape.ranks);
    auto const key = [last = shape.ranks - 1](detail::Candidate const& c) {
      bool const fused = c.kind == Kind::backward && c.part->stage == last;
      return std::tuple(fused ? -1.0 : c.ready_s, c.kind == Kind::forward, c.microbatch);
    };
    if (!(gate.exchange_s >= 0 && gate.exchange_s < std::numeric_limits<double>::infinity()))
      raise(Errc::bad_data, "fifo: an exchange with a server cannot take ", gate.exchange_s,
            " s; let WaveGate::exchange_s be finite and at least 0");
    int const window = in_flight == 0 ? shape.ranks : in_flight;
    return detail::greedy(detail::stage_parts(Mapping::looped, shape, window), shape, costs,
                          detail::Backwards::whole, key, detail::WaveArrivals(gate, window, shape));
  }
};

static_assert(SchedulePolicy<Fifo>);
template <> inline constexpr std::string_view catalog_name<Fifo> = "fifo";

}  // namespace stagger::schedule
