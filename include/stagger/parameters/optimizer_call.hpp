// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   An optimizer whose type is erased, and one step of it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/index_range.hpp>

namespace stagger {
template <class T> struct OptimizerView;
}

namespace stagger::detail {

class GradientCopy;
class LayerParameters;

/// The highest number of a step that a run may go on from, so that no number computed from it
/// overflows.
inline constexpr std::int64_t last_step = std::int64_t{1} << 48U;
/// @param what  "training cannot go on from", in the error
/// @throws Error  bad_configuration unless 0 <= step <= last_step
[[gnu::cold]] inline void require_step(std::int64_t step, char const* what) {
  if (step < 0 || step > last_step)
    raise(Errc::bad_configuration, what, " step ", step, "; count the steps from 0 to ", last_step);
}

/// One optimizer step of one layer, or of a part of it.
struct UpdateStep {
  double gradient_scale = 1;
  std::int64_t number = 1;  // counted from 1
  std::size_t from = 0;     // version of the values
  std::size_t to = 0;
  ByteRange range = {};          // of the layer's parameters
  GradientCopy* copy = nullptr;  // of the owner that updates its own values; null: the first
  bool only_added = false;       // leaves parameters to whose gradients nothing was added
};

/// Writes what a step would add to the values into `view.next`, which is not `view.value`.
template <class T, class O>
void change_of(O const& optimizer, OptimizerView<T> view, UpdateStep const& step) noexcept {
  if constexpr (requires { optimizer.change(view, 1.0, std::int64_t{1}); }) {
    optimizer.change(view, step.gradient_scale, step.number);
  } else if constexpr (!O::element_wise) {
    optimizer.update(view, step.gradient_scale, step.number);
    for (std::size_t i = 0; i < view.size; ++i) view.next[i] -= view.value[i];
  } else {
    constexpr std::size_t most = 256;
    std::array<T, most> next;
    for (std::size_t first = 0, size = view.size; first < size; first += most) {
      OptimizerView<T> some = view;
      some.size = std::min(most, size - first);
      some.value += first;
      some.gradient += first;
      for (T*& state : some.state)
        if (state != nullptr) state += first;
      some.next = next.data();
      optimizer.update(some, step.gradient_scale, step.number);
      for (std::size_t i = 0; i < some.size; ++i) view.next[first + i] = next[i] - some.value[i];
    }
  }
}

/// The optimizer, its type erased; its numbers may change between steps.
struct OptimizerCall {
  /// Digest of the optimizer's numbers; 0 if they are unknown.
  using Digest = std::uint64_t (*)(void const* optimizer) noexcept;
  using Update = void (*)(void const* optimizer, LayerParameters&, UpdateStep const&) noexcept;
  void const* optimizer = nullptr;
  Update update = nullptr;
  Update change = nullptr;  // writes what `update` would add to version `from` into version `to`
  Digest digest = nullptr;
  void (*check)(void const* optimizer) = nullptr;  // throws for numbers that cannot train; or null
  /// Its type and its numbers, as far as they are known, as text; null: unknown.
  std::string (*words)(void const* optimizer) = nullptr;
  int states = 0;                  // for each parameter
  std::size_t enqueued_bytes = 0;  // size of an optimizer whose update is enqueued; 0: it is
                                   // carried out
  bool asks_scale = false;         // an enqueued update changes nothing if gradients are not finite
  bool makes_changes = false;      // whether `change` enqueues a kernel, too
  bool element_wise = true;        // whether any part of a parameter can be updated separately
  /// The same rule for parameters on the host; null: the optimizer itself, unless it is enqueued.
  OptimizerCall (*on_host)(void const* optimizer) = nullptr;

  /// Whether a parameter server can take the optimizer's steps.
  [[nodiscard]] bool has_host_rule() const noexcept {
    return enqueued_bytes == 0 || on_host != nullptr;
  }
  /// What a parameter server is given.
  [[nodiscard]] OptimizerCall host_rule() const {
    return on_host != nullptr ? on_host(optimizer) : *this;
  }
};

}  // namespace stagger::detail
