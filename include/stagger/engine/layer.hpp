// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A layer with its type erased: an object and functions; its forward and backward.

#include <cstdint>
#include <utility>

#include <stagger/core/list.hpp>
#include <stagger/model/context.hpp>

namespace stagger::detail {

struct ParameterDeclaration;
struct SlotType;
struct SplitOps;

/// What an engine needs of a layer type: one constexpr table per type, shared by all layers and
/// stages of it.
struct LayerOps {
  SlotType const* input;
  SlotType const* output;
  SlotType const* saved;
  bool input_gradient;  // can hand a gradient to the layer before it
  void (*destroy)(void*) noexcept;
  void* (*clone)(void const*);
  List<ParameterDeclaration> (*adopt_parameters)(void*, int number);
  void (*forward)(void*, Context&, void const* x, void* y, void* saved);
  // Any of these may be null: the layer has no such action.
  void (*backward)(void*, Context&, void const* x, void const* dy, void* dx, void* saved);
  void (*backward_input)(void*, Context&, void const* x, void const* dy, void* dx, void* saved);
  void (*backward_weight)(void*, Context&, void const* x, void const* dy, void* saved);
  void (*gradients_complete)(void*, Context&);
  SplitOps const* split;  // how members of a group share it; null: it cannot be shared
  std::uint64_t (*digest)(void const* y);  // of the bytes of an output; null: they are not known
};

class Layer {
 public:
  Layer(void* object, LayerOps const& ops) noexcept : object_(object), ops_(&ops) {}
  Layer(Layer&& other) noexcept
      : object_(std::exchange(other.object_, nullptr)), ops_(other.ops_) {}
  Layer& operator=(Layer&& other) noexcept {
    std::swap(object_, other.object_);
    std::swap(ops_, other.ops_);
    return *this;
  }
  Layer(Layer const& other) : object_(other.ops_->clone(other.object_)), ops_(other.ops_) {}
  Layer& operator=(Layer const&) = delete;
  ~Layer() {
    if (object_ != nullptr) ops_->destroy(object_);
  }

  [[nodiscard]] void* object() const noexcept { return object_; }
  [[nodiscard]] LayerOps const& ops() const noexcept { return *ops_; }

 private:
  void* object_;
  LayerOps const* ops_;
};

/// Whether a layer keeps its own weights.
[[nodiscard]] [[gnu::cold]] inline bool keep_weights(List<Layer> const& layers) noexcept {
  bool any = false;
  for (Layer const& layer : layers) any = any || layer.ops().gradients_complete != nullptr;
  return any;
}

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

/// Backward of a layer in halves, in an action that has begun. Not inlined, so that a whole
/// backward, which is the frequent one, keeps its registers.
[[gnu::noinline]] inline void backward_halves(Context& context, void* object, LayerOps const& ops,
                                              WantedGradients want, void const* x, void const* dy,
                                              void* dx, void* saved) {
  if (ops.backward != nullptr && ops.backward_input == nullptr) {
    if (want.input) ops.backward(object, context, x, dy, dx, saved);
    return;
  }
  if (want.input && ops.backward_input != nullptr) {
    ops.backward_input(object, context, x, dy, dx, saved);
    context.release_scratch();
  }
  if (want.weight && ops.backward_weight != nullptr)
    ops.backward_weight(object, context, x, dy, saved);
}

/// Backward of one layer, whole or half. A layer whose backward does not split does all of it where
/// the input's gradient is wanted, and nothing where only those of its weights are.
[[gnu::always_inline]] inline void backward_layer(Context& context, LayerAction const& action,
                                                  WantedGradients want, void const* x,
                                                  void const* dy, void* dx, void* saved) {
  action.begin(context);
  if (want.input && want.weight && action.ops->backward != nullptr)
    action.ops->backward(action.object, context, x, dy, dx, saved);
  else
    backward_halves(context, action.object, *action.ops, want, x, dy, dx, saved);
}

/// Tells a layer that keeps its own weights that their gradients are complete, if a backward was its
/// last one in the step: the last that gave the gradient of an input, or of weights.
[[gnu::noinline]] inline void end_gradients(Context& context, LayerAction const& action,
                                            WantedGradients last) {
  LayerOps const& ops = *action.ops;
  if (ops.gradients_complete == nullptr) return;
  // As in backward_halves; a layer that does not split does all of it for the input.
  bool const splits =
      ops.backward_weight != nullptr && (ops.backward == nullptr || ops.backward_input != nullptr);
  if (!(splits ? last.weight : last.input)) return;
  action.begin(context);
  ops.gradients_complete(action.object, context);
}

}  // namespace stagger::detail
