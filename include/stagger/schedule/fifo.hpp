// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Fifo: each rank runs what became ready first, with a bounded number of microbatches in
///         the pipeline.
/// @source Park et al., "HetPipe", USENIX ATC 2020, section 4: what a stage does next.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/schedule/detail/greedy.hpp>
#include <stagger/schedule/legal.hpp>
#include <stagger/schedule/play_workers.hpp>
#include <stagger/schedule/policy.hpp>
#include <stagger/schedule/wave_workers.hpp>

namespace stagger::schedule {

/// The other workers for which a worker of a parameter server waits. If no other workers are given,
/// they are assumed to push as early as this one.
struct WaveGate {
  WaveModel model{};  ///< the staleness model by which all train; none: nothing to wait for
  std::vector<Links> links{};  ///< of the server; none: pushes and answers take no time
  std::vector<std::uint64_t> layer_bytes{};  ///< [layers]; none: a stage is one layer of 0 bytes
  std::vector<int> cuts{};         ///< [ranks - 1] of this worker; none: one layer for each stage
  std::vector<int> layer_links{};  ///< of this worker, as WaveWorker::layer_links
  std::vector<WaveWorker> others{};
};

/// At most Nm microbatches are in the pipeline. Each rank runs what became ready first, its
/// forwards and its backwards each in microbatch order; of two that became ready together, the
/// backward, then the lower microbatch. The last stage runs forward and backward of a microbatch as
/// one. The given costs say when an action becomes ready, so that the order can be written down as
/// a table.
struct Fifo {
  using policy_tag = ScheduleTag;
  static constexpr bool flushes = false;

  int in_flight = 0;  ///< Nm >= 1; 0: one for each rank
  Costs costs{};      ///< for each stage, or the same for all
  WaveGate gate{};    ///< of a worker of a parameter server: the order comes from a simulation of
                      ///< all workers, so that nothing waits behind a forward that may not begin
                      ///< yet

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
    int const window = in_flight == 0 ? shape.ranks : in_flight;
    if (gate.model) return gated(shape, window);
    if (!gate.links.empty() || !gate.layer_bytes.empty() || !gate.cuts.empty() ||
        !gate.layer_links.empty() || !gate.others.empty())
      raise(Errc::bad_configuration,
            "fifo: without a WaveGate::model nothing else of the gate counts; give the staleness "
            "model by which the workers train, or leave the gate out");
    return detail::greedy(detail::stage_parts(Mapping::looped, shape, window), shape, costs,
                          detail::Backwards::whole, detail::ByReadiness{});
  }

 private:
  [[nodiscard]] [[gnu::cold]] Table gated(Shape shape, int window) const {
    WaveServer server{window, gate.model, gate.layer_bytes, gate.links};
    std::vector<WaveWorker> workers{{costs, gate.cuts, gate.layer_links}};
    workers.insert(workers.end(), gate.others.begin(), gate.others.end());
    bool const counted = server.layer_bytes.empty();
    if (counted) server.layer_bytes.assign(static_cast<std::size_t>(shape.ranks), 0);
    if (counted && gate.cuts.empty())
      for (int s = 1; s < shape.ranks; ++s) workers[0].cuts.push_back(s);
    if (workers[0].stages() != shape.ranks)
      raise(Errc::bad_configuration, "fifo: WaveGate::cuts make ",
            stagger::counted(workers[0].stages(), "stage"), ", but there are ", shape.ranks,
            "; give one layer for each stage behind the first");
    auto const played = play_workers(workers, server, shape.microbatches);
    Table table{.stages = shape.ranks, .microbatches = shape.microbatches};
    Timeline const& timeline = played[0].timeline;
    table.row_begin = timeline.row_begin;
    for (Span const& span : timeline.spans) table.add(span.action);
    return table;
  }
};

template <> inline constexpr std::string_view catalog_name<Fifo> = "fifo";

}  // namespace stagger::schedule
