// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The first layer: what a byte is and where it stands.

#include <cstdint>
#include <string>
#include <tuple>

#include <stagger/core/error.hpp>
#include <stagger/model/stage.hpp>

#include "eigen.hpp"
#include "initial.hpp"

namespace gpt {

inline constexpr Index classes = 256;  ///< a token is a byte

/// Tokens of one microbatch, [sequences][length].
using Tokens = stagger::Tensor<std::uint8_t>;

/// y = token embedding + position embedding. Nothing upstream wants its input gradient.
template <class T> class Embedding {
 public:
  using Input = Tokens;
  using Output = stagger::Tensor<T>;  ///< [sequences][length][width]

  /// @param positions  longest sequence
  Embedding(Index width, Index positions, Random& random)
      : width_(width),
        token_(normal_parameter<T>("token", random, count(classes * width), 0.1)),
        position_(normal_parameter<T>("position", random, count(positions * width), 0.1)) {}

  auto parameters() { return std::tie(token_, position_); }

  void forward(stagger::Context& context, Tokens const& x, Output& y,
               stagger::NothingSaved&) const {
    Index const length = check(x);
    y.resize({x.extent(0), x.extent(1), count(width_)});
    T const* const token = context[token_].data();
    T const* const position = context[position_].data();
    for (Index i = 0; i < count(x.size()); ++i)
      row(y.data() + i * width_, width_) =
          row(token + x[count(i)] * width_, width_) + row(position + i % length * width_, width_);
  }

  void backward_weight(stagger::Context& context, Tokens const& x, Output const& dy,
                       stagger::NothingSaved&) const {
    Index const length = check(x);
    T* const token = context.gradient(token_).data();
    T* const position = context.gradient(position_).data();
    for (Index i = 0; i < count(x.size()); ++i) {
      auto const from = row(dy.data() + i * width_, width_);
      row(token + x[count(i)] * width_, width_) += from;
      row(position + i % length * width_, width_) += from;
    }
  }

 private:
  [[nodiscard]] Index check(Tokens const& x) const {
    Index const length = count(x.extent(1));
    if (length * width_ > count(position_.size()))
      throw stagger::Error(stagger::Errc::mismatch,
                           "a sequence of " + std::to_string(length) +
                               " bytes is longer than the context of " +
                               std::to_string(count(position_.size()) / width_) + "; cut it");
    return length;
  }

  Index width_;
  stagger::Parameter<T> token_;     // [classes][width]
  stagger::Parameter<T> position_;  // [positions][width]
};

}  // namespace gpt
