// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The program: a table lowered to what an interpreter runs, with every wait, message and
/// slot a number.

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/list.hpp>
#include <stagger/schedule/action.hpp>

namespace stagger {

/// What an instruction does. The order of the values means nothing.
///
/// A new opcode needs a line here and in each fact below that holds for it, the pass that writes
/// it, and the executor that runs it. All others, such as checks, costs and texts, ask for facts.
enum class Op : std::uint8_t {
  forward,
  backward,
  backward_input,
  backward_weight,
  recompute,  ///< forward once more, for the values that backward needs
  hand_in,    ///< the rank's gradients are complete, for those that add them to their own
  finish,     ///< add what other owners of this rank's stages handed in; sum squares
  update,     ///< optimizer step, once every rank has finished
  apply,  ///< optimizer step of one stage alone, from weight version `version` to `next_version`;
          ///< if several ranks hold it: of the rank's part of each layer, by the sum of their
          ///< gradients; with a parameter server: what it would change, into slot `next_version`
  // Of a cell of a worker that trains with others through a parameter server:
  push,  ///< the sum of the changes since the last push goes to the server
  pull,  ///< make weight version `next_version` from a snapshot, or from `version` and a change
  // Between stages that are replicated differently:
  gather_input,     ///< take the rows of `x` from slot `y` of each replica before, or the batch
  gather_gradient,  ///< take the rows of `dy` from slot `dx` of each replica after
  gather_target,    ///< take the rows of the microbatch's target
  pass,             ///< give further signals of the instruction before
  // Where several ranks hold a stage and its gradients are added up while backward still runs:
  backward_part,         ///< one gradient group's layers of a stage's last B
  backward_weight_part,  ///< one gradient group's layers of a stage's last W
  reduce,                ///< add up one part of a gradient group over all who hold the stage
};

[[nodiscard]] constexpr bool in_table(Op op) noexcept {
  return op == Op::forward || op == Op::backward || op == Op::backward_input ||
         op == Op::backward_weight;
}

/// Whether it repeats an action of the table, whose result is there already.
[[nodiscard]] constexpr bool repeats(Op op) noexcept { return op == Op::recompute; }

/// Whether it runs all layers of a stage.
[[nodiscard]] constexpr bool computes(Op op) noexcept { return in_table(op) || repeats(op); }

/// Whether it runs some layers of a stage, as a part of its last backward.
[[nodiscard]] constexpr bool computes_part(Op op) noexcept {
  return op == Op::backward_part || op == Op::backward_weight_part;
}

/// Whether it runs layers of a stage, all or some.
[[nodiscard]] constexpr bool runs_layers(Op op) noexcept {
  return computes(op) || computes_part(op);
}

/// Whether it adds up a gradient group.
[[nodiscard]] constexpr bool reduces(Op op) noexcept { return op == Op::reduce; }

/// Whether it works on a gradient group.
[[nodiscard]] constexpr bool has_group(Op op) noexcept { return computes_part(op) || reduces(op); }

/// Whether it takes rows of values between stages.
[[nodiscard]] constexpr bool gathers_values(Op op) noexcept {
  return op == Op::gather_input || op == Op::gather_gradient;
}

/// Whether it takes rows that other ranks, or the caller, have made.
[[nodiscard]] constexpr bool gathers(Op op) noexcept {
  return gathers_values(op) || op == Op::gather_target;
}

/// Whether it makes the output of the stage, for the next one or for the loss.
[[nodiscard]] constexpr bool gives_output(Op op) noexcept { return op == Op::forward; }

/// Whether it makes the gradient of the stage's input.
[[nodiscard]] constexpr bool gives_input_gradient(Op op) noexcept {
  return op == Op::backward || op == Op::backward_input || op == Op::backward_part;
}

/// Whether it makes gradients of the stage's parameters; after it, the microbatch is done.
[[nodiscard]] constexpr bool gives_weight_gradient(Op op) noexcept {
  return op == Op::backward || op == Op::backward_weight || computes_part(op);
}

/// Whether it adds up gradients of several owners of a stage.
[[nodiscard]] constexpr bool adds_up(Op op) noexcept { return op == Op::finish || reduces(op); }

/// Whether it is an optimizer step.
[[nodiscard]] constexpr bool updates(Op op) noexcept { return op == Op::update || op == Op::apply; }

/// Whether it sends parameters, or changes of them, to a server.
[[nodiscard]] constexpr bool pushes(Op op) noexcept { return op == Op::push; }

/// Whether it exchanges parameters with a server.
[[nodiscard]] constexpr bool exchanges(Op op) noexcept { return pushes(op) || op == Op::pull; }

/// Whether it stands after all actions of a training step that flushes.
[[nodiscard]] constexpr bool ends_step(Op op) noexcept {
  return op == Op::hand_in || op == Op::finish || op == Op::update;
}

/// The table's kind of what an instruction computes, or gathers rows for: F for a recomputation, B
/// or W for a part of one. @pre computes(op), has_group(op), gathers(op) or exchanges(op)
[[nodiscard]] constexpr schedule::Kind kind_of(Op op) noexcept {
  switch (op) {
    case Op::backward:
    case Op::backward_part:
    case Op::gather_gradient:
      return schedule::Kind::backward;
    case Op::backward_input:
      return schedule::Kind::backward_input;
    case Op::backward_weight:
    case Op::backward_weight_part:
      return schedule::Kind::backward_weight;
    case Op::reduce:
      return schedule::Kind::reduce_gradient;
    case Op::push:
      return schedule::Kind::push;
    case Op::pull:
      return schedule::Kind::pull;
    default:
      return schedule::Kind::forward;
  }
}

/// Whether values go forward in it. @pre computes(op), has_group(op) or gathers_values(op)
[[nodiscard]] constexpr bool is_forward(Op op) noexcept {
  return kind_of(op) == schedule::Kind::forward;
}

/// The instruction of an action of the table. @pre schedule::is_compute(kind)
[[nodiscard]] constexpr Op op_of(schedule::Kind kind) noexcept {
  switch (kind) {
    case schedule::Kind::backward:
      return Op::backward;
    case schedule::Kind::backward_input:
      return Op::backward_input;
    case schedule::Kind::backward_weight:
      return Op::backward_weight;
    default:
      return Op::forward;
  }
}

/// An instruction as text, where % stands for its stage, $ for its kind and # for its microbatch.
[[nodiscard]] constexpr char const* wording(Op op) noexcept {
  switch (op) {
    case Op::recompute:
      return "%$# (again)";
    case Op::hand_in:
    case Op::finish:
      return "its last gradient";
    case Op::update:
    case Op::apply:
      return "the update";
    case Op::gather_input:
    case Op::gather_gradient:
    case Op::gather_target:
      return "gathering rows for %$#";
    case Op::pass:
      return "handing on stage %'s rows of #";
    case Op::reduce:
      return "the sum of stage %'s gradients";
    default:
      return "%$#";
  }
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
/// A message is a slot that the producer writes and the consumer reads, with two signals: `full` by
/// the producer, `free` by the consumer at the last use. Slots are numbered per cell.
struct Instruction {
  Op op = Op::forward;
  std::uint8_t signal_count = 0;  ///< of `signal`
  std::uint16_t waits = 0;        ///< how many of the rank's `waits` belong to this instruction
  std::uint16_t stage = 0;
  std::uint16_t cell = 0;                 ///< index in Program::cells
  std::array<std::uint16_t, 3> signal{};  ///< that it gives
  std::uint16_t group = 0;  ///< of Program::groups, where `has_group(op)`, or it pushes a group
  std::uint32_t microbatch = 0;
  std::uint16_t x = 0;      ///< the stage's input; unused at the first stage, which reads the batch
  std::uint16_t y = 0;      ///< the input slot of the next stage; unused at the last stage
  std::uint16_t kept = 0;   ///< outputs of the inner layers and saved state
  std::uint16_t dy = 0;     ///< gradient of the stage's output
  std::uint16_t dx = 0;     ///< the dy slot of the stage before; unused at the first stage
  std::uint16_t inner = 0;  ///< gradients between the stage's layers
  std::uint16_t version = 0;       ///< of the weights that the instruction reads
  std::uint16_t next_version = 0;  ///< the version that `apply` makes; of B, I and W in a step:
  ///< bits, whether it is the stage's last of the rank to give the gradient of an input, of weights
  static constexpr std::uint16_t ends_inputs = 1, ends_weights = 2;

  /// Of `apply`: how many updates of the stage were made before it in the step.
  [[nodiscard]] constexpr std::uint32_t update() const noexcept { return microbatch; }
  /// Of `push`: which push of the worker it is, from 0.
  [[nodiscard]] constexpr std::uint32_t round() const noexcept { return microbatch; }
  /// Of `pull`: from a snapshot with this many rounds of every worker and this many own pushes
  /// after them; else from the version in `version` and the change in `next_version`, or in a step:
  /// from the late values that have arrived.
  [[nodiscard]] constexpr bool snapshot() const noexcept { return y != 0; }
  [[nodiscard]] constexpr std::uint32_t rounds() const noexcept { return microbatch; }
  [[nodiscard]] constexpr std::uint16_t waves() const noexcept { return x; }
  /// Of `push` and `pull`: whether anything is exchanged with the server.
  [[nodiscard]] constexpr bool reaches_server() const noexcept { return pushes(op) || snapshot(); }
  /// Of `pull`: whether it makes the version that lasts, with all pushes of every worker.
  [[nodiscard]] constexpr bool last_pull() const noexcept { return y == 2; }
  /// Of `reduce`, and of an `apply` that updates_part(): which part of each layer, of how many.
  [[nodiscard]] constexpr std::uint16_t part() const noexcept { return x; }
  [[nodiscard]] constexpr std::uint16_t parts() const noexcept { return y; }
  /// Whether it adds up gradients of several ranks and updates by them, each rank a part.
  [[nodiscard]] constexpr bool updates_part() const noexcept { return op == Op::apply && y != 0; }
  constexpr void add_signal(std::uint32_t number) noexcept {  // signal_count < signal.size()
    signal[signal_count++] = static_cast<std::uint16_t>(number);
  }
  constexpr void set_update(std::uint32_t number) noexcept { microbatch = number; }
  constexpr void set_round(std::uint32_t number) noexcept { microbatch = number; }
  constexpr void set_snapshot(std::uint32_t rounds, std::uint16_t waves, bool last) noexcept {
    microbatch = rounds, x = waves, y = last ? 2 : 1;
  }
  constexpr void set_part(std::uint16_t number, std::uint16_t of) noexcept { x = number, y = of; }
};

/// What an instruction computes, as an action of a table. @pre as of kind_of
[[nodiscard]] constexpr schedule::Action action_of(Instruction const& in) noexcept {
  return {kind_of(in.op), in.stage, static_cast<int>(in.microbatch)};
}

/// The rows of a microbatch from before / total on, own / total of them.
struct RowShare {
  std::uint64_t before = 0;
  std::uint64_t own = 1;
  std::uint64_t total = 1;
  [[nodiscard]] constexpr bool whole() const noexcept { return own == total; }
};

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
  int depth = 0;                  ///< how many stages there are before it in the chain
  RowShare rows{};                ///< that it works on
  bool gathers_target = false;    ///< it compares rows of the target
  // Where groups of ranks share layers, and a stage of the table is several of the program:
  bool opens = true;         ///< it is the first one of its stage of the table
  int member = 0;            ///< of the group; `replica` then counts groups
  std::size_t features = 0;  ///< of a row of the output, of all members; 0: not known
  IndexRange columns{};      ///< those that it has itself; none: all, or terms
  bool alone = false;  ///< it updates after each microbatch of a step, not at the end with others

  /// Whether it reads the microbatch where the caller keeps it.
  [[nodiscard]] constexpr bool first() const noexcept { return before == none && !gathers_input; }
  /// Whether its output is the model's.
  [[nodiscard]] constexpr bool last() const noexcept { return after == none && !gathers_gradient; }
};

/// Whether a cell is the first one of its stage, which exchanges the stage's parameters with a
/// parameter server. @param cells  by stage
[[nodiscard]] inline bool is_first_holder(List<Cell> const& cells, std::size_t c) noexcept {
  return c == 0 || cells[c - 1].stage != cells[c].stage;
}

/// Whether no other cell has the same stage. @param cells  by stage
[[nodiscard]] inline bool is_only_holder(List<Cell> const& cells, std::size_t c) noexcept {
  return is_first_holder(cells, c) &&
         (c + 1 == cells.size() || cells[c + 1].stage != cells[c].stage);
}

/// An instruction on a cell, without operands.
[[nodiscard]] inline Instruction instruction_on(List<Cell> const& cells, std::size_t c, Op op) {
  Instruction in;
  in.op = op;
  in.stage = static_cast<std::uint16_t>(cells[c].stage);
  in.cell = static_cast<std::uint16_t>(c);
  return in;
}

/// The columns that are taken over an edge, of a value that members of a group share: all, or those
/// of one of its cells, `from` if that has Cell::columns, otherwise `to`.
enum class TakenPart : std::uint8_t {
  all,
  put,      ///< the value has only these columns; they go to their place in the whole value
  columns,  ///< the taker gets only these columns of the whole value
  kept,     ///< both values are whole; only this member's share of the columns is copied
};

/// What is taken over one direction of a row edge.
struct RowUse {
  bool used = true;
  TakenPart part = TakenPart::all;
  bool adds = false;  ///< it is added to what was taken before
};

/// An edge between cells of neighbouring stages whose replicas divide microbatches differently, or
/// whose members of a group divide values: `to` takes a part of each output of `from`, and `from` a
/// part of each input gradient of `to`.
struct RowEdge {
  std::uint16_t from = 0;  ///< cell
  std::uint16_t to = 0;
  RowUse forward{};
  RowUse backward{};
  // Of one direction: the cell that makes the values, the one that takes parts of them, and which.
  [[nodiscard]] constexpr std::uint16_t maker(bool ahead) const noexcept {
    return ahead ? from : to;
  }
  [[nodiscard]] constexpr std::uint16_t taker(bool ahead) const noexcept {
    return ahead ? to : from;
  }
  [[nodiscard]] constexpr RowUse const& use(bool ahead) const noexcept {
    return ahead ? forward : backward;
  }
};

/// The signals of an edge: from a cell to the one after it, or a row edge.
enum class EdgeSignal : std::uint8_t {
  forward_full,   ///< an input of the latter is there
  forward_free,   ///< one may be overwritten
  backward_full,  ///< likewise a gradient of the former's output
  backward_free,
};
inline constexpr std::uint32_t signals_per_edge = 4;  ///< the first in Program::signals

/// The number of such a signal.
/// @param edge  the cell that it leaves; of row edge k: Program::cells.size() + k
[[nodiscard]] constexpr std::uint32_t signal_of(std::integral auto edge,
                                                EdgeSignal which) noexcept {
  return static_cast<std::uint32_t>(edge) * signals_per_edge + static_cast<std::uint32_t>(which);
}

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
  int reducer_for =
      -1;  ///< of a rank that only adds up gradients: the rank whose process it runs in

