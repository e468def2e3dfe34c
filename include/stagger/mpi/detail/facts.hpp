// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The facts that must be equal in all processes that share a pipeline.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <stagger/collective/handshake.hpp>
#include <stagger/core/error.hpp>
#include <stagger/mpi/detail/held_parameters.hpp>
#include <stagger/program/facts.hpp>

namespace stagger::mpi::detail {

using stagger::detail::Digest;

/// The facts of a pipeline: version, model, cuts, options.
[[nodiscard]] inline std::vector<collective::Fact> facts_of(HeldParameters const& held) {
  std::vector<collective::Fact> facts{collective::library_fact()};
  auto& machine = held.machine;
  auto& parameters = machine.parameters();
  Options const& options = machine.options();
  auto const& model = machine.model;
  facts.push_back({"the number of layers", std::to_string(model.model_layers())});
  facts.push_back({"partition::LayerSplit",
                   model.grouped == nullptr ? "nothing is split" : model.grouped->description});
  std::string cuts;
  for (std::size_t l = 1; l < parameters.size(); ++l)
    if (model.table_stage(held.stage_of(l)) != model.table_stage(held.stage_of(l - 1)))
      cuts += text(cuts.empty() ? "" : " ", model.number(l));
  facts.push_back({"the first layers of the stages", cuts});
  std::string replicas;
  for (auto const& part : options.replicas.parts())
    replicas += text(part.position, ":", static_cast<std::int64_t>(part.own), "/",
                     static_cast<std::int64_t>(part.total), " ");
  facts.push_back({"Options::replicas", replicas});
  facts.push_back({"Options::clip_norm", options.clip_norm ? text(*options.clip_norm) : "none"});
  facts.push_back({"AllReduce::shard_optimizer", held.machine.shards() ? "true" : "false"});
  auto const& grouping = held.grouping();
  facts.push_back({"AllReduce::by", grouping.by == collective::By::slices ? "slices" : "library"});
  facts.push_back({"AllReduce::measured_steps", std::to_string(grouping.measured_steps)});
  facts.push_back({"AllReduce::renew_every", std::to_string(grouping.renew_every)});
  facts.push_back({"the worker of the parameter server",
                   machine.exchange() == nullptr ? "none" : text(machine.exchange()->worker())});
  facts.push_back({"Options::seed", std::to_string(options.seed)});
  facts.push_back({"Options::recompute", options.recompute ? "true" : "false"});
  facts.push_back({"Options::spare_slots",
                   options.spare_slots ? std::to_string(*options.spare_slots) : "as laid out"});
  for (std::size_t l = 0; l < parameters.size(); ++l) {
    auto const& layer = parameters[l];
    std::string shape;
    Digest values;
    for (std::size_t i = 0; i < layer.count(); ++i) {
      auto const& d = layer.declaration(i);
      shape +=
          text(shape.empty() ? "" : ", ", layer.number(), ".", d.name, ": ", layer.value_bytes(i),
               " bytes of ", d.type == stagger::ElementType::f32 ? "float" : "double");
      auto const origin = layer.origin(i);
      values.add({reinterpret_cast<char const*>(origin.data()), origin.size()});
    }
    facts.push_back({text("the parameters of layer ", layer.number()), shape});
    facts.push_back({text("the values of layer ", layer.number(), "'s parameters"), values.hex()});
  }
  return facts;
}

}  // namespace stagger::mpi::detail
