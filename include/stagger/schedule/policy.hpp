// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The schedule axis: the order in which each rank runs its actions.
///
/// A schedule maps a shape (ranks P, microbatches M, stages on each rank V) to a table: a row of
/// forward and backward actions for each rank. Messages are not in it; the engine derives them.
///
/// | schedule | take it when |
/// |---|---|
/// | OneFOneB | in doubt (the default): no more in flight than there are ranks |
/// | GPipe | a baseline is wanted, or there is memory for all microbatches |
/// | Interleaved, LoopedBfs | the bubble hurts and links are fast: several chunks on each rank |
/// | ZeroBubbleH1 | stages can split backward, and memory suffices for 1F1B |
/// | ZeroBubbleH2 | stages can split backward, and there is twice that memory |
/// | ZeroBubbleV | each rank can hold two stages: the smallest bubble at 1F1B's memory |
/// | VHalf, VMin, V1F1B | memory is short: a half, a third, two thirds to three quarters of 1F1B's |
/// | DualPipe, DualPipeV | a forward and a backward overlap; over processes and GPUs, DualPipe keeps each stage twice |
/// | Chimera | microbatches may enter at both ends, for twice the parameters over processes and GPUs |
/// | Hanayo | messages are cheap: waves of several chunks |
/// | Seq1F1B | sequences are long: slices of them flow |
/// | PipeDream, PipeDream2BW, Fifo | training without a flush, by a staleness model |
/// | ForwardOnly | evaluation and inference |
/// | Auto | costs and memory are known: it searches an order for them |
/// | Named{"zb-v"} | the program chooses at run time; any of these by its name |
///
/// | member | when it is asked | |
/// |---|---|---|
/// | `flushes` | compiling `with` | is every rank idle when an iteration ends? If not: a staleness model, and `stream` |
/// | `chunks()` | once, in `with` | V. S stages make S / V ranks |
/// | `table(shape)` | once for training and once for prediction, for each new number of microbatches; with replicas also once in `with`; again when gradient groups change, or if its program, one of the eight that are kept, has been dropped | throws Error (bad_configuration) for a shape that it cannot serve; prediction then asks for numbers of microbatches near it |
/// | `proven` | compiling `with`; optional | true: its tables are known to be legal, as those of the catalog are, and are not verified before they run |
/// | `slices` | once, in `with`; optional | an int: into how many slices of the sequence it cuts a microbatch; each input of a batch is then a slice |
/// | `rows(shape, first, last)` | by `schedule::proof`; optional | the rows of these ranks alone, for shapes whose whole table is too large for a compiler |
/// | `weight_versions(shape, rank)` | by `evaluate`, where it does not flush | how many versions of its weights a rank keeps |
/// | `facts()` | in `with`; optional | `Facts`, of a schedule chosen while the program runs |
///
/// The engine promises: a table is copied; one that is not proven is verified, and refused with its
/// first fault in one sentence; every rank runs its row in the given order. The bits of a step
/// depend on the order of the backward actions of each stage and, where two ranks hold a stage, on
/// which of them runs each microbatch, and on nothing else of the table.
///
/// In examples/14_own_policies.cpp:
/// @code
/// struct WhereItPays {
///   using policy_tag = sg::ScheduleTag;
///   static constexpr bool flushes = true;  // every rank is idle when an iteration ends
///   static constexpr bool proven = true;   // as both schedules are
///   int chunks() const { return 1; }       // stages on each rank
///   sg::schedule::Table table(sg::Shape shape) const {
///     bool const enough = shape.microbatches > shape.ranks;
///     return enough ? sg::schedule::OneFOneB{}.table(shape) : sg::schedule::GPipe{}.table(shape);
///   }
/// };
/// @endcode
/// A type that lacks a member gets "stagger: not a SchedulePolicy: it needs ...", which names it.

#include <concepts>
#include <string_view>
#include <type_traits>

#include <stagger/core/shape.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger {

/// Marks a schedule policy: `using policy_tag = stagger::ScheduleTag;`.
struct ScheduleTag {};

template <class P>
concept SchedulePolicy = std::copyable<P> && std::same_as<typename P::policy_tag, ScheduleTag> &&
                         requires(P const policy, Shape shape) {
                           typename std::bool_constant<P::flushes>;
                           { policy.chunks() } -> std::same_as<int>;
                           { policy.table(shape) } -> std::same_as<schedule::Table>;
                         };

namespace schedule {

/// What the engine asks of a schedule that is chosen while the program runs, by `facts()`.
struct Facts {
  std::string_view name;
  bool flushes = true;
  int slices = 1;  ///< of each microbatch
};

/// The name of a schedule of the catalog; the header of the schedule gives it. Empty for others.
template <class P> inline constexpr std::string_view catalog_name{};

/// Whether the tables of a schedule need no proof before they run: those of the catalog, which
/// tests verify, and those of a schedule that says so.
template <class P>
inline constexpr bool is_proven = !catalog_name<P>.empty() || requires { requires P::proven; };

}  // namespace schedule
}  // namespace stagger
