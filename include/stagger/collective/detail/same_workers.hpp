// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The comparison of workers that join a parameter server, which must train one model by
///         the same rules.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

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

/// How many bytes the name of a run may have.
inline constexpr std::size_t longest_run = 64;

/// @throws Error  bad_configuration for a name that is too long
[[gnu::cold]] inline void require_run_name(std::string const& run) {
  if (run.size() > longest_run)
    raise(Errc::bad_configuration, "the name of a run, '", run, "', has ", run.size(),
          " bytes; use at most ", longest_run);
}

/// @param run  the worker's name of its run
/// @throws Error  mismatch, which names both
[[gnu::cold]] inline void require_same_run(int worker, std::string const& run,
                                           std::string const& servers) {
  auto const named = [](std::string const& name) {
    return name.empty() ? std::string("a run without a name") : text("run '", name, "'");
  };
  if (run != servers)
    raise(Errc::mismatch, "worker ", worker, " is of ", named(run),
          ", the parameter server that it joins of ", named(servers),
          "; connect with the server of its run, or give both the same name");
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

/// The policies by which layers are late, as text; empty if none are, or the policies cannot be
/// written down.
[[nodiscard]] [[gnu::cold]] inline std::string late_words(WorkerRules const& rules) {
  return rules.late == nullptr ? std::string() : rules.late->words(rules.late_policy);
}

/// The rules of a worker as they are sent to another process, or kept in a folder.
struct WrittenRules {
  int push_minibatches = 1;
  staleness::Pushes pushes{};
  staleness::Adds adds{};
  std::uint32_t ahead = 1;
  std::string optimizer{};  ///< its type and its numbers
  std::string late{};       ///< staleness model if layers may be late; otherwise empty
  std::string shared{};     ///< which layers groups of its ranks share; empty: none

  [[nodiscard]] [[gnu::cold]] static WrittenRules of(WorkerRules const& rules) {
    return {.push_minibatches = rules.push_minibatches,
            .pushes = rules.pushes,
            .adds = rules.adds,
            .ahead = rules.ahead,
            .optimizer = optimizer_fact(rules.optimizer).value,
            .late = late_words(rules),
            .shared = rules.shared};
  }
  /// Likewise without functions for late layers, and with an optimizer that can only be compared.
  [[nodiscard]] [[gnu::cold]] WorkerRules rules() const {
    auto const words = std::make_shared<std::string const>(optimizer);
    return {
        .push_minibatches = push_minibatches,
        .pushes = pushes,
        .adds = adds,
        .ahead = ahead,
        .optimizer = {.optimizer = words.get(),
                      .words = [](void const* of) { return *static_cast<std::string const*>(of); }},
        .kept = words,
        .shared = shared};
  }
};

/// What a worker pushes and how it is added, as text.
[[nodiscard]] [[gnu::cold]] inline std::string pushes_of(WorkerRules const& rules) {
  constexpr char const* pushes[] = {"gradients", "changes", "weights", "weights and states"};
  constexpr char const* adds[] = {"on arrival", "in the order of workers", "in turn"};
  return text(pushes[static_cast<int>(rules.pushes)], ", to be added ",
              adds[static_cast<int>(rules.adds)]);
}
/// How far a worker may be ahead, as text.
[[nodiscard]] [[gnu::cold]] inline std::string lead_of(WorkerRules const& rules) {
  return rules.ahead == WorkerRules::unlimited ? "any number of pushes"
                                               : counted(rules.ahead, "push");
}

/// The parameters of a layer, as text.
[[nodiscard]] [[gnu::cold]] inline std::string parameters_of(LayerShape const& layer) {
  std::string all;
  for (std::size_t i = 0; i < layer.count(); ++i) {
    auto const& each = layer.declaration(i);
    all += text(each.name, ": ", each.size,
                each.type == stagger::ElementType::f32 ? " floats" : " doubles",
                each.rows != 0 ? text(" in ", counted(each.rows, "row")) : std::string(),
                each.decays ? ", " : " without decay, ");
  }
  return text(all, layer.bytes_of_values(), " bytes in all");
}

/// @param own, others  as `late_words`
[[gnu::cold]] inline void require_same_late(int worker, bool same, std::string const& own,
                                            std::string const& others) {
  auto const rule = [](std::string const& words) {
    return words.empty() ? "another rule" : text("'", words, "'");
  };
  if (!same)
    raise(Errc::mismatch, "layers of worker ", worker, " are late by ", rule(own),
          ", those of the others by ", rule(others),
          "; give all workers the same staleness model, with the same numbers");
}

/// @throws Error  mismatch, naming what differs
[[gnu::cold]] inline void require_same_rules(int worker, WorkerRules const& rules,
                                             WorkerRules const& others) {
  if (rules.push_minibatches != others.push_minibatches)
    raise(Errc::mismatch, "worker ", worker, " pushes after every ",
          counted(rules.push_minibatches, "minibatch"), ", the others after ",
          others.push_minibatches, "; give all workers the same staleness model");
  if (rules.pushes != others.pushes || rules.adds != others.adds)
    raise(Errc::mismatch, "worker ", worker, " pushes ", pushes_of(rules),
          ", where the others push ", pushes_of(others),
          "; give all workers the same staleness model");
  if (rules.ahead != others.ahead)
    raise(Errc::mismatch, "worker ", worker, " may be ", lead_of(rules),
          " ahead of the slowest, the others ", lead_of(others),
          "; give all workers the same staleness model, with the same numbers");
  require_same_late(
      worker,
      rules.late == others.late &&
          (rules.late == nullptr || rules.late->equal(rules.late_policy, others.late_policy)),
      late_words(rules), late_words(others));
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
  bool same =
      layer.count() == others.count() && layer.bytes_of_values() == others.bytes_of_values();
  for (std::size_t i = 0; same && i < layer.count(); ++i) {
    auto const& a = layer.declaration(i);
    auto const& b = others.declaration(i);
    same = a.name == b.name && a.type == b.type && a.size == b.size && a.rows == b.rows &&
           a.decays == b.decays;
  }
  if (!same)
    raise(Errc::mismatch, "layer ", l, " of worker ", worker, " has the parameters '",
          parameters_of(layer), "', that of the others '", parameters_of(others),
          "'; workers train one model");
}

}  // namespace stagger::collective::detail
