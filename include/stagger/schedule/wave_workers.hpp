// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Descriptions of the workers of a parameter server that exchange waves: their costs, and
///         the links that they share.
/// @source Park et al., "HetPipe", USENIX ATC 2020, sections 4 and 5.

#include <cstdint>
#include <vector>

#include <stagger/schedule/costs.hpp>
#include <stagger/schedule/links.hpp>

namespace stagger::schedule {

/// The properties of a worker on which the others depend.
struct WaveWorker {
  Costs costs{};            ///< of its stages, one minibatch
  std::vector<int> cuts{};  ///< [stages - 1] first layer of each stage after the first
  /// [layers] the server's link for the changes of each layer; -1: none, they arrive at once.
  /// Empty: the first link, or none if there is none.
  std::vector<int> layer_links{};

  [[nodiscard]] constexpr int stages() const noexcept { return static_cast<int>(cuts.size()) + 1; }
};

/// The properties that all workers have in common, under staleness::WaveSynchronous.
struct WaveServer {
  int in_flight = 1;  ///< Nm >= 1: minibatches of a worker at once, and in a wave
  int distance = 0;   ///< D >= 0: how many waves a worker may be ahead of the slowest
  std::vector<std::uint64_t>
      layer_bytes{};           ///< [layers] of the model: bytes of a push and of an answer
  std::vector<Links> links{};  ///< to where layers are kept
};

}  // namespace stagger::schedule
