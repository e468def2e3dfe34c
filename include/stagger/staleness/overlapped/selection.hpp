// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Selection policies: which layers are late, given their scores and a budget of bytes.
/// @source Chen et al., "OSP", ICPP 2023, section 4.2. The paper does not say what happens to a
///         layer that does not fit.

#include <concepts>
#include <cstdint>
#include <span>

#include <stagger/parameters/late_layers.hpp>

namespace stagger::staleness::overlapped {

namespace detail {
/// Marks layers that fit, in order.
/// @param misfit  (layer, what is left of the budget) -> whether to go on behind one that does not
template <class Layer, class Misfit>
constexpr void pick(std::span<Layer> layers, double budget, Misfit misfit) {
  for (Layer& each : layers) {
    auto const bytes = static_cast<double>(each.bytes);
    each.late = bytes <= budget;
    if (each.late)
      budget -= bytes;
    else if (!misfit(each, budget))
      return;
  }
}
}  // namespace detail

/// `pick(layers, budget)` sets `late` for layers whose `bytes` together are at most `budget`. For
/// one further layer it may set `late_bytes`, how many of its first bytes are late, which is
/// rounded down to whole elements. Layers are sorted by rising `score`, and by their order in the
/// model if scores are equal. Exceeding the budget ends the step with an Error.
template <class S>
concept Selection = std::copyable<S> && std::equality_comparable<S> &&
                    requires(S const& selection, std::span<stagger::detail::LateCandidate> layers) {
                      selection.pick(layers, 1.0);
                    };

/// Instantiated if the concept does not hold.
template <class S> struct NotASelection {
  static_assert(sizeof(S) == 0,
                "stagger: not a selection of late layers: it needs 'template <class Layer> void "
                "pick(std::span<Layer> layers, double budget) const', and == by which workers are "
                "compared");
};

/// Takes each layer that still fits, and skips those that do not.
struct FirstFit {
  template <class Layer> constexpr void pick(std::span<Layer> layers, double budget) const {
    detail::pick(layers, budget, [](Layer&, double) { return true; });
  }
  friend bool operator==(FirstFit const&, FirstFit const&) = default;
};

/// Stops at the first layer that does not fit, so that no late layer is more important than an
/// urgent one.
struct StopAtMisfit {
  template <class Layer> constexpr void pick(std::span<Layer> layers, double budget) const {
    detail::pick(layers, budget, [](Layer&, double) { return false; });
  }
  friend bool operator==(StopAtMisfit const&, StopAtMisfit const&) = default;
};

/// Splits the first layer that does not fit: as many of its first weights as still fit are late,
/// the others urgent. Take this if one layer has most of the model's bytes.
struct SplitLayer {
  template <class Layer> constexpr void pick(std::span<Layer> layers, double budget) const {
    detail::pick(layers, budget, [](Layer& layer, double left) {
      layer.late_bytes = static_cast<std::uint64_t>(left);
      return false;
    });
  }
  friend bool operator==(SplitLayer const&, SplitLayer const&) = default;
};

}  // namespace stagger::staleness::overlapped
