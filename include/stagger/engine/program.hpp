// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The program: a table lowered to what an interpreter runs, with every wait, message and
/// slot a number.

#include <array>
#include <cstdint>
#include <vector>

#include <stagger/core/list.hpp>
#include <stagger/schedule/action.hpp>

namespace stagger {

/// What an instruction does. The first four are the compute actions of the table.
enum class Op : std::uint8_t {
  forward,
  backward,
  backward_input,
  backward_weight,
  recompute,  ///< forward once more, to have again what backward needs
  hand_in,    ///< the rank's gradients are complete, for those that add them to their own
  finish,     ///< add what other owners of this rank's stages handed in; sum squares
  update,     ///< optimizer step, once every rank has finished
  apply,      ///< optimizer step of one cell alone, from weight version `version` to `next_version`
  // Between stages that are replicated differently:
  gather_input,     ///< take the rows of `x` from slot `y` of each replica before, or the batch
  gather_gradient,  ///< take the rows of `dy` from slot `dx` of each replica after
  gather_target,    ///< take the rows of the microbatch's target
  pass,             ///< give further signals of the instruction before
  // Where several ranks hold a stage and its gradients are added up while backward still runs:
  backward_part,         ///< the layers of gradient group `next_version` of a last B
  backward_weight_part,  ///< likewise of a last W
  reduce,  ///< add up part `x` of `y` of gradient group `next_version` over all who hold the stage
};

/// The table's kind of a compute instruction. @pre op <= Op::backward_weight
[[nodiscard]] constexpr schedule::Kind kind_of(Op op) noexcept {
  return static_cast<schedule::Kind>(op);
}

/// "At least `count` of `signal` were given since the step began."
struct Wait {
  std::uint32_t signal = 0;
  std::uint32_t count = 0;
  friend constexpr bool operator==(Wait const&, Wait const&) = default;
};

/// One instruction of one rank. It runs as a whole once all of its waits hold, then gives its
/// signals in order.
///
/// A message is a slot that the producer writes and the consumer reads, with two signals: `full`
/// given by the producer, `free` given by the consumer at the last use. Slots are numbered per
/// cell.
struct Instruction {
  Op op = Op::forward;
  std::uint8_t gives = 0;   ///< how many of `give` are used
  std::uint16_t waits = 0;  ///< how many of the rank's `waits` belong to this instruction
  std::uint16_t stage = 0;
  std::uint16_t cell = 0;               ///< index in Program::cells
  std::array<std::uint16_t, 3> give{};  ///< signals
  std::uint32_t microbatch = 0;
  std::uint16_t x = 0;      ///< the stage's input; unused at the first stage, which reads the batch
  std::uint16_t y = 0;      ///< the input slot of the next stage; unused at the last stage
  std::uint16_t kept = 0;   ///< outputs of the inner layers and saved state
  std::uint16_t dy = 0;     ///< gradient of the stage's output
  std::uint16_t dx = 0;     ///< the dy slot of the stage before; unused at the first stage
  std::uint16_t inner = 0;  ///< gradients between the stage's layers
  std::uint16_t version = 0;       ///< of the weights that the instruction reads
  std::uint16_t next_version = 0;  ///< of `apply`; its `microbatch` counts the updates before it
};

/// The table's action of a compute instruction; F for a recomputation.
[[nodiscard]] constexpr schedule::Action action_of(Instruction const& in) noexcept {
  schedule::Kind const kind = in.op == Op::recompute ? schedule::Kind::forward : kind_of(in.op);
  return {kind, in.stage, static_cast<int>(in.microbatch)};
}

/// One stage on one of its owners. Most schedules give a stage one owner; bidirectional ones give
/// it two, each for its own microbatches.
struct Cell {
  static constexpr int none = -1;
  int stage = 0;
  int rank = 0;
  int before = none;  ///< the cell that its input comes from; none at the first stage
  int after = none;   ///< the cell that its output goes to; none at the last stage
  std::uint32_t x_slots = 0;
  std::uint32_t kept_slots = 0;
  std::uint32_t dy_slots = 0;
  std::uint32_t inner_slots = 0;
  std::uint32_t versions = 1;  ///< of its weights; version 0 is the one that lasts
  int position = 0;            ///< row of the table
  int replica = 0;             ///< of the ranks that share it
  bool gathers_input = false;  ///< from cells of other shares or the batch; `before` is none then
  bool gathers_gradient = false;  ///< from cells of other shares; `after` is none then
  std::uint32_t y_slots = 0;      ///< of its output, where those who take its rows fetch them
  std::uint32_t dx_slots = 0;     ///< likewise of its input's gradient

  /// Whether it reads the microbatch where the caller keeps it.
  [[nodiscard]] constexpr bool first() const noexcept { return before == none && !gathers_input; }
  /// Whether its output is the model's.
  [[nodiscard]] constexpr bool last() const noexcept { return after == none && !gathers_gradient; }
};

/// A cell takes rows of what another has made, and the other rows of the gradient that it hands
/// back.
struct Cut {
  std::uint16_t from = 0;  ///< cells of neighbouring stages
  std::uint16_t to = 0;
};

/// Layers of a stage that is held by several ranks, whose gradients are added up in one go: as soon
/// as the last backward of each holder has come so far.
struct GradientGroup {
  static constexpr int all = 0x7fffffff;
  int stage = 0;
  int lowest = 0;     ///< counted from the stage's first layer
  int highest = all;  ///< likewise; beyond the last layer: up to it
  friend constexpr bool operator==(GradientGroup const&, GradientGroup const&) = default;
};

/// One rank's part of a program.
struct RankProgram {
  List<Instruction> code;
  List<Wait> waits;  ///< of all instructions, in order
  int beside = -1;   ///< of a rank that only adds up gradients: whose, and in whose process it runs
};

/// Who gives a signal and who waits for it.
struct SignalEnds {
  static constexpr int everyone = -1;
  int giver = 0;
  int taker = 0;  ///< a rank, or everyone
  int edge = -1;  ///< of a signal that announces a value between the stages edge and edge + 1; -1:
                  ///< no such value
  int gradients = -1;  ///< a cell, whose gradients it announces: the k-th time those of the k-th
                       ///< group of the stage; holder p of n of the stage takes part p of n
  int sums = -1;       ///< a cell, whose rank has added up its part of the k-th group
};

/// One iteration, ready to run.
struct Program {
  int stages = 0;
  int microbatches = 0;  ///< units that flow: slices, where the table cuts microbatches
  bool training = true;
  int updates = 1;      ///< optimizer steps that training makes; more than one only without a flush
  bool flushes = true;  ///< whether all stages update together, at the end
  List<Cell> cells;     ///< by stage, then by rank
  List<Cut> cuts;       ///< between cells whose shares of a microbatch differ but overlap
  int computing = 0;    ///< ranks that run the table; the others, behind them, add up gradients
  List<GradientGroup> groups;  ///< of stages with several cells: by stage, in backward order
  List<RankProgram> ranks;
  List<SignalEnds> signals;
  std::vector<int> peak_in_flight;  ///< [computing] (stage, microbatch) pairs whose F has run,
                                    ///< whose B or W has not
};

}  // namespace stagger
