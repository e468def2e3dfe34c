// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Forward and backward of one layer for one microbatch.

#include <stagger/engine/layer.hpp>
#include <stagger/model/context.hpp>

namespace stagger::detail {

/// A layer whose type is erased, with what it sees in one action.
struct LayerAction {
  void* object = nullptr;
  LayerOps const* ops = nullptr;
  ParameterView const* parameters = nullptr;  // of the version that the action takes
  int layer = 0;
  int microbatch = 0;

  void begin(Context& context) const { context.begin_action(parameters, layer, microbatch); }
};

/// Which gradients a backward gives.
struct WantedGradients {
  bool input = true;
  bool weight = true;
};

[[gnu::always_inline]] inline void forward_layer(Context& context, LayerAction const& action,
                                                 void const* x, void* y, void* saved) {
  action.begin(context);
  action.ops->forward(action.object, context, x, y, saved);
}

/// Backward of one layer, whole or half. A layer whose backward does not split does all of it where
/// the input's gradient is wanted, and nothing where only those of its weights are.
[[gnu::always_inline]] inline void backward_layer(Context& context, LayerAction const& action,
                                                  WantedGradients want, void const* x,
                                                  void const* dy, void* dx, void* saved) {
  LayerOps const& ops = *action.ops;
  action.begin(context);
  if (ops.backward != nullptr && ((want.input && want.weight) || ops.backward_input == nullptr)) {
    if (want.input) ops.backward(action.object, context, x, dy, dx, saved);
    return;
  }
  if (want.input && ops.backward_input != nullptr) {
    ops.backward_input(action.object, context, x, dy, dx, saved);
    action.begin(context);
  }
  if (want.weight && ops.backward_weight != nullptr)
    ops.backward_weight(action.object, context, x, dy, saved);
}

}  // namespace stagger::detail
