// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A parameter as others see it between two steps, and parts of a layer's parameters.

#include <array>
#include <cstddef>
#include <cstdint>
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

namespace detail {

/// Part of a layer's parameters, by where they lie in its memory. Borders are multiples of
/// `alignment_bytes`, so no element is cut.
struct ByteRange {
  std::size_t first = 0;
  std::size_t last = static_cast<std::size_t>(-1);
};

/// One optimizer step of one layer, or of a part of it.
struct UpdateStep {
  double gradient_scale = 1;
  std::int64_t number = 1;  // counted from 1
  std::size_t from = 0;     // version of the values
  std::size_t to = 0;
  ByteRange range = {};  // of the layer's parameters
};

}  // namespace detail
}  // namespace stagger
