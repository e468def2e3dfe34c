// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A loop over the layers of a model, with one object for each value between them.

#include <cstddef>

#include <stagger/core/fixed_array.hpp>
#include <stagger/engine/layer.hpp>
#include <stagger/engine/slots.hpp>
#include <stagger/model/context.hpp>
#include <stagger/parameters/layer_parameters.hpp>

namespace stagger::detail {

/// The layers and values for a plain loop over all layers, without a schedule and with one
/// microbatch at a time.
struct LayerLoop {
  LayerLoop(Layer const* model, LayerParameters const* values, std::size_t count)
      : layers(model),
        parameters(values),
        y(count),
        dy(count),
        saved(count),
        dx(*model[0].ops().input, 1) {
    for (std::size_t l = 0; l < count; ++l) {
      LayerOps const& ops = model[l].ops();
      y[l] = Slots(*ops.output, 1);
      dy[l] = Slots(*ops.output, 1);
      saved[l] = Slots(*ops.saved, 1);
    }
  }

  [[nodiscard]] LayerAction action(std::size_t l, int microbatch) const noexcept {
    return {layers[l].object(), &layers[l].ops(), parameters[l].views(), static_cast<int>(l),
            microbatch};
  }
  /// The input of a layer.
  [[nodiscard]] void const* before(std::size_t l, void const* x) const noexcept {
    return l == 0 ? x : y[l - 1][0];
  }

  /// @param x  the model's input
  void forward(Context& context, std::size_t l, void const* x, int microbatch = 0) const {
    forward_layer(context, action(l, microbatch), before(l, x), y[l][0], saved[l][0]);
  }
  void backward(Context& context, std::size_t l, void const* x, int microbatch = 0,
                WantedGradients want = {}) const {
    backward_layer(context, action(l, microbatch), want, before(l, x), dy[l][0],
                   l == 0 ? dx[0] : dy[l - 1][0], saved[l][0]);
  }

  Layer const* layers;  // [layers], as the others
  LayerParameters const* parameters;
  FixedArray<Slots> y, dy, saved;
  Slots dx;  // of the first layer; nothing reads it
};

}  // namespace stagger::detail
