// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Replicated stages (data parallelism): how ranks exchange rows.

#include <cstddef>
#include <cstdint>
#include <utility>

#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/list.hpp>
#include <stagger/engine/detail/gradient_groups.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/engine/options.hpp>
#include <stagger/engine/replica_run.hpp>
#include <stagger/program/dataflow.hpp>

namespace stagger {
namespace detail {

/// The requirements of replicas on a schedule and on the types of values that are split by rows.
struct ReplicaChecks {
  [[gnu::cold]] static void require(Replicas const& replicas, int positions) {
    if (std::cmp_not_equal(replicas.positions(), positions))
      raise(Errc::bad_configuration, replicas.positions(), " counts of replicas do not fit ",
            counted(positions, "position"), " of the schedule; give one for each");
    for (std::size_t p = 0; p < replicas.positions(); ++p)
      if (replicas.counts()[p] < 1)
        raise(Errc::bad_configuration, "position ", p, " of the schedule has ",
              replicas.counts()[p], " replicas; give it at least 1");
    for (Replicas::Part const& part : replicas.parts())
      if (part.own < 1 || part.own > most_total || part.total > most_total)
        raise(Errc::bad_configuration, "the share of replica ", part.replica, " of position ",
              part.position, " is ", static_cast<std::int64_t>(part.own), " of ",
              static_cast<std::int64_t>(part.total),
              "; give each replica a positive one, and at most ", most_total, " together");
  }

  static void require_rows_of(SlotType const& input, int layer) {
    if (input.rows == nullptr)
      raise(Errc::bad_configuration, "the input of layer ", layer,
            " cannot be split by rows, which ",
            layer == 0 ? "its replicas need" : "differently replicated stages need",
            "; give its type rows(), resize_rows(like, n) and copy_rows(at, from, first, n), or "
            "both stages the same replicas");
  }

  /// Refuses a type whose rows are copied by the host, although kernels that read them are only
  /// enqueued.
  static void require_on_stream(Machine const& machine, SlotType const& type, char const* what,
                                int layer = -1) {
    if (machine.model.memory == nullptr || type.rows_on_stream) return;
    raise(Errc::bad_configuration, what, layer < 0 ? text("") : text(" of layer ", layer),
          " has rows that the host copies, but kernels read it later; where stages enqueue, "
          "replicas need a cuda::Tensor, or a type that copies its rows on cuda::stream() and says "
          "static constexpr bool rows_on_stream = true");
  }

  [[noreturn]] [[gnu::cold]] static void refuse_target(int replicas) {
    raise(Errc::bad_configuration, "the loss's Target cannot be split by rows, which the ",
          replicas,
          " replicas of the last stage need; give it rows(), resize_rows(like, n) and "
          "copy_rows(at, from, first, n), or the last position 1 replica");
  }

  [[gnu::cold]] static void require_rows(Machine const& machine, schedule::Table const& table,
                                         bool target_has_rows) {
    if (auto const* const grouped = machine.model.grouped; grouped != nullptr) {
      static_cast<void>(grouped->table(table, machine.model.options.replicas));
      return;  // exchanges between sections are only known once a program is laid out
    }
    if (table.stages != machine.stages()) return;
    auto const& replicas = machine.model.options.replicas;
    require_rows_of(*machine.model.layers[0].ops().input, 0);
    Dataflow flow = read_table(table, &replicas);
    connect(flow);
    for (Cell const& cell : flow.cells) {
      std::size_t const first = machine.model.first_layer[cell.stage];
      if (cell.gathers_input)
        require_rows_of(*machine.model.layers[first].ops().input, static_cast<int>(first));
      if (cell.gathers_target && !target_has_rows) refuse_target(replicas.counts()[cell.position]);
    }
  }

  static constexpr std::uint64_t most_total = 0xffffffff;
};

/// The work of replicated stages' ranks in a step: which rows each takes, and from which ranks.
class Replication final : public StepPart, ReplicaChecks {
 public:
  using Part = Replicas::Part;

