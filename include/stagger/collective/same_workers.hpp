// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The comparison of workers that join a parameter server, which must train one model by
///         the same rules.

#include <cstddef>
#include <cstdint>
#include <span>

#include <stagger/collective/handshake.hpp>
#include <stagger/core/digest.hpp>
#include <stagger/core/error.hpp>
#include <stagger/parameters/late_layers.hpp>
#include <stagger/parameters/layer_shape.hpp>
#include <stagger/parameters/parameter_link.hpp>

namespace stagger::collective::detail {

using stagger::detail::LayerShape;
using stagger::detail::WorkerRules;

/// Digest of a layer's values.
[[nodiscard]] inline std::uint64_t values_digest(std::span<std::byte const> values) noexcept {
  return stagger::detail::digest(reinterpret_cast<char const*>(values.data()), values.size());
}

/// @param others  who has `theirs`, as text
/// @throws Error  mismatch, which names both values
[[gnu::cold]] inline void require_same_fact(int worker, Fact const& own, char const* others,
                                            Fact const& theirs) {
  if (own.value != theirs.value)
    raise(Errc::mismatch, "worker ", worker, " and ", others, " disagree on ", own.name,
          ": worker ", worker, " has '", own.value, "', ", others, " have '", theirs.value,
          "'; give all the same");
}

/// @throws Error  mismatch, naming what differs
[[gnu::cold]] inline void require_same_rules(int worker, WorkerRules const& rules,
                                             WorkerRules const& others) {
  if (rules.push_minibatches != others.push_minibatches)
    raise(Errc::mismatch, "worker ", worker, " pushes after every ",
          counted(rules.push_minibatches, "minibatch"), ", the others after ",
          others.push_minibatches, "; give all workers the same staleness model");
  if (rules.pushes != others.pushes || rules.adds != others.adds || rules.late != others.late ||
      (rules.late != nullptr && !rules.late->equal(rules.late_policy, others.late_policy)))
    raise(Errc::mismatch, "worker ", worker,
          " pushes something else, or to be added in another way, than the others; give all "
          "workers the same staleness model");
  if (rules.shared != others.shared)
    raise(Errc::mismatch, "groups of ranks of worker ", worker, " share layers as '",
          rules.shared.empty() ? "none" : rules.shared, "', those of the others as '",
          others.shared.empty() ? "none" : others.shared,
          "'; give all workers the same partition::LayerSplit");
  if (rules.clock != others.clock)
    raise(Errc::mismatch, "worker ", worker,
          " runs in another time than the others; give all workers copies of one sim::Clock, or "
          "none of them a virtual clock");
  require_same_fact(worker, optimizer_fact(rules.optimizer), "the others",
                    optimizer_fact(others.optimizer));
}

/// @throws Error  likewise
[[gnu::cold]] inline void require_same_layer(int worker, std::size_t l, LayerShape const& layer,
                                             LayerShape const& others) {
  if (layer.bytes_of_values() != others.bytes_of_values())
    raise(Errc::mismatch, "layer ", l, " of worker ", worker, " has parameters of ",
          layer.bytes_of_values(), " bytes, that of the others of ", others.bytes_of_values(),
          "; workers train one model");
  bool same = layer.count() == others.count();
  for (std::size_t i = 0; same && i < layer.count(); ++i) {
    auto const& a = layer.declaration(i);
    auto const& b = others.declaration(i);
    same = a.name == b.name && a.type == b.type && a.size == b.size && a.decays == b.decays;
  }
  if (!same)
    raise(Errc::mismatch, "the parameters of layer ", l, " of worker ", worker,
          " have other names, sizes or types than those of the others; workers train one model");
}

}  // namespace stagger::collective::detail
