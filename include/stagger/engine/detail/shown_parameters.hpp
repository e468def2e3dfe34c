// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The copy of a layer's parameters that the host is shown where they lie elsewhere, or where
///         the optimizer's state is shared out.

#include <array>
#include <cstddef>
#include <cstring>
#include <span>

#include <stagger/core/index_range.hpp>
#include <stagger/engine/parameter_memory.hpp>

namespace stagger::detail {

class ShownParameters {
 public:
  /// Values, then states.
  [[nodiscard]] ParameterBlock const* blocks() const noexcept { return copies_.data(); }
  /// State `s` of a part of the layer.
  [[nodiscard]] std::span<std::byte> state(std::size_t s, ByteRange range) const noexcept {
    auto const& copy = copies_[s + 1];
    if (copy.size() == 0) return {};
    return {copy.data() + range.first, range.last - range.first};
  }

  /// Copies what lies in a memory of a back end.
  [[gnu::cold]] void fetch(ParameterBlocks const& own, std::size_t states) {
    for (std::size_t s = 0; s <= states; ++s) {
      ParameterBlock const& from = s == 0 ? own.values[0] : own.states[s - 1];
      if (copies_[s].size() != from.size()) copies_[s].make(nullptr, from.size());
      if (from.size() != 0)
        own.memory->download(*own.memory, copies_[s].data(), from.data(), from.size());
    }
  }
  /// The way back.
  [[gnu::cold]] void take_back(ParameterBlocks const& own, std::size_t states) const {
    if (copies_[0].size() == 0) return;
    for (std::size_t s = 0; s <= states; ++s) {
      ParameterBlock const& to = s == 0 ? own.values[0] : own.states[s - 1];
      own.memory->upload(*own.memory, to.data(), copies_[s].data(), to.size());
    }
  }

  /// Of states that are shared out, makes copies of the whole, in which only the part that is here
  /// is true unless others send theirs.
  [[gnu::cold]] void spread(ParameterBlocks const& own, std::size_t states) {
    for (std::size_t s = 0; s < states; ++s) {
      ParameterBlock& copy = copies_[s + 1];
      if (copy.size() != 0 || own.gradients.size() == 0) continue;
      copy.make(nullptr, own.gradients.size());
      if (own.states[s].size() != 0)
        std::memcpy(copy.data() + own.held.first, own.states[s].data(), own.states[s].size());
    }
  }
  /// The way back of the part that is here; the copies go.
  [[gnu::cold]] void gather(ParameterBlocks const& own, std::size_t states) {
    for (std::size_t s = 0; s < states; ++s) {
      ParameterBlock& copy = copies_[s + 1];
      if (copy.size() != 0 && own.states[s].size() != 0)
        std::memcpy(own.states[s].data(), copy.data() + own.held.first, own.states[s].size());
      copy.make(nullptr, 0);
    }
  }

 private:
  std::array<ParameterBlock, 3> copies_;  // on the host
};

}  // namespace stagger::detail
