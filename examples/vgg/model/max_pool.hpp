// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Maxima of 2x2 pixels.

#include <cstdint>

#include <stagger/core/tensor.hpp>
#include <stagger/model/context.hpp>

namespace vgg {

/// Each pixel of the output is, channel by channel, the largest of 2x2 pixels of the input. Of
/// equal ones the first gets the gradient, row by row.
template <class T> class MaxPool {
 public:
  using Input = stagger::Tensor<T>;   ///< [images][height][width][channels]
  using Output = stagger::Tensor<T>;  ///< [images][height / 2][width / 2][channels]

  struct Saved {
    stagger::Tensor<std::uint8_t> largest;  ///< shape of the output: which of the four it is, 0-3
    [[nodiscard]] std::uint64_t bytes() const noexcept { return largest.bytes(); }
  };

  /// @throws Error  with Errc::mismatch unless height and width are even
  void forward(stagger::Context& context, Input const& x, Output& y, Saved& saved) const;

  void backward_input(stagger::Context& context, Input const& x, Output const& dy, Input& dx,
                      Saved& saved) const;
};

}  // namespace vgg
