// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The first layer: token and position embeddings.

#include <cstdint>
#include <tuple>

#include <stagger/core/tensor.hpp>
#include <stagger/model/stage.hpp>

#include "shared.hpp"

namespace gpt {

inline constexpr Index classes = 256;  ///< a token is a byte

/// Tokens of one microbatch, [sequences][length].
using Tokens = stagger::Tensor<std::uint8_t>;

/// y = token embedding + position embedding. It is the first layer, so it has no input gradient.
template <class T> class Embedding {
 public:
  using Input = Tokens;
  using Output = stagger::Tensor<T>;  ///< [sequences][length][width]

  /// @param positions  longest sequence
  Embedding(Index width, Index positions, Random& random);

  auto parameters() { return std::tie(token_, position_); }

  void forward(stagger::Context& context, Tokens const& x, Output& y, stagger::NothingSaved&) const;

  void backward_weight(stagger::Context& context, Tokens const& x, Output const& dy,
                       stagger::NothingSaved&) const;

 private:
  [[nodiscard]] Index check(Tokens const& x) const;

  Index width_;
  stagger::Parameter<T> token_;     // [classes][width]
  stagger::Parameter<T> position_;  // [positions][width]
};

}  // namespace gpt
