// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Workers of a parameter server that exchange waves: pipelines of own costs, and the links
///         that they share.
/// @source Park et al., "HetPipe", USENIX ATC 2020, sections 4 and 5.

#include <cstdint>
#include <vector>

#include <stagger/schedule/costs.hpp>
#include <stagger/schedule/links.hpp>

namespace stagger::schedule {

/// A worker, as far as the others wait for it.
struct WaveWorker {
  Costs costs{};            ///< of its stages, one minibatch
  std::vector<int> cuts{};  ///< [stages - 1] first layer of each stage after the first
  /// [layers] which of the server's links each layer's changes take, -1: none, they are there at
  /// once. Empty: the first, or at once if there is none.
  std::vector<int> layer_links{};

  [[nodiscard]] constexpr int stages() const noexcept { return static_cast<int>(cuts.size()) + 1; }
};

/// What all workers have in common, under staleness::WaveSynchronous.
struct WaveServer {
  int in_flight = 1;  ///< Nm >= 1: minibatches of a worker at once, and in a wave
  int distance = 0;   ///< D >= 0: how many waves a worker may be ahead of the slowest
  std::vector<std::uint64_t>
      layer_bytes{};           ///< [layers] of the model, that a push and an answer have
  std::vector<Links> links{};  ///< to where layers are kept
};

}  // namespace stagger::schedule
