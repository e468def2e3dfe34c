// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What a pipeline does in a step beside the actions of its table: a part for each purpose,
///         brought along by the policy that needs it.

#include <exception>

#include <stagger/core/features.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/list.hpp>
#include <stagger/engine/memory.hpp>
#include <stagger/program/program.hpp>

namespace stagger {

namespace schedule {
struct Table;
}

/// Marks a policy that adds a part to the steps of a pipeline: `using policy_tag = PartTag;`. There
/// may be several.
struct PartTag {};

namespace detail {

class Layer;
class LayerParameters;
class Machine;
struct Clock;
struct RankState;
struct Setup;
struct SharedPasses;

/// A part of the engine: replicas, gradient groups, the exchange with a server, observers. A machine calls
/// `load` and `begin_step` in the order in which parts were added, and `end_step` and `settle` in
/// the opposite one. Virtual, so that a pipeline without the part does not compile it.
class StepPart {
 public:
  virtual ~StepPart() = default;
  /// Called when every rank has been pointed at the slots of a program.
  virtual void load(Machine&) {}
  /// Called before each step, on the thread that begins it. Where it throws, the step does not
  /// begin, and `end_step` is called for the parts before it.
  virtual void begin_step(Machine&) {}
  /// Carries out an instruction of the part's own.
  /// @return whether it is one
  virtual bool execute(Machine&, RankState&, Instruction const&, Clock const&) { return false; }
  /// Called when gradients of a layer are complete, before an update uses them or a push sends them,
  /// by the rank that does it, at the same time as by others, if Machine::tell_gradients was called.
  /// What it throws fails the step. @param range  bytes of the layer's memory; by default all
  virtual void gradients(LayerParameters const&, ByteRange) {}
  /// Called on the thread that ends the step, where all of its work is done or, on a device that
  /// runs ahead of the host, enqueued.
  /// @param why  the error by which it failed, or null
  virtual void end_step(Machine&, std::exception_ptr const& why) { static_cast<void>(why); }
  /// Called after a step that did not fail, where all of its work is done or, on a device with
  /// memory of its own, enqueued on the current stream.
  virtual void settle(Machine&) {}
  /// Adds the memory that the part keeps.
  virtual void add_memory(Memory&) const {}
};

/// What a policy adds to a pipeline, apart from the choice that it makes on its axis. Its functions
/// are called once, in this order.
class PolicyPart {
 public:
  virtual ~PolicyPart() = default;
  /// What it brings for the table of combinations.
  [[nodiscard]] virtual Features features() const noexcept { return {}; }
  /// Refuses numbers that do not fit together. @param positions  rows of the schedule's table
  virtual void require(Setup const&, int positions) const { static_cast<void>(positions); }
  /// May divide the layers, and say in `Setup::grouped` how, before the machine is made of them.
  virtual void divide(Setup&, List<Layer>&) const {}
  /// How programs are laid out and checked; null: as without the part. The last part's counts.
  [[nodiscard]] virtual SharedPasses const* passes() const noexcept { return nullptr; }
  /// Adds to a new machine what it does in a step.
  virtual void extend(Machine&, Setup const&) const {}
  /// Refuses a table for a usual number of microbatches, two for each position, before the first
  /// step. Not called if the schedule has none for that number.
  virtual void require_table(Machine const&, schedule::Table const&, Setup const&) const {}
};

}  // namespace detail
}  // namespace stagger
