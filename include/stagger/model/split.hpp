// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The concepts of layers that a group of ranks can share, each with a part (tensor
///         parallelism).

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <stagger/core/error.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/model/parameter.hpp>

namespace stagger {

/// How a layer is divided among the members of a group.
enum class SplitBy : std::uint8_t {
  nothing,  ///< each member has all of it
  outputs,  ///< each has some of its output features, which are columns of the output
  inputs,   ///< each has some of its input features; the output is the sum over all members
  hidden,   ///< each has some of what lies between input and output, such as heads of attention; it
            ///< takes all input features, and the output is the sum over all members
};

/// The features of one member of a group: [o d / K, (o + 1) d / K) for member o of K and d
/// features.
/// @pre 0 <= member < members
[[nodiscard]] constexpr IndexRange features_of(std::integral auto member,
                                               std::integral auto members,
                                               std::size_t features) noexcept {
  auto const o = static_cast<std::size_t>(member), K = static_cast<std::size_t>(members);
  return {o * features / K, (o + 1) * features / K};
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

/// A layer that members share by what lies between its input and its output: the hidden features of
/// an MLP, or heads of attention. It is a SplittableLayer, and is asked for parts by
/// SplitBy::hidden alone.
///  - `hidden()`: how many of them there are
///  - `operations()`: multiplications of its forward, for a row
///  - `part(member, members, by)`: the layer with the hidden features of
///    `features_of(member, members, hidden())`. It takes all input features and gives terms of the
///    output; its gradient of the input is terms, too. What is added once, such as the last bias,
///    belongs to member 0.
template <class L>
concept HiddenSplittableLayer = SplittableLayer<L> && requires(L const& layer) {
  { layer.hidden() } -> std::convertible_to<std::size_t>;
  { layer.operations() } -> std::convertible_to<std::size_t>;
};

/// A layer that groups take as two: behind one that every member has, such as a normalisation, one
/// that can be shared. So the gradient of the first is added up over the members before it computes
/// that of its own parameters.
///  - `divided()`: a std::pair of layers, which together do what the layer does, with its
///    parameters in its order. Both count as that layer: they have its number, and its random
///    seeds; the first does not ask for `Context::first_row()`.
template <class L>
concept DividedLayer = requires(L const& layer) {
  layer.divided().first;
  layer.divided().second;
};

namespace detail {
/// The type of the value between the two layers by which groups replace a layer; for other layers,
/// the type of the output.
template <class L> struct Within {
  using type = typename L::Output;
};
template <DividedLayer L> struct Within<L> {
  using type = typename decltype(std::declval<L const&>().divided().first)::Output;
};
}  // namespace detail

/// A layer that processes every feature independently, and so works on any columns of its input:
/// `static constexpr bool element_wise = true;`. `Context::first_column()` is the number of the
/// first feature that it is given.
template <class L>
concept ElementWiseLayer = requires { requires L::element_wise; };

template <class T> [[gnu::cold]] Parameter<T> Parameter<T>::piece(ParameterPiece const& of) const {
  Parameter own = *this;
  own.size_ = of.size();
  own.piece_ = of;
  own.piece_.whole = size_;
  own.rows_ = 0;  // what is whole in a group, no optimizer asks
  if (piece_.whole != 0)
    raise(Errc::bad_configuration, "a piece of parameter '", name_,
          "' cannot be cut again; let part() of the layer cut the whole parameter");
  if (of.runs > 1 && of.stride < of.length)
    raise(Errc::bad_configuration, "the runs of a piece of parameter '", name_, "' overlap, since ",
          counted(of.length, "element"), " of each begin ", of.stride,
          " after those before; let part() of the layer choose a stride of at least ", of.length);
  if (of.size() != 0 && of.element(of.size() - 1) >= size_)
    raise(Errc::bad_configuration, "a piece of parameter '", name_, "' ends with element ",
          of.element(of.size() - 1), ", but the parameter has ", counted(size_, "element"),
          "; let part() of the layer choose elements below ", size_);
  if (fill_ != nullptr) return own;
  if (initial_.size() != size_)
    raise(Errc::bad_configuration, "parameter '", name_,
          "' cannot be cut into pieces, since an engine has taken over its initial values; make "
          "the pieces before the pipeline");
  own.initial_.clear();
  own.initial_.reserve(of.size());
  for (std::size_t i = 0; i < of.size(); ++i) own.initial_.push_back(initial_[of.element(i)]);
  return own;
}

}  // namespace stagger
