// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The concept of a grouping policy, and the layers that every grouping is given.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <stagger/collective/iteration.hpp>

namespace stagger {

/// Marks a grouping policy: `using policy_tag = stagger::GroupingTag;`.
struct GroupingTag {};

/// A grouping decides which layers' gradients are all-reduced in one message (a bucket).
///
/// It is given measured times, sizes, and the cost line of the all-reduce in use. Its groups list
/// all layers, from the last down to the first. Layers without parameters join the next lower layer
/// that has some; if there is none, they form a last group that sends nothing. A grouping with
/// `static constexpr bool uses_times = false` is called without measured times.
template <class P>
concept GroupingPolicy =
    std::copyable<P> && std::same_as<typename P::policy_tag, GroupingTag> &&
    requires(P const policy, collective::Backward backward, collective::CostLine cost) {
      // Throws Error(Errc::bad_data) for bad times or sizes.
      { policy.groups(backward, cost) } -> std::same_as<std::vector<collective::LayerGroup>>;
    };

namespace collective::detail {

/// Whether a grouping wants measured times.
template <GroupingPolicy G> [[nodiscard]] constexpr bool uses_times() noexcept {
  static_assert(
      !requires { &G::uses_times; } || requires { typename std::bool_constant<G::uses_times>; },
      "stagger: not a GroupingPolicy: its 'uses_times' must be 'static constexpr bool "
      "uses_times'");
  if constexpr (requires { G::uses_times; }) return G::uses_times;
  return true;
}

}  // namespace collective::detail

namespace collective::grouping::detail {

/// The layers with parameters, in backward order.
struct Learnable {
  std::vector<double> ready_s{};
  std::vector<std::uint64_t> bytes{};
  std::vector<int> layer{};
  int layers = 0;  ///< of the model

  [[nodiscard]] constexpr std::size_t size() const noexcept { return layer.size(); }
};

[[nodiscard]] constexpr Learnable learnable(Backward const& backward, CostLine cost) {
  collective::detail::require_backward(backward, cost);
  auto const ready = collective::detail::ready_times(backward);
  Learnable result;
  result.layers = backward.layers();
  for (std::size_t i = ready.size(); i-- > 0;) {
    if (backward.gradient_bytes[i] == 0) continue;
    result.ready_s.push_back(ready[i]);
    result.bytes.push_back(backward.gradient_bytes[i]);
    result.layer.push_back(static_cast<int>(i) + 1);
  }
  return result;
}

/// Groups of the model's layers from the index of each group's lowest learnable layer.
[[nodiscard]] constexpr std::vector<LayerGroup> spread(Learnable const& from,
                                                       std::vector<std::size_t> const& ends) {
  std::vector<LayerGroup> groups;
  groups.reserve(ends.size() + 1);
  int highest = from.layers;
  for (std::size_t const end : ends) {
    groups.push_back({highest, from.layer[end]});
    highest = from.layer[end] - 1;
  }
  if (highest > 0) groups.push_back({highest, 1});
  return groups;
}

}  // namespace collective::grouping::detail
}  // namespace stagger
