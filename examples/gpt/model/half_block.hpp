// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Half of a pre-norm transformer block: attention, or the MLP behind it.
/// @source A. Radford et al., "Language Models are Unsupervised Multitask Learners", 2019,
/// section 2.3.

#include <cstdint>
#include <tuple>
#include <utility>

#include <stagger/core/tensor.hpp>
#include <stagger/model/context.hpp>

#include "norm.hpp"
#include "projections.hpp"
#include "shared.hpp"

namespace gpt {

/// y = (x, norm(x)): what each member of a group that shares a half block does for itself, in front
/// of the projections.
template <class T> class NormBeside {
 public:
  using Input = stagger::Tensor<T>;   ///< [sequences][length][width]
  using Output = stagger::Tensor<T>;  ///< [sequences][length][2 width]
  using Saved = typename Norm<T>::Saved;

  explicit NormBeside(Norm<T> norm) : norm_(std::move(norm)) {}

  auto parameters() { return std::tie(norm_.gain, norm_.bias); }

  void forward(stagger::Context& context, Input const& x, Output& y, Saved& saved) const;
  void backward_input(stagger::Context& context, Input const& x, Output const& dy, Input& dx,
                      Saved& saved) const;
  void backward_weight(stagger::Context& context, Input const&, Output const&, Saved& saved) const {
    norm_.add_gradients(context, saved);
  }

 private:
  Norm<T> norm_;
};

/// y = x + projections(norm(x)). A block is one with attention, and behind it one with an MLP.
///
/// `backward_input` overwrites what the first projection gave with its gradient, from which
/// `backward_weight` computes all weight gradients.
template <class T> class HalfBlock {
 public:
  using Input = stagger::Tensor<T>;  ///< [sequences][length][width]
  using Output = stagger::Tensor<T>;

  struct Saved {
    typename Norm<T>::Saved norm;
    typename Projections<T>::Saved projections;
    [[nodiscard]] std::uint64_t bytes() const noexcept {
      return norm.bytes() + projections.bytes();
    }
  };

  HalfBlock(Index width, Projections<T> projections)
      : norm_("norm", width), projections_(std::move(projections)) {}

  auto parameters() {
    return std::tuple_cat(std::tie(norm_.gain, norm_.bias), projections_.parameters());
  }
  /// As groups take it.
  [[nodiscard]] std::pair<NormBeside<T>, Projections<T>> divided() const {
    return {NormBeside<T>(norm_), projections_};
  }

  void forward(stagger::Context& context, Input const& x, Output& y, Saved& saved) const;

  void backward_input(stagger::Context& context, Input const& x, Output const& dy, Input& dx,
                      Saved& saved) const;

  void backward_weight(stagger::Context& context, Input const& x, Output const& dy,
                       Saved& saved) const;

 private:
  Norm<T> norm_;
  Projections<T> projections_;
};

}  // namespace gpt
