// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What the engine hands to a stage with each action.

#include <cstddef>
#include <cstdint>
#include <span>

#include <stagger/core/arena.hpp>
#include <stagger/model/parameter.hpp>

namespace stagger {

/// Where one parameter lives during an action, as the engine laid it out.
struct ParameterView {
  void* value = nullptr;     ///< [size] the version this action must see
  void* gradient = nullptr;  ///< [size] sum over the microbatches so far
  std::size_t size = 0;
};

/// What the engine tells a context before each action on a layer.
struct ActionInfo {
  ParameterView const* parameters = nullptr;  ///< [parameters of the layer]
  std::int64_t step = 0;                      ///< optimizer steps taken before this one
  std::uint64_t seed = 0;                     ///< of the run
  int layer = 0;                              ///< counted from the model's input
  int microbatch = 0;
  bool training = true;
};

/// The stage's view of the engine during one action: parameters, gradients, scratch memory, and who it works for.
///
/// One context belongs to one rank; a stage must not keep anything it got from it.
class Context {
 public:
  /// Current value of a parameter of this stage, [parameter.size()].
  template <class T>
  [[nodiscard]] std::span<T const> operator[](Parameter<T> const& parameter) const noexcept {
    ParameterView const& view = info_.parameters[parameter.position()];
    return {static_cast<T const*>(view.value), view.size};
  }

  /// Gradient of a parameter of this stage, [parameter.size()]. Backward adds to it.
  template <class T>
  [[nodiscard]] std::span<T> gradient(Parameter<T> const& parameter) const noexcept {
    ParameterView const& view = info_.parameters[parameter.position()];
    return {static_cast<T*>(view.gradient), view.size};
  }

  /// Uninitialised, aligned memory for `count` elements, valid until the call of the stage's function returns.
  /// Allocates while the engine learns the sizes, never afterwards.
  template <class T = float>
  [[nodiscard]] std::span<T> scratch(std::size_t count) {
    return arena_.take<T>(count);
  }

  [[nodiscard]] int microbatch() const noexcept { return info_.microbatch; }
  [[nodiscard]] int layer() const noexcept { return info_.layer; }
  [[nodiscard]] std::int64_t step() const noexcept { return info_.step; }

  /// False during evaluation: dropout and the like must be off.
  [[nodiscard]] bool training() const noexcept { return info_.training; }

  /// Seed for this action's randomness. It depends on nothing but (seed of the run, step, microbatch, layer), so
  /// recomputation, any cut and any thread count see the same numbers.
  [[nodiscard]] std::uint64_t random_seed() const noexcept {
    std::uint64_t x = info_.seed;
    for (std::uint64_t part : {static_cast<std::uint64_t>(info_.step), static_cast<std::uint64_t>(info_.microbatch),
                               static_cast<std::uint64_t>(info_.layer)}) {
      x += 0x9e3779b97f4a7c15U * (part + 1);  // splitmix64
      x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
      x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
      x ^= x >> 31U;
    }
    return x;
  }

  /// For engines: starts an action on a layer.
  void begin(ActionInfo const& info) {
    info_ = info;
    arena_.reset();
  }

  /// For engines: scratch memory held, in bytes.
  [[nodiscard]] std::uint64_t scratch_bytes() const noexcept { return arena_.bytes(); }

 private:
  ActionInfo info_;
  Arena arena_;
};

}  // namespace stagger
