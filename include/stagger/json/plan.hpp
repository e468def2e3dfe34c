// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Plans as JSON.

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/json/document.hpp>
#include <stagger/plan/plan.hpp>

namespace stagger::json {

namespace detail {
inline constexpr char const* gradients_names[] = {"together", "overlapped"};
}

/// `{"stages": [{"first", "last", "devices"}], "microbatches", "warmup", "latency_s",
/// "simulated_s", "lower_bound_s", "gap", "speedup", "acr", "alpha", "memory_bytes", "candidates",
/// "solve_s", "policy", "batch", "recompute", "gradients"}`; seconds and bytes; layers are numbered
/// from 0, both ends included.
[[nodiscard]] inline Value to_value(plan::Plan const& plan) {
  Value stages = Value::array(), warm_up = Value::array(), memory = Value::array();
  for (auto const& s : plan.stages) {
    stages.push_back({{"first", s.first}, {"last", s.last}, {"devices", s.devices}});
    warm_up.push_back(s.warm_up);
    memory.push_back(s.memory_bytes);
  }
  return {{"stages", stages},
          {"microbatches", plan.microbatches},
          {"warmup", warm_up},
          {"latency_s", plan.latency_s},
          {"simulated_s", plan.simulated_s},
          {"lower_bound_s", plan.lower_bound_s},
          {"gap", plan.gap},
          {"speedup", plan.speedup},
          {"acr", plan.acr},
          {"alpha", plan.alpha},
          {"memory_bytes", memory},
          {"candidates", plan.candidates},
          {"solve_s", plan.solve_s},
          {"policy", plan.policy},
          {"batch", plan.batch},
          {"recompute", plan.recompute},
          {"gradients", detail::gradients_names[static_cast<int>(plan.gradients)]}};
}

/// The plan in the format of `read_plan`, one key on each line.
[[nodiscard]] inline std::string write_plan(plan::Plan const& plan) {
  return detail::lines_of_json(to_value(plan), "stages");
}

/// Reads a plan. Stages, microbatches and warm-up are needed; predictions and the batch may be
/// missing, and are then 0.
/// @param  source  the name of the file in error messages
/// @throws Error   bad_data naming file, line, field and value: stages that leave out a layer or
///                 use a device twice, a warm-up that rises
[[nodiscard]] inline plan::Plan read_plan(std::string text_of_file, std::string source) {
  constexpr int most = 1'000'000'000;
  Field const file = Field::parse(std::move(text_of_file), std::move(source));
  plan::Plan plan;
  std::vector<int> used;
  int next = 0;
  for (Field const& field : file.at("stages").elements()) {
    plan::PlanStage stage{.first = field.at("first").integer(0, most),
                          .last = field.at("last").integer(0, most)};
    if (stage.first != next)
      field.at("first").refuse(text("; layer ", next, " comes next, give every layer a stage"));
    if (stage.last < stage.first)
      field.at("last").refuse(text("; a stage has a layer, give ", stage.first, " or more"));
    next = stage.last + 1;
    for (Field const& device : field.at("devices").elements()) {
      int const id = device.integer(0, most);
      if (std::find(used.begin(), used.end(), id) != used.end())
        device.refuse(", used before; a device has one stage");
      used.push_back(id);
      stage.devices.push_back(id);
    }
    if (stage.devices.empty()) field.at("devices").refuse("; give one device or more");
    std::sort(stage.devices.begin(), stage.devices.end());
    plan.stages.push_back(std::move(stage));
  }
  if (plan.stages.empty()) file.at("stages").refuse("; give one stage or more");
  plan.microbatches = file.at("microbatches").integer(1, most);
  auto const per_stage = [&](char const* key) {
    auto const all = file.at(key).elements();
    if (all.size() != plan.stages.size())
      file.at(key).refuse(text("; give one for each of ", plan.stages.size(), " stages"));
    return all;
  };
  auto const warm_up = per_stage("warmup");
  for (std::size_t i = 0; i < warm_up.size(); ++i) {
    int const before = i == 0 ? most : plan.stages[i - 1].warm_up;
    plan.stages[i].warm_up = warm_up[i].integer(1, most);
    if (plan.stages[i].warm_up > before)
      warm_up[i].refuse(
          text(", more than the stage before has; they would wait for each other for "
               "ever, give ",
               before, " or less"));
  }
  if (file.has("memory_bytes")) {
    auto const memory = per_stage("memory_bytes");
    for (std::size_t i = 0; i < memory.size(); ++i)
      plan.stages[i].memory_bytes = memory[i].number();
  }
  file.take_number("latency_s", plan.latency_s);
  file.take_number("simulated_s", plan.simulated_s);
  file.take_number("lower_bound_s", plan.lower_bound_s);
  file.take_number("speedup", plan.speedup);
  file.take_number("acr", plan.acr);
  file.take_number("alpha", plan.alpha);
  file.take_number("solve_s", plan.solve_s);
  if (plan.lower_bound_s > 0) plan.gap = plan.simulated_s / plan.lower_bound_s - 1;
  if (file.has("candidates")) {
    if (file.at("candidates").number() > 9e15)
      file.at("candidates").refuse("; give less than 9e15");
    plan.candidates = static_cast<long long>(file.at("candidates").number());
  }
  if (file.has("policy")) plan.policy = file.at("policy").string();
  if (file.has("batch")) plan.batch = file.at("batch").integer(0, most);
  if (file.has("recompute")) {
    Field const field = file.at("recompute");
    if (!field.value().is_boolean()) field.refuse("; give true or false");
    plan.recompute = field.value().get<bool>();
  }
  if (file.has("gradients"))
    plan.gradients = plan::Gradients(file.at("gradients").one_of(detail::gradients_names));
  plan.estimate.seconds = plan.latency_s;
  return plan;
}

}  // namespace stagger::json
