// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The traffic between ranks, and between a worker and its parameter server.

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <stagger/core/list.hpp>

namespace stagger {

/// Kinds of traffic. A further kind needs a line here and one in `name`.
enum class TrafficKind : std::uint8_t {
  activations,         ///< outputs of a stage, to the rank of the next one
  gradients,           ///< of a stage's input, to the rank of the stage before
  shared_activations,  ///< outputs of a layer, to other members of a group that share layers
  shared_gradients,    ///< likewise gradients of its input
  gradient_sums,       ///< gradients of parameters, to the ranks that add them up, and the sums
  parameters,          ///< values that one rank has updated, to others that hold them too
  pushes,              ///< to a parameter server
  pulls,               ///< weights from a parameter server
  control,             ///< messages without values: that a slot is free, that a rank has finished
};
inline constexpr std::size_t traffic_kinds = 9;

[[nodiscard]] constexpr std::string_view name(TrafficKind kind) noexcept {
  constexpr std::array<std::string_view, traffic_kinds> names{
      "activations",      "gradients",     "shared activations",
      "shared gradients", "gradient sums", "parameters",
      "pushes",           "pulls",         "control"};
  return names[static_cast<std::size_t>(kind)];
}

/// An amount of traffic.
struct TrafficCount {
  std::uint64_t messages = 0;
  std::uint64_t bytes = 0;  ///< payload, without headers of the transport

  constexpr TrafficCount& operator+=(TrafficCount const& more) noexcept {
    messages += more.messages;
    bytes += more.bytes;
    return *this;
  }
  friend constexpr TrafficCount operator-(TrafficCount const& a, TrafficCount const& b) noexcept {
    return {a.messages - b.messages, a.bytes - b.bytes};
  }
  friend constexpr bool operator==(TrafficCount const&, TrafficCount const&) = default;
};

/// All traffic since the pipeline was made, by kind and by the rank that sent it (for pulls:
/// received it). It only grows; the traffic of some steps is the difference of two values.
///
/// @code
///     Traffic const before = train.traffic();
///     run(train.step(batch));
///     TrafficCount const sent = (train.traffic() - before).of(TrafficKind::activations);
/// @endcode
class Traffic {
 public:
  explicit Traffic(std::size_t ranks = 0) : counts_(ranks) {}

  [[nodiscard]] int ranks() const noexcept { return static_cast<int>(counts_.size()); }
  /// @pre 0 <= rank < ranks()
  [[nodiscard]] TrafficCount const& of(std::integral auto rank, TrafficKind kind) const noexcept {
    return counts_[rank][index(kind)];
  }
  /// The traffic of one kind, of all ranks.
  [[nodiscard]] TrafficCount of(TrafficKind kind) const noexcept {
    TrafficCount sum;
    for (auto const& rank : counts_) sum += rank[index(kind)];
    return sum;
  }
  /// The traffic of all ranks and kinds.
  [[nodiscard]] TrafficCount total() const noexcept {
    TrafficCount sum;
    for (auto const& rank : counts_)
      for (TrafficCount const& count : rank) sum += count;
    return sum;
  }

  void add(std::integral auto rank, TrafficKind kind, TrafficCount const& count) noexcept {
    counts_[rank][index(kind)] += count;
  }
  void clear() noexcept {
    for (auto& rank : counts_) rank = {};
  }
  /// The traffic in between. @pre `before` is of the same pipeline
  friend Traffic operator-(Traffic later, Traffic const& before) noexcept {
    for (std::size_t r = 0; r < before.counts_.size(); ++r)
      for (std::size_t k = 0; k < traffic_kinds; ++k)
        later.counts_[r][k] = later.counts_[r][k] - before.counts_[r][k];
    return later;
  }

 private:
  static constexpr std::size_t index(TrafficKind kind) noexcept {
    return static_cast<std::size_t>(kind);
  }

  List<std::array<TrafficCount, traffic_kinds>> counts_;  // [ranks]
};

}  // namespace stagger