  [[gnu::cold]] void load(Machine& machine) override {
    Program const& program = *machine.run.program;
    auto const& parts = machine.model.options.replicas.parts();
    machine.run.replica_run = &run_;
    ReplicaRun& run = run_;
    if (run.ranks.size() != parts.size()) run.ranks = FixedArray<ReplicaRank>(parts.size());
    if (run.cells.size() != program.cells.size())
      run.cells = FixedArray<CellRows>(program.cells.size());
    run.inputs.clear();
    run.gradients.clear();
    for (std::size_t c = 0; c < program.cells.size(); ++c) {
      Cell const& cell = program.cells[c];
      StageRun const& stage = machine.run.cells[c];
      if (cell.gathers_input) {
        require_rows_of(*stage.front->ops->input, stage.front->number);
        require_on_stream(machine, *stage.front->ops->input, "the input", stage.front->number);
      }
      if (cell.last()) {
        run.ranks[cell.rank].takes_target_rows = cell.gathers_target;
        run.ranks[cell.rank].last_cell = c;
        run.ranks[cell.rank].counts = cell.member == 0;
      }
      for (RowEdge const& edge : program.row_edges)
        for (bool const forward : {true, false}) {
          if (edge.taker(forward) != c || !edge.use(forward).used) continue;
          StageRun const& maker = machine.run.cells[edge.maker(forward)];
          run.sources(forward).push_back(
              {c, edge.maker(forward), forward ? maker.back->y : maker.dx});
          if (auto const* const grouped = machine.model.grouped; grouped != nullptr)
            grouped->describe(machine, edge, forward, run.sources(forward).back());
        }
      run.cells[c].rows.resize(static_cast<std::size_t>(program.microbatches));
      run.cells[c].first_rows.resize(run.cells[c].rows.size());
      set_first_rows(machine, c);
    }
    machine.traffic.find_rows(program, machine.run.cells, run);
  }

  /// Tells the context of a cell's rank which rows its layers work on.
  [[gnu::cold]] static void set_first_rows(Machine& machine, std::size_t c) {
    int const rank = machine.run.program->cells[c].rank;
    ReplicaRun& run = *machine.run.replica_run;
    std::size_t const* const first_rows = run.cells[c].first_rows.data();
    auto const* const grouped = machine.model.grouped;
    if (grouped == nullptr) return machine.run.ranks[rank].context.set_first_rows(first_rows);
    auto& offsets = run.ranks[rank].layer_offsets;
    offsets.resize(grouped->layers.size());  // more layers than the model has
    for (std::size_t const l : machine.model.layers_of(machine.run.program->cells[c].stage))
      offsets[grouped->layers[l].number] = {first_rows, grouped->layers[l].first_column};
    machine.run.ranks[rank].context.set_layer_offsets(offsets.data());
  }

  [[gnu::cold]] void begin_step(Machine& machine) override {
    ReplicaRun& run = run_;
    if (!machine.model.options.replicas.share_rows()) return;
    auto const& parts = machine.model.options.replicas.parts();
    StepArguments const& asked = machine.run.arguments;
    SlotType const& input = *machine.model.layers[0].ops().input;
    auto const microbatches = static_cast<std::size_t>(machine.run.program->microbatches);
    for (std::size_t m = 0; m < microbatches; ++m) {
      std::size_t const count = rows_of_microbatch(asked, input, m);
      for (Part const& part : parts)
        if (rows_of(count, {part.before, part.own, part.total}).count() == 0)
          raise(Errc::bad_configuration, "microbatch ", m, " has ", counted(count, "row"),
                ", of which replica ", part.replica, " of the ", part.replicas, " of position ",
                part.position, " would get none; give each microbatch at least ",
                (part.total + part.own - 1) / part.own, " rows, or the position fewer replicas");
      for (std::size_t c = 0; c < run.cells.size(); ++c) {
        RowRange const rows = rows_of(count, machine.run.program->cells[c].rows);
        run.cells[c].rows[m] = rows;
        run.cells[c].first_rows[m] = rows.first;
      }
    }
    for (std::size_t r = 0; r < parts.size(); ++r) {
      ReplicaRank& own = run.ranks[r];
      if (!own.takes_target_rows && own.counts) continue;
      own.arguments = asked;
      if (asked.losses != nullptr)
        own.arguments.losses =
            asked.losses + static_cast<std::size_t>(parts[r].replica) * microbatches;
      if (asked.losses != nullptr && !own.counts) {
        own.uncounted.resize(microbatches);
        own.arguments.losses = own.uncounted.data();
      }
      if (asked.targets.first != nullptr && own.takes_target_rows) {
        SlotType const* const type = asked.loss_ops.target;
        if (type == nullptr) refuse_target(parts[r].replicas);
        require_on_stream(machine, *type, "the loss's Target");
        if (own.target.count() == 0) own.target = Slots(*type, 1);
        own.arguments.targets = {static_cast<std::byte*>(own.target[0]), 0};
      }
      if (asked.outputs.first != nullptr) {
        LayerRun const& layer = *machine.run.cells[own.last_cell].back;
        SlotType const& type = *layer.ops->output;
        if (type.rows == nullptr)
          raise(Errc::bad_configuration, "the output of layer ", layer.number,
                " cannot be put together from rows, which predictions of a replicated last stage "
                "need; give its type rows(), resize_rows(like, n) and copy_rows(at, from, first, "
                "n), or the last position 1 replica");
        own.outputs.provide(type, microbatches);
        own.arguments.outputs = places(own.outputs, type);
      }
      machine.run.ranks[r].arguments = &own.arguments;
    }
  }

