// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A description of a pipeline before its first step: the layers, and the part of each that
///         a member of a group has.

#include <cstddef>
#include <cstdint>

#include <stagger/core/list.hpp>
#include <stagger/engine/groups.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/partition/split_plan.hpp>
#include <stagger/train/pipeline_footprint.hpp>
#include <stagger/train/trainer.hpp>

namespace stagger {
namespace detail {

/// Counts the elements of a layer's parameters, of all members together.
/// @param part   member 0's
/// @param other  member 1's; null if the layer is not split
inline void count_parameters(LayerParameters const& part, LayerParameters const* other,
                             partition::LayerFeatures& features) {
  for (std::size_t p = 0; p < part.count(); ++p) {
    auto const& declaration = part.declaration(p);
    std::size_t const whole = other == nullptr ? declaration.size : declaration.piece.whole;
    features.parameters += whole;
    if (other != nullptr && declaration.size == whole && other->declaration(p).size == 0)
      features.biases += whole;
  }
}

[[nodiscard]] [[gnu::cold]] inline partition::SplitChain describe(ModelState const& model) {
  partition::SplitChain chain;
  if (model.division == nullptr) {
    for (Layer const& layer : model.layers) chain.layers.push_back(features_of_layer(layer));
    chain.plan = partition::plan_split(chain.layers, {});
  } else {
    chain = static_cast<GroupedModel const&>(*model.division).chain;
  }
  int last = -1;
  for (std::size_t l = 0; l < chain.layers.size(); ++l) {
    if (model.grouped != nullptr) {
      Grouped::Whole const& of = model.grouped->wholes[l];
      count_parameters(model.parameters[of.of(0)], of.split ? &model.parameters[of.of(1)] : nullptr,
                       chain.layers[l]);
    } else if (int const number = chain.number(l); number != last) {  // not the second one of two
      count_parameters(model.parameters[number], nullptr, chain.layers[l]);
      last = number;
    }
  }
  return chain;
}

/// Runs an input forward, and says how many bytes a row of each layer's output has.
[[gnu::cold]] inline void measure_outputs(ModelState& model, void const* input,
                                          partition::SplitChain& chain) {
  List<std::uint64_t> const bytes = FootprintRun(model).row_bytes(input);
  for (std::size_t l = 0; l < chain.layers.size(); ++l) {
    std::size_t& row = chain.layers[l].row_bytes;
    if (model.grouped == nullptr) {
      // Of a layer that groups would divide into two, only the output of the second one exists.
      bool const second = l + 1 == chain.layers.size() || chain.number(l + 1) != chain.number(l);
      if (second) row = bytes[chain.number(l)];
      continue;
    }
    Grouped::Whole const& of = model.grouped->wholes[l];
    bool const parts = chain.plan.layers[l].gives == partition::Held::columns;
    for (int m = 0; m < (parts ? of.members : 1); ++m) row += bytes[of.of(m)];
  }
}

}  // namespace detail

/// The layers of a pipeline as groups of its ranks share them, for `report::table` and
/// `report::svg`. The output sizes of layers that are not split are known only when they run: see
/// the next function.
///
/// @code
///     std::cout << report::table(describe(train), 0, rows);  // member 0, which has this many rows
/// @endcode
/// @throws Error  mismatch for a layer whose inputs are not the previous layer's outputs
template <class In, class Out, class Optimizer, class Loss, bool synchronous, class Device>
[[nodiscard]] partition::SplitChain describe(
    Trainer<In, Out, Optimizer, Loss, synchronous, Device>& train) {
  return detail::describe(train.machine().model);
}

/// Likewise, with the bytes of every layer's output, for which it runs an input through the layers,
/// forward, without a step.
/// @param input    as for `step`, of one microbatch with any number of rows
/// @throws Error  also bad_configuration where parameters are not in this process' memory; what a
///                layer throws
template <class In, class Out, class Optimizer, class Loss, bool synchronous, class Device>
[[nodiscard]] partition::SplitChain describe(
    Trainer<In, Out, Optimizer, Loss, synchronous, Device>& train, In const& input) {
  train.settle();
  auto const hold = train.hold();
  partition::SplitChain chain = detail::describe(train.machine().model);
  detail::measure_outputs(train.machine().model, &input, chain);
  return chain;
}

}  // namespace stagger