  /// Has the next instruction wait until a signal was given `count` times.
  void add_wait(Instruction& in, std::uint32_t signal, std::size_t count) {
    waits.push_back({signal, static_cast<std::uint32_t>(count)});
    ++in.waits;
  }
  /// Appends an instruction, and as many `pass` after it as its signals take.
  [[gnu::cold]] void append(Instruction in, List<std::uint16_t> const& signals) {
    std::size_t given = 0;
    do {
      for (in.signal_count = 0; in.signal_count < in.signal.size() && given < signals.size();)
        in.add_signal(signals[given++]);
      code.push_back(in);
      in.op = Op::pass;
      in.waits = 0;
    } while (given < signals.size());
  }
};

/// Who gives a signal and who waits for it.
struct SignalEnds {
  static constexpr int everyone = -1;
  static constexpr int outside = -2;  ///< a parameter server, which counts rounds of all workers
  int sender = 0;                     ///< a rank, or outside
  int receiver = 0;                   ///< a rank, or everyone
  int edge = -1;  ///< of a signal that announces a value between the stages edge and edge + 1; -1:
                  ///< no such value
  int gradients = -1;  ///< a cell, whose gradients it announces: the k-th time those of the k-th
                       ///< group of the stage; holder p of n of the stage takes part p of n
  int sums = -1;       ///< a cell, whose rank has added up its part of the k-th group
  /// Whether it is given once for each gradient group.
  [[nodiscard]] constexpr bool of_group() const noexcept { return gradients >= 0 || sums >= 0; }
};

