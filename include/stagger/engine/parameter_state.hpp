// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A parameter as it is shown between two steps.

#include <array>
#include <cstddef>
#include <span>
#include <string>

#include <stagger/model/parameter.hpp>

namespace stagger {

/// One parameter between two steps: what a checkpoint stores. The memory belongs to the engine.
struct ParameterState {
  std::string name;  ///< "layer.parameter", layers counted from the model's input
  ElementType type = ElementType::f32;
  std::span<std::byte> value;
  std::array<std::span<std::byte>, 2> state;  ///< the optimizer's; empty where it keeps fewer

  /// The values as numbers.
  /// @pre type == element_type_of<T>
  template <class T> [[nodiscard]] std::span<T> values() const noexcept {
    return {reinterpret_cast<T*>(value.data()), value.size() / sizeof(T)};
  }
};

}  // namespace stagger
