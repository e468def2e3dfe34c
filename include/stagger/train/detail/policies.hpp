// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The selection of policies from arguments in any order, and their defaults.

#include <concepts>
#include <type_traits>
#include <utility>

#include <stagger/collective/policy.hpp>
#include <stagger/engine/device.hpp>
#include <stagger/engine/options.hpp>
#include <stagger/model/loss.hpp>
#include <stagger/model/optimizer.hpp>
#include <stagger/model/sequential.hpp>
#include <stagger/partition/cuts.hpp>
#include <stagger/placement/in_order.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/schedule/policy.hpp>
#include <stagger/staleness/synchronous.hpp>

namespace stagger::detail {

/// The loss of a pipeline that has none and only predicts.
struct NoLoss {
  using policy_tag = LossTag;
  struct Target {};
};

/// The collective policy if none is given: it stands for collective::AllReduce<>{}, which a
/// pipeline without replicas need not compile.
struct DefaultCollective {};

template <class P>
concept HasTag = requires { typename P::policy_tag; };

template <class P, class Tag> inline constexpr bool fills = false;
template <HasTag P, class Tag>
inline constexpr bool fills<P, Tag> = std::same_as<typename P::policy_tag, Tag>;

template <class Tag, class... P>
inline constexpr int count_of = (0 + ... + (fills<P, Tag> ? 1 : 0));

/// The first argument with a tag, or a default.
template <class Tag, class Default, class... P> struct Pick {
  using type = Default;
  static type from(P&...) { return type{}; }
};
template <class Tag, class Default, class First, class... Rest>
struct Pick<Tag, Default, First, Rest...> {
  static constexpr bool here = fills<First, Tag>;
  using Later = Pick<Tag, Default, Rest...>;
  using type = std::conditional_t<here, First, typename Later::type>;
  static type from(First& first, Rest&... rest) {
    if constexpr (here)
      return std::move(first);
    else
      return Later::from(rest...);
  }
};

/// A type list of layers: a Sequential is replaced by its layers, a vector of layers stays.
template <class... L> struct Layers {};
template <class... L> struct Flatten;
template <class... Done> struct Flatten<Layers<Done...>> {
  using type = Layers<Done...>;
};
template <class... Done, class... L, class... Rest>
struct Flatten<Layers<Done...>, Sequential<L...>, Rest...>
    : Flatten<Layers<Done..., L...>, Rest...> {};
template <class... Done, class First, class... Rest>
struct Flatten<Layers<Done...>, First, Rest...> : Flatten<Layers<Done..., First>, Rest...> {};

template <class... L> struct Ends;
template <class First, class... Rest> struct Ends<Layers<First, Rest...>> {
  using Last =
      typename decltype((std::type_identity<First>{}, ..., std::type_identity<Rest>{}))::type;
  using Input = typename LayerTraits<First>::Layer::Input;
  using Output = typename LayerTraits<Last>::Layer::Output;
};

}  // namespace stagger::detail