/// One iteration, ready to run.
struct Program {
  int stages = 0;
  int microbatches = 0;  ///< units that flow: slices, where the table divides microbatches
  bool training = true;
  int updates = 1;      ///< optimizer steps that training makes; more than one only without a flush
  bool flushes = true;  ///< whether stages update together at the end, or those that are not alone
  int push_minibatches = 0;    ///< in one push to a parameter server; 0: there is none
  bool late = false;           ///< answers to a step's pushes may come in the step after
  bool pushes_groups = false;  ///< a stage with one holder pushes each gradient group by itself
  bool pushes_sums = false;    ///< the others likewise, on the reducer of the first holder
  List<Cell> cells;            ///< by stage, then by rank
  List<RowEdge> row_edges;     ///< between cells whose shares of a microbatch differ but overlap
  int computing = 0;  ///< ranks that run the table; the others, after them, add up gradients
  List<GradientGroup> groups;  ///< of stages with several cells: by stage, in backward order
  List<RankProgram> ranks;
  List<SignalEnds> signals;
  std::vector<int> peak_in_flight;  ///< [computing] (stage, microbatch) pairs whose F has run,
                                    ///< whose B or W has not

  /// Whether some stage updates before all ranks have finished.
  [[nodiscard]] bool updates_early() const noexcept {
    bool early = !flushes;
    for (Cell const& cell : cells) early = early || cell.alone;
    return training && early;
  }
  /// Updates of a stage that updates alone for which the optimizer counts one step.
  [[nodiscard]] int counted_updates() const noexcept { return flushes ? microbatches : 1; }
  [[nodiscard]] bool exchanges() const noexcept { return push_minibatches != 0; }
  /// How many pushes it makes to a parameter server. @pre exchanges()
  [[nodiscard]] std::uint32_t pushes() const noexcept {
    return static_cast<std::uint32_t>(updates / push_minibatches +
                                      (updates % push_minibatches != 0 ? 1 : 0));
  }
  /// How often a server's signal must have been given before an instruction: at the end of a step
  /// once, for the pulled weights; with late layers once for the late values of the previous step,
  /// then a second time.
  [[nodiscard]] constexpr std::uint32_t answers_for(Instruction const& in) const noexcept {
    if (stagger::pushes(in.op)) return late ? 1 : 0;
    if (!in.snapshot()) return 0;
    return !flushes ? in.rounds() + (in.last_pull() ? 1 : 0) : late ? 2 : 1;
  }
  /// The signals after those of the edges: that a rank has handed in its gradients, or if there are
  /// gradient groups that a higher rank can go on with its squares; and that a rank has finished.
  [[nodiscard]] std::uint32_t handed_in(std::integral auto rank) const noexcept {
    return signal_of(cells.size() + row_edges.size(), EdgeSignal{}) +
           static_cast<std::uint32_t>(rank);
  }
  [[nodiscard]] std::uint32_t finished(int rank) const noexcept {
    return handed_in(computing + rank);
  }
  /// The signal by which a server notifies a cell of rounds: these are the last. @pre exchanges()
  [[nodiscard]] std::uint32_t outside_signal(std::size_t cell) const noexcept {
    return static_cast<std::uint32_t>(signals.size() - cells.size() + cell);
  }
};

namespace detail {

/// Calls `visit(stage, cells)` for every stage of a program.
template <class Visit> void each_stage(Program const& program, Visit visit) {
  auto const& cells = program.cells;
  for (std::size_t first = 0, last = 0; first < cells.size(); first = last) {
    while (last < cells.size() && cells[last].stage == cells[first].stage) ++last;
    visit(cells[first].stage, IndexRange{first, last});
  }
}
[[nodiscard]] inline IndexRange cells_of(Program const& program, int stage) {
  IndexRange found;
  each_stage(program, [&](int s, IndexRange cells) {
    if (s == stage) found = cells;
  });
  return found;
}

/// @throws Error  bad_schedule for more signals than a program can number
[[gnu::cold]] inline void resize_signals(Program& program, std::size_t count) {
  if (count > 65535)
    raise(Errc::bad_schedule, program.cells.size(), " stages on ", program.computing,
          " ranks need more signals than a program can number; use fewer");
  program.signals.resize(count);
}

}  // namespace detail
}  // namespace stagger
