// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The simulation of the workers of a parameter server together: pipelines with their own
///         costs, the links that they share, and the server's rounds.
/// @source Park et al., "HetPipe", USENIX ATC 2020, sections 4 and 5.

#include <cstddef>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/schedule/costs.hpp>
#include <stagger/schedule/detail/greedy.hpp>
#include <stagger/schedule/detail/wave_exchange.hpp>
#include <stagger/schedule/legal.hpp>
#include <stagger/schedule/wave_workers.hpp>

namespace stagger::schedule {

namespace detail {

/// Runs what became ready first; of several, a backward first, then the lower microbatch. A last
/// stage runs the backward after the forward.
struct ByReadiness {
  [[nodiscard]] constexpr auto operator()(Candidate const& c) const {
    bool const fused = c.kind == Kind::backward && c.part->last;
    return std::tuple(fused ? -1.0 : c.ready_s, c.kind == Kind::forward, c.microbatch);
  }
};

/// @throws Error  bad_configuration, bad_data for workers that do not fit the model or the links
inline void require_workers(std::span<WaveWorker const> workers, WaveServer const& server) {
  auto const layers = server.layer_bytes.size();
  auto const links = static_cast<int>(server.links.size());
  if (workers.empty()) raise(Errc::bad_configuration, "no worker is given; play at least one");
  require(server.in_flight >= 1, "workers", Count::in_flight, server.in_flight, 1,
          "at least one is injected");
  if (layers == 0)
    raise(Errc::bad_configuration,
          "no layer is given whose changes the workers push; let WaveServer::layer_bytes have a "
          "number for each");
  if (!server.model)
    raise(Errc::bad_configuration,
          "nothing says which pushes the workers wait for; let WaveServer::model be the staleness "
          "model by which they train");
  if (server.model.minibatches() < 1)
    raise(Errc::bad_configuration, "a push of ", server.model.minibatches(),
          " minibatches cannot be made; let minibatches() of the staleness model be at least 1");
  for (Links const& each : server.links) require_links(each);
  for (std::size_t w = 0; w < workers.size(); ++w) {
    WaveWorker const& worker = workers[w];
    require_costs(worker.costs, worker.stages());
    int before = 0;
    for (int const cut : worker.cuts)
      if (int const last = std::exchange(before, cut);
          cut <= last || std::cmp_greater_equal(cut, layers))
        raise(Errc::bad_configuration, "worker ", w, " is cut in front of layer ", cut,
              "; its cuts must rise from 1 to ", layers, " layers less one");
    if (!worker.layer_links.empty() && worker.layer_links.size() != layers)
      raise(Errc::bad_configuration, "worker ", w, " has links for ", worker.layer_links.size(),
            " layers, of which there are ", layers, "; give one for each, or none");
    for (int const link : worker.layer_links)
      if (link < -1 || link >= links)
        raise(Errc::bad_configuration, "worker ", w, " takes link ", link, " of ", links,
              "; links are numbered from 0, and -1 is none");
  }
}

}  // namespace detail

/// Simulates all workers. Each stage runs what is ready first, as Fifo does, and pushes each
/// layer's changes when it has run the last backward of a wave; a layer's round is added once the
/// pushes of all workers have arrived; a stage asks for the next round when it takes one, and
/// begins a minibatch once the rounds have arrived that it needs by the staleness model. The last
/// wave may be shorter.
/// @param minibatches  of each worker, >= 1
/// @return             [workers]
/// @throws Error  bad_configuration, bad_data for workers that do not fit the model or the
///                links, and for numbers that no worker, server or link can have
[[nodiscard]] [[gnu::cold]] inline std::vector<PlayedWorker> play_workers(
    std::span<WaveWorker const> workers, WaveServer const& server, int minibatches) {
  detail::require_workers(workers, server);
  require_counts("workers", {.microbatches = minibatches}, 1);
  detail::WaveExchange exchange(workers, server, minibatches);
  std::vector<detail::StagePart> parts;
  for (std::size_t w = 0; w < workers.size(); ++w) {
    Shape const shape{.ranks = workers[w].stages(), .microbatches = minibatches};
    for (detail::StagePart part : detail::stage_parts(Mapping::looped, shape, server.in_flight)) {
      part.cost = workers[w].costs.of(part.stage);
      part.rank += exchange.first_rank(w);
      parts.push_back(std::move(part));
    }
  }
  static_cast<void>(detail::greedy_rows(parts, exchange.ranks(), detail::Backwards::whole,
                                        detail::ByReadiness{}, exchange));
  return std::move(exchange).take();
}

}  // namespace stagger::schedule
