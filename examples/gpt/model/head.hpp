// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The last layer: layer normalisation and the logits of the next byte.

#include <cstdint>
#include <tuple>

#include <stagger/core/tensor.hpp>
#include <stagger/model/context.hpp>

#include "embedding.hpp"
#include "norm.hpp"

namespace gpt {

/// y = norm(x) * weight.
template <class T> class Head {
 public:
  using Input = stagger::Tensor<T>;   ///< [sequences][length][width]
  using Output = stagger::Tensor<T>;  ///< [sequences][length][256]

  struct Saved {
    typename Norm<T>::Saved norm;
    [[nodiscard]] std::uint64_t bytes() const noexcept { return norm.bytes(); }
  };

  Head(Index width, Random& random);

  auto parameters() { return std::tie(norm_.gain, norm_.bias, weight_); }

  void forward(stagger::Context& context, Input const& x, Output& y, Saved& saved) const;

  void backward_input(stagger::Context& context, Input const& x, Output const& dy, Input& dx,
                      Saved& saved) const;

  void backward_weight(stagger::Context& context, Input const& x, Output const& dy,
                       Saved& saved) const;

 private:
  Index width_;
  Norm<T> norm_;
  stagger::Parameter<T> weight_;  // [width][classes]
};

}  // namespace gpt