  /// Joins the rows that the replicas predicted.
  [[gnu::cold]] void settle(Machine& machine) override {
    if (machine.run.arguments.outputs.first == nullptr) return;
    ReplicaRun& run = run_;
    Program const& program = *machine.run.program;
    SlotType const& type = *machine.model.layers[machine.model.layers.size() - 1].ops().output;
    for (std::size_t m = 0; std::cmp_less(m, program.microbatches); ++m) {
      if (m < run.elsewhere.size() && run.elsewhere[m]) continue;
      std::size_t total = 0;
      std::size_t at = 0;
      for (bool const measure : {true, false}) {
        for (std::size_t r = 0; r < run.ranks.size(); ++r) {
          ReplicaRank const& own = run.ranks[r];
          if (!own.takes_target_rows || !own.counts || !runs(machine, r, m)) continue;
          void const* const from = own.outputs[m];
          std::size_t const rows = type.rows(from);
          if (measure) {
            total += rows;
            continue;
          }
          void* const to = machine.run.arguments.outputs[m];
          if (at == 0) type.resize_rows(to, from, total);
          type.copy_rows(to, at, from, 0, rows);
          at += rows;
        }
      }
    }
  }

  /// Memory of the rows of targets and outputs, in bytes.
  [[gnu::cold]] void add_memory(Memory& memory) const override {
    for (ReplicaRank const& own : run_.ranks)
      memory.activations += own.target.bytes() + own.outputs.bytes();
  }

  /// Whether a rank's cell of the last stage processes a microbatch.
  static bool runs(Machine const& machine, std::size_t rank, std::size_t m) {
    auto const cell = machine.run.replica_run->ranks[rank].last_cell;
    for (Instruction const& in : machine.run.program->ranks[rank].code)
      if (gives_output(in.op) && in.cell == cell && in.microbatch == m) return true;
    return false;
  }

  bool execute(Machine& machine, RankState& rank, Instruction const& in, Clock const&) override {
    if (!gathers(in.op)) return false;
    gather(machine, rank, in);
    return true;
  }

