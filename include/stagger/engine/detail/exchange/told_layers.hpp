// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The layers that a worker exchanges with its server, where they are not the machine's own:
///         what the server is told of them, and copies on the host of what a device has.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/engine/detail/model_state.hpp>
#include <stagger/parameters/layer_parameters.hpp>
#include <stagger/parameters/parameter_memory.hpp>

namespace stagger::detail {

/// Layers as the server is told of them: of the copies that members of a group have, only the
/// first has parameters. Where a process has no memory yet for layers, neither have these. Where a
/// device has the parameters, these are copies on the host.
/// @param states     whether the optimizer's states, at first zeros, are exchanged too
/// @param gradients  whether they have memory for gradients
[[nodiscard]] [[gnu::cold]] inline FixedArray<LayerParameters> layers_told(ModelState const& model,
                                                                           bool states,
                                                                           bool gradients = false) {
  auto const& layers = model.parameters;
  FixedArray<LayerParameters> told(layers.size());
  for (std::size_t l = 0; l < layers.size(); ++l) {
    List<ParameterDeclaration> declarations;
    LayerParameters const& layer = layers[l];
    std::size_t const count = model.counted(l) ? layer.count() : 0;
    auto blocks = layer.blocks();
    std::array<ParameterBlock, 3> fetched;
    for (std::size_t b = 0; layer.memory() != nullptr && b < blocks.size(); ++b) {
      fetched[b].make(nullptr, blocks[b].size());
      if (!blocks[b].empty())
        layer.memory()->download(*layer.memory(), fetched[b].data(), blocks[b].data(),
                                 blocks[b].size());
      blocks[b] = fetched[b].span();
    }
    auto const kept = static_cast<unsigned>(count != 0 && states ? layer.shape(0).states : 0);
    for (std::size_t b = 0; b <= kept; ++b)
      for (std::size_t i = 0; i < count; ++i) {
        declarations.push_back(layer.present() ? layer.declaration(i, blocks[b].data())
                                               : layer.declaration(i));
        if (b != 0) declarations.back().initial = {}, declarations.back().fill = nullptr;
      }
    told[l].adopt(std::move(declarations), static_cast<int>(l), 0,
                  model.memory != nullptr ? &model.host_memory : nullptr, false, layer.present());
    if (!gradients) told[l].release_gradients();
  }
  return told;
}

[[nodiscard]] inline std::uint64_t bytes_of(FixedArray<LayerParameters> const& layers) noexcept {
  std::uint64_t sum = 0;
  for (LayerParameters const& layer : layers) sum += layer.bytes();
  return sum;
}

/// Enqueues a copy of a part of a layer from a device to the host, or back.
inline void copy_enqueued(LayerParameters const& layer, std::span<std::byte> to,
                          std::byte const* from) {
  if (!to.empty()) layer.memory()->copy(*layer.memory(), to.data(), from, to.size());
}

/// Begins a state in the memory of a device anew, if it is not finite.
[[gnu::cold]] inline void reset_on_device(LayerParameters const& layer,
                                          std::span<std::byte> state) noexcept {
  try {
    auto const& memory = *layer.memory();
    ParameterBlock host;
    host.make(nullptr, state.size());
    memory.download(memory, host.data(), state.data(), state.size());
    if (layer.all_finite(host.data())) return;
    host.zero();
    memory.upload(memory, state.data(), host.data(), state.size());
  } catch (...) {  // no memory, or the device is lost: the step that failed says so
  }
}

}  // namespace stagger::detail
