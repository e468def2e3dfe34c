// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The gradients of a further owner of a layer, beside the values of the first.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <stagger/core/list.hpp>
#include <stagger/engine/detail/layer_shape.hpp>
#include <stagger/engine/parameter_memory.hpp>
#include <stagger/model/parameter.hpp>

namespace stagger::detail {

/// Gradients of its own beside the same values. An owner whose memory is not that of the first one
/// has values of its own too, and may have states.
class GradientShare {
 public:
  /// @param views   [parameters] of the first owner
  /// @param blocks  likewise
  void of(LayerShape const& shape, ParameterView const* views, ParameterBlocks const& blocks) {
    views_.assign(views, shape.count());
    gradients_.make(blocks.memory, blocks.gradients.size());
    for (std::size_t i = 0; i < views_.size(); ++i)
      views_[i].gradient = gradients_.at(shape.range(i).first);
  }
  [[nodiscard]] ParameterView const* views() const noexcept { return views_.data(); }
  [[nodiscard]] std::uint64_t bytes() const noexcept {
    return gradients_.size() + values_.size() + received_.size() + states_[0].size() +
           states_[1].size();
  }
  void zero() noexcept { gradients_.zero(); }
  void release() noexcept { gradients_ = {}; }

  /// Moves it, between steps. Apart from the first owner it gets values of its own, and the first
  /// owner a place where its gradients arrive.
  [[gnu::cold]] void move_to(LayerShape const& shape, ParameterBlocks const& blocks,
                             ParameterMemory const* memory) {
    bool const apart = memory != blocks.memory;
    gradients_.move_to(memory);
    values_.make(memory, apart ? gradients_.size() : 0);
    received_.make(blocks.memory, apart ? gradients_.size() : 0);
    for (ParameterBlock& state : states_) state.make(nullptr, 0);
    for (std::size_t i = 0; i < views_.size(); ++i) {
      std::size_t const offset = shape.range(i).first;
      views_[i].value = (apart ? values_ : blocks.values[0]).data() + offset;
      views_[i].gradient = gradients_.data() + offset;
    }
    take_values(blocks);
  }
  /// Brings its own values and states up to date, if it has any.
  [[gnu::cold]] void take_values(ParameterBlocks const& blocks) {
    values_.take_from(blocks.values[0]);
    for (std::size_t s = 0; s < states_.size(); ++s) states_[s].take_from(blocks.states[s]);
  }
  /// From now on it updates its own values, if it has any, as the first owner does.
  [[gnu::cold]] void hold_states(ParameterBlocks const& blocks) {
    for (std::size_t s = 0; s < states_.size() && values_.size() != 0; ++s) {
      states_[s].make(values_.memory(), blocks.states[s].size());
      states_[s].take_from(blocks.states[s]);
    }
  }
  /// The states that go with its values.
  [[nodiscard]] std::array<ParameterBlock, 2> const& states(
      ParameterBlocks const& blocks) const noexcept {
    return values_.size() != 0 ? states_ : blocks.states;
  }

  [[nodiscard]] std::span<std::byte> gradients() const noexcept { return gradients_.span(); }
  /// Where its gradients arrive, in the memory of the first owner.
  [[nodiscard]] std::span<std::byte> received() const noexcept { return received_.span(); }
  [[nodiscard]] std::span<std::byte> values() const noexcept { return values_.span(); }
  /// Its gradients of a parameter where the first owner adds them up.
  [[nodiscard]] std::byte const* sent(LayerShape const& shape, std::size_t i) const noexcept {
    return received_.size() != 0 ? received_.data() + shape.range(i).first
                                 : static_cast<std::byte const*>(views_[i].gradient);
  }

 private:
  List<ParameterView> views_;  // [parameters]
  ParameterBlock gradients_;
  ParameterBlock values_, received_;      // of an owner apart
  std::array<ParameterBlock, 2> states_;  // of one who updates, too
};

}  // namespace stagger::detail