 private:
  /// Gathers the rows that a rank takes from others, or from the caller.
  static void gather(Machine& machine, RankState& rank, Instruction const& in) {
    ReplicaRun& run = *machine.run.replica_run;
    std::size_t const m = in.microbatch;
    ReplicaRank const& own = run.ranks[rank.number];
    RowRange const rows = run.cells[in.cell].rows[m];
    StageRun const& stage = machine.run.cells[in.cell];
    if (in.op == Op::gather_target) {
      if (machine.run.arguments.targets.first == nullptr) return;
      return take(*machine.run.arguments.loss_ops.target, own.target[0],
                  machine.run.arguments.targets[m], rows,
                  given_rows(machine, m, machine.run.arguments.target_rows));
    }
    bool const forward = in.op == Op::gather_input;
    SlotType const& type = stage.taken(forward);
    void* const to = forward ? stage.x[in.x] : stage.back->dy[in.dy];
    if (forward && machine.run.program->cells[in.cell].depth == 0)
      return take(type, to, machine.run.arguments.inputs[m], rows,
                  given_rows(machine, m, machine.run.arguments.input_rows));
    std::size_t multiple = 0;  // rows of the value for each row of the microbatch
    TakenBlocks blocks;
    for (RowSource const& source : run.sources(forward)) {
      if (source.cell != in.cell) continue;
      RowRange theirs = run.cells[source.maker].rows[m];
      RowRange const both = theirs.common(rows);
      if (both.count() == 0) continue;
      if (source.only_common) theirs = both;
      void const* const from = source.from[forward ? in.y : in.dx];
      std::size_t const each = required_rows_for_each(type, from, theirs.count());
      if (multiple != 0 && multiple != each) refuse_rows(type.rows(from), theirs.count());
      std::size_t const all_rows = multiple == 0 ? rows.count() * each : 0;
      multiple = each;
      RowRange const at{(both.first - rows.first) * each, (both.last - rows.first) * each};
      std::size_t const first_row = (both.first - theirs.first) * each;
      if (source.blocks != nullptr) {
        machine.model.grouped->take(source, blocks, to, from, at, first_row, all_rows);
        continue;
      }
      if (all_rows != 0) type.resize_rows(to, from, all_rows);
      type.copy_rows(to, at.first, from, first_row, at.count());
    }
    blocks.take(to);
  }

  static std::size_t rows_of_microbatch(StepArguments const& asked, SlotType const& input,
                                        std::size_t m) {
    return asked.rows != nullptr ? asked.rows[m] : input.rows(asked.inputs[m]);
  }
  /// The rows of a microbatch that the caller has given. @param share  if not all
  static RowRange given_rows(Machine const& machine, std::size_t m, RowShare const& share) {
    SlotType const& input = *machine.model.layers[0].ops().input;
    std::size_t const count = rows_of_microbatch(machine.run.arguments, input, m);
    return rows_of(count, share);
  }
  /// Takes a replica's rows of the caller's batch, which has the rows `given`.
  static void take(SlotType const& type, void* to, void const* from, RowRange rows,
                   RowRange given) {
    take_rows(type, to, from, given, rows, required_rows_for_each(type, from, given.count()));
  }

  static std::size_t required_rows_for_each(SlotType const& type, void const* value,
                                            std::size_t inputs) {
    std::size_t const each = rows_for_each(type, value, inputs);
    if (each == 0) refuse_rows(type.rows(value), inputs);
    return each;
  }

  [[noreturn]] [[gnu::cold]] static void refuse_rows(std::size_t rows, std::size_t inputs) {
    raise(Errc::mismatch, "a value of ", counted(rows, "row"), " belongs to ",
          counted(inputs, "row"),
          " of the model's input; with replicas, every value that is split must have as many "
          "rows as the input, or the same multiple of it");
  }

  ReplicaRun run_;
};

/// What adds replicas, and the gradient groups by which their gradients are added up, to a
/// pipeline.
class ReplicaPolicy final : public GradientGroupPolicy {
 public:
  void require(Setup const& setup, int positions) const override {
    ReplicaChecks::require(setup.options.replicas, positions);
  }
  void extend(Machine& machine, Setup const& setup) const override {
    machine.add(std::make_unique<Replication>());
    GradientGroupPolicy::extend(machine, setup);
  }
  void require_table(Machine const& machine, schedule::Table const& table,
                     Setup const& setup) const override {
    if (setup.options.replicas.share_rows())
      ReplicaChecks::require_rows(machine, table, setup.target_rows);
  }
};

template <> struct ReplicaTable<WithReplicas> {
  static std::shared_ptr<PolicyPart const> make() { return std::make_shared<ReplicaPolicy>(); }
};

}  // namespace detail
}  // namespace stagger
