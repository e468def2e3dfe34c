// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The arguments of a step, by address and with types erased. They must stay valid until it
///         is done.

#include <cstddef>
#include <cstdint>
#include <memory>

#include <stagger/program/program.hpp>

namespace stagger {
class Context;
}

namespace stagger::detail {

struct SlotType;

/// An array of objects whose type is not known here, by address.
struct Places {
  std::byte* first = nullptr;
  std::size_t stride = 0;
  [[nodiscard]] void* operator[](std::size_t i) const noexcept { return first + i * stride; }
};

/// A loss, its type erased.
struct LossOps {
  double (*value)(void const* loss, Context&, void const* y, void const* target) = nullptr;
  double (*value_and_gradient)(void const* loss, Context&, void const* y, void const* target,
                               double scale, void* dy) = nullptr;
  double (*terms)(void const* loss, void const* target) = nullptr;
  SlotType const* target = nullptr;  // null where a target cannot be split by rows
};

/// The arguments of one iteration, which must stay valid until it is done.
struct StepArguments {
  Places inputs;   // [microbatches]; none where no rank of this process reads them
  Places targets;  // [microbatches]; likewise, and if only outputs are wanted
  Places outputs;  // [microbatches]; for the last stage's results, if the caller wants them
  void const* loss = nullptr;
  LossOps loss_ops;
  double const* scales = nullptr;  // [microbatches] 1 / terms of the whole minibatch
  double* losses = nullptr;        // [microbatches] sum over the terms of each; of further replicas
                                   // of the last stage after them, each with the rows of its own
  double* terms = nullptr;         // of the whole minibatch
  // If inputs and targets have only the rows that the ranks of this process read:
  std::size_t const* rows = nullptr;  // [microbatches] of the whole microbatch; null: they have all
  RowShare input_rows{};
  RowShare target_rows{};
};

/// A step before it runs.
struct Request {
  StepArguments arguments;
  std::shared_ptr<Program const> program{};
  std::uint32_t number = 0;            // counts the session's requests
  std::shared_ptr<void const> kept{};  // a batch that was given as a temporary
};

}  // namespace stagger::detail
