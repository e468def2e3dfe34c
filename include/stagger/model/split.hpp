// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The concepts of layers that a group of ranks can share, each with a part (tensor
///         parallelism).

#include <concepts>
#include <cstddef>
#include <cstdint>

#include <stagger/core/index_range.hpp>

namespace stagger {

/// How a layer is divided among the members of a group.
enum class SplitBy : std::uint8_t {
  nothing,  ///< each member has all of it
  outputs,  ///< each has some of its output features, which are columns of the output
  inputs,   ///< each has some of its input features; the output is the sum over all members
};

/// The features of one member of a group: [o d / K, (o + 1) d / K) for member o of K and d
/// features.
/// @pre member < members
[[nodiscard]] constexpr IndexRange features_of(std::size_t member, std::size_t members,
                                               std::size_t features) noexcept {
  return {member * features / members, (member + 1) * features / members};
}

/// A layer that can be divided among the members of a group.
///  - `inputs()`, `outputs()`: how many features a row of its input and of its output has
///  - `part(member, members, by)`: the layer of one member, with its piece of the parameters
///    (`Parameter::piece`). By outputs it takes all features and gives those of
///    `features_of(member, members, outputs())`; its gradient of the input is what these
///    contribute. By inputs it takes those of `features_of(member, members, inputs())` and gives
///    terms, which are added up; what is added once, such as a bias, belongs to member 0.
///
/// `part` is called with SplitBy::inputs only if there is `static constexpr bool by_inputs = true`.
template <class L>
concept SplittableLayer = requires(L const& layer, int member, SplitBy by) {
  { layer.inputs() } -> std::convertible_to<std::size_t>;
  { layer.outputs() } -> std::convertible_to<std::size_t>;
  { layer.part(member, member, by) } -> std::same_as<L>;
};

/// A layer that processes every feature independently, and so works on any columns of its input:
/// `static constexpr bool element_wise = true;`. `Context::first_column()` is the number of the
/// first feature that it is given.
template <class L>
concept ElementWiseLayer = requires { requires L::element_wise; };

}  // namespace stagger
