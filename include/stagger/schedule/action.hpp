// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The action, an entry of a schedule: what one rank does with one microbatch at one stage.
/// @source PyTorch's pipelining action grammar (`0F1`, `3I2`, `1SEND_F0`), in which tables are read
///         and written.

#include <stagger/core/requirements.hpp>

#include <cstdint>

namespace stagger::schedule {

/// The kinds of actions. `backward` is `backward_input` and `backward_weight` in one action.
enum class Kind : std::uint8_t {
  forward,          ///< F
  backward,         ///< B, full backward
  backward_input,   ///< I, gradient with respect to the stage's input
  backward_weight,  ///< W, gradient with respect to the stage's parameters
  send_forward,     ///< SEND_F, activation to stage + 1
  recv_forward,     ///< RECV_F, activation from stage - 1
  send_backward,    ///< SEND_B, gradient to stage - 1
  recv_backward,    ///< RECV_B, gradient from stage + 1
  reduce_gradient,  ///< REDUCE_GRAD, the stage's gradients added over all that hold it; the
                    ///< microbatch is 0
  push,             ///< PUSH, changes of the stage to a parameter server; the microbatch is the
                    ///< number of the push
  pull,             ///< PULL, the stage's parameters from the server; the microbatch is the
                    ///< number of pushes of every worker that they contain
};

/// True for the kinds that compute gradients (B, I, W), by which a table trains.
[[nodiscard]] constexpr bool is_backward(Kind kind) noexcept {
  return kind == Kind::backward || kind == Kind::backward_input || kind == Kind::backward_weight;
}

/// True for the kinds that compute (F, B, I, W); false for messages and reductions.
[[nodiscard]] constexpr bool is_compute(Kind kind) noexcept {
  return kind == Kind::forward || is_backward(kind);
}

/// True for the kinds that send.
[[nodiscard]] constexpr bool is_send(Kind kind) noexcept {
  return kind == Kind::send_forward || kind == Kind::send_backward;
}

/// True for the kinds that send or receive.
[[nodiscard]] constexpr bool is_message(Kind kind) noexcept {
  return is_send(kind) || kind == Kind::recv_forward || kind == Kind::recv_backward;
}

/// True for the kinds that overlap with other work of the rank: messages, and exchanges with a
/// server.
[[nodiscard]] constexpr bool travels(Kind kind) noexcept {
  return is_message(kind) || kind == Kind::push || kind == Kind::pull;
}

/// True for the kinds that produce the gradient of the stage's input (B, I).
[[nodiscard]] constexpr bool gives_input_gradient(Kind kind) noexcept {
  return kind == Kind::backward || kind == Kind::backward_input;
}

/// True for the kinds that produce a value for another action: an activation or a gradient (F, B,
/// I).
[[nodiscard]] constexpr bool makes_value(Kind kind) noexcept {
  return kind == Kind::forward || gives_input_gradient(kind);
}

/// True for the kinds after which the stage no longer needs anything of the microbatch (B, W).
[[nodiscard]] constexpr bool ends_flight(Kind kind) noexcept {
  return kind == Kind::backward || kind == Kind::backward_weight;
}

/// The letters of a kind in the grammar.
[[nodiscard]] constexpr char const* name(Kind kind) noexcept {
  constexpr char const* names[] = {"F",      "B",      "I",           "W",    "SEND_F", "RECV_F",
                                   "SEND_B", "RECV_B", "REDUCE_GRAD", "PUSH", "PULL"};
  return names[static_cast<int>(kind)];
}

/// One action of a rank on one microbatch, or on a sequence slice of it, at one stage.
struct Action {
  Kind kind = Kind::forward;
  int stage = 0;               ///< 0 <= stage < P * V
  int microbatch = 0;          ///< 0 <= microbatch < M
  std::int16_t slice = 0;      ///< 0 <= slice < S; 0 where microbatches are not sliced
  bool overlaps_next = false;  ///< forms one overlapped pair (OVERLAP_F_B) with the action after it
  friend constexpr bool operator==(Action const&, Action const&) = default;
};

/// True for two actions of which an overlapped pair may consist: one forward and one backward.
[[nodiscard]] constexpr bool can_overlap(Action const& a, Action const& b) noexcept {
  return is_compute(a.kind) && is_compute(b.kind) &&
         (a.kind == Kind::forward) != (b.kind == Kind::forward);
}

}  // namespace stagger::schedule
