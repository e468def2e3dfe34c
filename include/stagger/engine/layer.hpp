// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A layer with its type erased: an object and a table of functions.

#include <stagger/core/requirements.hpp>

#include <utility>

#include <stagger/core/list.hpp>

namespace stagger {
class Context;
}

namespace stagger::detail {

struct ParameterDeclaration;
struct SlotType;

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
};

/// Owns one layer.
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

}  // namespace stagger::detail
