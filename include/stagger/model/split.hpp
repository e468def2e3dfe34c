// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What a layer says of itself so that a group of ranks can share it, each with a part.

#include <concepts>
#include <cstddef>
#include <cstdint>

#include <stagger/core/index_range.hpp>

namespace stagger {

/// How a layer is shared out to the members of a group.
enum class SplitBy : std::uint8_t {
  nothing,  ///< each member has all of it
  outputs,  ///< each has some of its output features: columns of the output
  inputs,   ///< each works on some of its input features; the sum over all members is the output
};

/// The features of a member: [o d / K, (o + 1) d / K) of d, for member o of K.
/// @pre member < members
[[nodiscard]] constexpr IndexRange features_of(std::size_t member, std::size_t members,
                                               std::size_t features) noexcept {
  return {member * features / members, (member + 1) * features / members};
}

/// A layer of which members of a group can have a part each.
///  - `inputs()`, `outputs()`: how many features a row of its input and of its output has
///  - `part(member, members, by)`: the layer of one member, with its piece of the parameters
///    (`Parameter::piece`). By outputs it takes all features and gives those of
///    `features_of(member, members, outputs())`; its gradient of the input is what these
///    contribute. By inputs it takes those of `features_of(member, members, inputs())` and gives
///    terms, which are added up; what is added once, such as a bias, belongs to member 0.
///
/// It is asked for a part by inputs only if it says `static constexpr bool by_inputs = true`.
template <class L>
concept SplittableLayer = requires(L const& layer, int member, SplitBy by) {
  { layer.inputs() } -> std::convertible_to<std::size_t>;
  { layer.outputs() } -> std::convertible_to<std::size_t>;
  { layer.part(member, member, by) } -> std::same_as<L>;
};

/// A layer that treats every feature by itself, and so works on any columns of its input:
/// `static constexpr bool element_wise = true;`. Where it needs to know which feature of the whole
/// it begins with, `Context::first_column()` tells.
template <class L>
concept ElementWiseLayer = requires { requires L::element_wise; };

}  // namespace stagger
