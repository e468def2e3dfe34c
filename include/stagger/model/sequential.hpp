// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A chain of layers that a partitioner can divide into stages.

#include <concepts>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/model/stage.hpp>

namespace stagger {

namespace detail {
template <class L> struct LayerTraits {  // one layer
  using Layer = L;
  static constexpr bool repeated = false;
};
template <class L>
struct LayerTraits<std::vector<L>> {  // a run of equal layers, its length known at run time
  using Layer = L;
  static constexpr bool repeated = true;
};

/// Whether B can be the layer after A. True if either is not a stage, which the pipeline refuses.
template <class A, class B> inline constexpr bool may_follow = true;
template <class A, class B>
  requires requires {
    typename A::Output;
    typename B::Input;
  }
inline constexpr bool may_follow<A, B> = std::same_as<typename A::Output, typename B::Input>;

template <class First = void, class... Rest> consteval bool chain_fits() {
  using Here = typename LayerTraits<First>::Layer;
  if constexpr (LayerTraits<First>::repeated && !may_follow<Here, Here>) {
    return false;
  } else if constexpr (sizeof...(Rest) == 0) {
    return true;
  } else {
    using Next = typename LayerTraits<std::tuple_element_t<0, std::tuple<Rest...>>>::Layer;
    return may_follow<Here, Next> && chain_fits<Rest...>();
  }
}
}  // namespace detail

/// Layers in order, each the input of the next. A `std::vector<Layer>` stands for as many layers as
/// it holds:
///
///     Sequential{Embedding{...}, std::vector<Block>(12), Head{...}}   // 14 layers
///
/// Given to a `Pipeline` as its only element, it is cut into stages by the partitioner; as one
/// element among several, it is one stage.
template <class... L> class Sequential {
  static_assert(sizeof...(L) > 0, "stagger: a Sequential needs at least one layer");
  static_assert(detail::chain_fits<L...>(),
                "stagger: neighbouring layers of a Sequential do not fit: the Output of each must "
                "be the Input of the next");

 public:
  explicit Sequential(L... layers) : layers_(std::move(layers)...) {}

  /// The layers as given.
  [[nodiscard]] std::tuple<L...>& layers() noexcept { return layers_; }

 private:
  std::tuple<L...> layers_;
};

}  // namespace stagger
