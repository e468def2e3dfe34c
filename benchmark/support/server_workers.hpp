// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Workers of a parameter server without a pipeline: what they join with, and wait with.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include <stagger/parameters/layer_parameters.hpp>
#include <stagger/parameters/parameter_link.hpp>

/// Layers of so many floats each, as a worker has them.
inline std::vector<stagger::detail::LayerParameters> layers(std::size_t count, std::size_t floats) {
  std::vector<stagger::detail::LayerParameters> made(count);
  for (std::size_t l = 0; l < count; ++l) {
    stagger::List<stagger::detail::ParameterDeclaration> declared;
    stagger::detail::ParameterDeclaration d;
    d.name = "values";
    d.type = stagger::ElementType::f32;
    d.size = floats;
    d.initial.assign(floats * sizeof(float), std::byte{0});
    declared.push_back(std::move(d));
    made[l].adopt(std::move(declared), static_cast<int>(l), 0);
  }
  return made;
}

struct Waiting final : stagger::detail::ParameterListener {
  std::atomic<std::uint32_t> arrived_layers{0};
  void arrived(std::size_t, std::uint32_t) noexcept override {
    arrived_layers.fetch_add(1);
    arrived_layers.notify_all();
  }
  void lost(std::exception_ptr) noexcept override {}
  void wait_for(std::uint32_t count) {
    for (std::uint32_t now = arrived_layers.load(); now < count; now = arrived_layers.load())
      arrived_layers.wait(now);
  }
};

inline stagger::detail::WorkerRules rules(stagger::staleness::Adds adds) {
  stagger::detail::WorkerRules rules;
  rules.adds = adds;
  rules.optimizer.digest = [](void const*) noexcept { return std::uint64_t{1}; };
  return rules;
}
