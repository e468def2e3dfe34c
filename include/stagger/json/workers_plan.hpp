// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Plans of workers that share a parameter server, as JSON.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/json/document.hpp>
#include <stagger/plan/workers_plan.hpp>

namespace stagger::json {

namespace detail {

inline constexpr char const* sharing_names[] = {"fair", "fifo", "one-at-a-time"};
inline constexpr char const* duplex_names[] = {"full", "half"};

}  // namespace detail

/// `{"allocation", "parameters", "in_flight", "distance", "batch", "samples_per_s", "candidates",
/// "layer_bytes", "layer_nodes", "links": [{"bytes_per_s", "latency_s", "loss", "sharing",
/// "duplex"}], "workers": [{"waiting", "idle", "limiting_device", "wanted_bytes", "stages":
/// [{"first", "last", "device", "node", "forward_s", "backward_s", "transfer_s", "busy",
/// "memory_bytes", "capacity_bytes"}]}]}`; a link without `bytes_per_s` carries everything at once.
/// A worker whose memory limits nothing has no `limiting_device` and no `wanted_bytes`.
[[nodiscard]] inline Value to_value(plan::WorkersPlan const& plan) {
  Value links = Value::array(), workers = Value::array();
  for (schedule::Links const& link : plan.links) {
    Value one{{"latency_s", link.latency_s},
              {"loss", link.loss},
              {"sharing", detail::sharing_names[static_cast<int>(link.sharing)]},
              {"duplex", detail::duplex_names[static_cast<int>(link.duplex)]}};
    if (!std::isinf(link.rate)) one["bytes_per_s"] = link.rate;
    links.push_back(std::move(one));
  }
  for (plan::VirtualWorker const& worker : plan.workers) {
    Value stages = Value::array();
    for (plan::WorkerStage const& s : worker.stages)
      stages.push_back({{"first", s.first},
                        {"last", s.last},
                        {"device", s.device},
                        {"node", s.node},
                        {"forward_s", s.forward_s},
                        {"backward_s", s.backward_s},
                        {"transfer_s", s.transfer_s},
                        {"busy", s.busy},
                        {"memory_bytes", s.memory_bytes},
                        {"capacity_bytes", s.capacity_bytes}});
    workers.push_back({{"waiting", worker.waiting}, {"idle", worker.idle}, {"stages", stages}});
    if (worker.limiting_device < 0) continue;
    workers.back()["limiting_device"] = worker.limiting_device;
    workers.back()["wanted_bytes"] = worker.wanted_bytes;
  }
  return {{"allocation", plan.allocation.name()},
          {"parameters", plan.parameters.name()},
          {"in_flight", plan.in_flight},
          {"distance", plan.distance},
          {"batch", plan.batch},
          {"samples_per_s", plan.samples_per_s},
          {"candidates", plan.candidates},
          {"layer_bytes", plan.layer_bytes},
          {"layer_nodes", plan.layer_nodes},
          {"links", links},
          {"workers", workers}};
}

/// The plan in the format of `read_workers_plan`, one key on each line.
[[nodiscard]] inline std::string write_plan(plan::WorkersPlan const& plan) {
  return detail::lines_of_json(to_value(plan), "workers");
}

/// Reads a plan. Predictions may be missing, and are then 0.
/// @param  source  the name of the file in error messages
/// @throws Error   bad_data naming file, line, field and value: stages that leave out a layer, a
///                 device that is used twice, nodes or links that do not exist
[[nodiscard]] inline plan::WorkersPlan read_workers_plan(std::string text_of_file,
                                                         std::string source) {
  constexpr int most = 1'000'000'000;
  Field const file = Field::parse(std::move(text_of_file), std::move(source));
  plan::WorkersPlan plan;
  auto const choose = [&]<class Named>(char const* key, Named& to) {
    to = Named::all()[file.at(key).one_of(Named::names)];
  };
  choose("allocation", plan.allocation);
  choose("parameters", plan.parameters);
  plan.in_flight = file.at("in_flight").integer(1, most);
  plan.distance = file.at("distance").integer(0, most);
  plan.batch = file.at("batch").integer(1, most);
  file.take_number("samples_per_s", plan.samples_per_s);
  if (file.has("candidates")) plan.candidates = file.at("candidates").integer(0, most);
  for (Field const& bytes : file.at("layer_bytes").elements())
    plan.layer_bytes.push_back(bytes.bytes());
  int const layers = static_cast<int>(plan.layer_bytes.size());
  if (layers == 0) file.at("layer_bytes").refuse("; give one layer or more");
  for (Field const& field : file.at("links").elements()) {
    schedule::Links link{.latency_s = field.at("latency_s").number()};
    if (field.has("bytes_per_s")) link.rate = field.at("bytes_per_s").positive();
    field.take_number("loss", link.loss);
    link.sharing = schedule::Sharing(field.at("sharing").one_of(detail::sharing_names));
    link.duplex = schedule::Duplex(field.at("duplex").one_of(detail::duplex_names));
    plan.links.push_back(link);
  }
  int const nodes = static_cast<int>(plan.links.size() / 2);
  if (nodes == 0 || plan.links.size() % 2 != 0)
    file.at("links").refuse("; give a link to each node, then one inside each");
  for (Field const& node : file.at("layer_nodes").elements())
    plan.layer_nodes.push_back(node.integer(0, nodes - 1));
  if (plan.layer_nodes.size() != plan.layer_bytes.size())
    file.at("layer_nodes").refuse(text("; give one for each of ", layers, " layers"));
  std::vector<int> used;
  for (Field const& field : file.at("workers").elements()) {
    plan::VirtualWorker worker;
    field.take_number("waiting", worker.waiting);
    field.take_number("idle", worker.idle);
    if (field.has("limiting_device")) {
      worker.limiting_device = field.at("limiting_device").integer(0, most);
      worker.wanted_bytes = field.at("wanted_bytes").number();
    }
    int next = 0;
    for (Field const& of : field.at("stages").elements()) {
      plan::WorkerStage stage{.first = of.at("first").integer(0, most),
                              .last = of.at("last").integer(0, most),
                              .device = of.at("device").integer(0, most),
                              .node = of.at("node").integer(0, nodes - 1),
                              .forward_s = of.at("forward_s").number(),
                              .backward_s = of.at("backward_s").number(),
                              .transfer_s = of.at("transfer_s").number()};
      if (next != stage.first)
        of.at("first").refuse(text("; layer ", next, " comes next, give every layer a stage"));
      if (stage.last < stage.first || stage.last >= layers)
        of.at("last").refuse(text("; a stage has a layer, give ", stage.first, " to ", layers - 1));
      next = stage.last + 1;
      if (std::find(used.begin(), used.end(), stage.device) != used.end())
        of.at("device").refuse(", used before; a device has one stage");
      used.push_back(stage.device);
      of.take_number("busy", stage.busy);
      of.take_number("memory_bytes", stage.memory_bytes);
      of.take_number("capacity_bytes", stage.capacity_bytes);
      worker.stages.push_back(stage);
    }
    if (worker.limiting_device >= 0 &&
        std::none_of(worker.stages.begin(), worker.stages.end(),
                     [&](auto const& stage) { return stage.device == worker.limiting_device; }))
      field.at("limiting_device").refuse("; give the device of one of its stages");
    if (next != layers) field.at("stages").refuse(text("; layer ", next, " needs a stage, too"));
    plan.workers.push_back(std::move(worker));
  }
  if (plan.workers.empty()) file.at("workers").refuse("; give one worker or more");
  return plan;
}

}  // namespace stagger::json
