// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The end of an iteration whose gradients are sent in groups while the backward pass runs.
/// @source S. Shi, X. Chu, B. Li, "MG-WFBP: Efficient Data Communication for Distributed
///         Synchronous SGD", INFOCOM 2019, equations 6 to 16.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <stagger/collective/alpha_beta.hpp>
#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/math.hpp>

namespace stagger::collective {

/// Times and gradients of a model's layers. Layer 1 is next to the input and comes first; the
/// backward pass runs from the last to the first.
struct Backward {
  double forward_s = 0;                             ///< of the whole model
  std::span<double const> backward_s{};             ///< per layer
  std::span<std::uint64_t const> gradient_bytes{};  ///< per layer; 0 = nothing to learn

  [[nodiscard]] constexpr int layers() const noexcept {
    return static_cast<int>(backward_s.size());
  }
};

/// Consecutive layers whose gradients are sent in one message, once the lowest of them is ready.
struct LayerGroup {
  int highest = 0;
  int lowest = 0;  ///< 1 <= lowest <= highest
  friend constexpr bool operator==(LayerGroup const&, LayerGroup const&) = default;
};

/// One message of an iteration.
struct GroupMessage {
  LayerGroup group{};
  std::uint64_t bytes = 0;
  double start_s = 0;
  double end_s = 0;
};

/// A predicted iteration; time 0 is the start of the forward pass.
struct Iteration {
  std::vector<GroupMessage> messages{};  ///< in the order they are sent
  double iteration_s = 0;
  double exposed_s = 0;  ///< time that communication adds to forward and backward
};

namespace detail {

constexpr void require_backward(Backward const& b, CostLine cost) {
  if (b.backward_s.size() != b.gradient_bytes.size())
    raise(Errc::bad_data, "there are ", b.backward_s.size(), " backward times, but ",
          b.gradient_bytes.size(), " gradients; give one of each per layer");
  require_cost("the forward time", b.forward_s);
  require_cost("the start-up", cost.startup_s);
  require_cost("the time per byte", cost.per_byte_s);
  int layer = 0;
  for (double const t : b.backward_s) {
    ++layer;
    if (!stagger::detail::math::finite_and_not_negative(t))
      raise(Errc::bad_data, "the backward time of layer ", layer, " is ", t,
            " s; it must be a finite number that is not negative");
  }
}

/// ready[l - 1]: when the gradient of layer l is complete.
[[nodiscard]] constexpr std::vector<double> ready_times(Backward const& b) {
  std::vector<double> ready(b.backward_s.size(), 0.0);
  double at = b.forward_s;
  for (std::size_t l = ready.size(); l-- > 0;) ready[l] = at += b.backward_s[l];
  return ready;
}

}  // namespace detail

/// Simulates one iteration: one message at a time, in the order of the groups.
/// @throws Error  Errc::bad_data for bad times, sizes, or groups that do not list every layer once,
///                from the last down to the first; the text names the layer
/// @complexity    O(layers)
[[nodiscard]] constexpr Iteration evaluate(Backward const& backward,
                                           std::span<LayerGroup const> groups, CostLine cost) {
  detail::require_backward(backward, cost);
  auto const ready = detail::ready_times(backward);
  Iteration result;
  result.messages.reserve(groups.size());
  double const compute = ready.empty() ? backward.forward_s : ready.front();
  double link = 0;
  int next = backward.layers();
  auto unsent = backward.gradient_bytes;
  for (auto const& g : groups) {
    if (g.highest != next || g.lowest < 1 || g.lowest > g.highest)
      raise(Errc::bad_data, "group ", result.messages.size(), " is layers ", g.highest, " to ",
            g.lowest, ", but layer ", next,
            " comes next; groups list all layers once, from the last down to the first");
    std::uint64_t bytes = 0;
    for (; next >= g.lowest; --next) {
      bytes += unsent.back();
      unsent = unsent.first(unsent.size() - 1);
    }
    double const start = std::max(link, ready[unsent.size()]);
    link = start + cost.seconds(bytes);
    result.messages.push_back({g, bytes, start, link});
  }
  if (next != 0)
    raise(Errc::bad_data, "the groups end before layer ", next,
          "; groups list all layers once, from the last down to the first");
  result.iteration_s = std::max(link, compute);
  result.exposed_s = result.iteration_s - compute;
  return result;
}

/// No grouping ends earlier than this: the lowest layer's gradient is sent after the backward pass,
/// and all bytes are sent after the last layer's backward.
[[nodiscard]] constexpr double lower_bound_s(Backward const& backward, CostLine cost) {
  detail::require_backward(backward, cost);
  if (backward.layers() == 0) return backward.forward_s;
  auto const ready = detail::ready_times(backward);
  std::uint64_t bytes = 0;
  for (auto const q : backward.gradient_bytes) bytes += q;
  return std::max(ready.front() + cost.seconds(backward.gradient_bytes.front()),
                  ready.back() + cost.seconds(bytes));
}

}  // namespace stagger::collective
