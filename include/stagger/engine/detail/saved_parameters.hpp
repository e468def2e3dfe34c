// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What the parameters of a layer were before a step, for a step that fails.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <stagger/core/index_range.hpp>
#include <stagger/engine/parameter_memory.hpp>

namespace stagger::detail {

class SavedParameters {
 public:
  /// Makes memory for a part of the layer of so many bytes, unless there is.
  [[gnu::cold]] void make(ParameterMemory const* memory, std::size_t bytes, std::size_t states) {
    if (values_.size() == bytes) return;
    values_.make(memory, bytes);
    for (std::size_t s = 0; s < states; ++s) states_[s].make(memory, bytes);
  }
  void save(ParameterBlocks const& now) {
    values_.copy_from(now.values[0]);
    for (std::size_t s = 0; s < states_.size(); ++s) states_[s].copy_from(now.states[s]);
  }
  void restore(ParameterBlocks& now) const {
    now.values[0].copy_from(values_);
    for (std::size_t s = 0; s < states_.size(); ++s) now.states[s].copy_from(states_[s]);
  }
  /// Saves, or restores, a part of what has its states here, on the host.
  [[gnu::noinline]] void copy_part(ParameterBlocks const& now, ByteRange part,
                                   bool back) const noexcept {
    if (part.first >= part.last) return;
    std::size_t const at = part.first - now.held.first;
    auto const copy = [&](std::byte* here, std::byte* there) {
      std::memcpy(back ? here : there, back ? there : here, part.last - part.first);
    };
    copy(now.values[0].data() + part.first, values_.data() + at);
    for (std::size_t s = 0; s < states_.size(); ++s)
      if (states_[s].size() != 0) copy(now.states[s].data() + at, states_[s].data() + at);
  }
  [[gnu::cold]] void move_to(ParameterMemory const* memory) {
    values_.move_to(memory);
    for (ParameterBlock& state : states_) state.move_to(memory);
  }
  [[nodiscard]] std::uint64_t bytes() const noexcept {
    return values_.size() + states_[0].size() + states_[1].size();
  }

 private:
  ParameterBlock values_;
  std::array<ParameterBlock, 2> states_;
};

}  // namespace stagger::detail
