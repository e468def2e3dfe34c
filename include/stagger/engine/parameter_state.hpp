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

/// What a parameter is, without its values.
struct ParameterShape {
  std::string name;  ///< as of ParameterState
  ElementType type = ElementType::f32;
  std::size_t bytes = 0;  ///< of the values, and of each state
  int states = 0;         ///< that the optimizer keeps
};

namespace detail {

/// A function of parameters, its type erased.
struct ParameterVisit {
  void* self = nullptr;
  void (*call)(void* self, ParameterState const&) = nullptr;
};

}  // namespace detail
}  // namespace stagger
