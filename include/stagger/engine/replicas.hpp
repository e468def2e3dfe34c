// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Replicated stages: which ranks take rows from which, and how rows get there.
/// @source S. Fan et al., "DAPPLE: A Pipelined Data Parallel Approach for Training Large Models",
///         PPoPP 2021, section 5.2: microbatches split and concatenated between stages. Here the
///         taker fetches, and uneven shares are allowed.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <stagger/core/error.hpp>
#include <stagger/core/list.hpp>
#include <stagger/engine/detail/replica_run.hpp>
#include <stagger/engine/detail/replica_sums.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/engine/options.hpp>
#include <stagger/program/group_gradients.hpp>
#include <stagger/program/lay_out.hpp>

namespace stagger {
namespace detail {

struct Replication {
  using Part = Replicas::Part;

  // --- configuration

  [[gnu::cold]] static void require(Replicas const& replicas, int positions, bool synchronous) {
    if (replicas.positions() != static_cast<std::size_t>(positions))
      raise(Errc::bad_configuration, replicas.positions(), " counts of replicas do not fit ",
            counted(positions, "position"), " of the schedule; give one for each");
    for (std::size_t p = 0; p < replicas.positions(); ++p)
      if (replicas.counts()[p] < 1)
        raise(Errc::bad_configuration, "position ", p, " of the schedule has ",
              replicas.counts()[p], " replicas; give it at least 1");
    for (Part const& part : replicas.parts())
      if (part.own < 1 || part.own > most_total || part.total > most_total)
        raise(Errc::bad_configuration, "the share of replica ", part.replica, " of position ",
              part.position, " is ", static_cast<std::int64_t>(part.own), " of ",
              static_cast<std::int64_t>(part.total),
              "; give each replica a positive one, and at most ", most_total, " together");
    if (!synchronous)
      raise(Errc::bad_configuration,
            "replicas add up their gradients before all update, which an asynchronous staleness "
            "model does not wait for; leave Options::replicas out, or use staleness::Synchronous");
  }

  // --- layout

  static Part const& part(Layout const& layout, std::size_t cell) {
    return layout.options_.replicas->parts()[Layout::index(layout.cells_[cell].rank)];
  }
  static bool equal_shares(Part const& a, Part const& b) {
    return a.replica == b.replica && a.before * b.total == b.before * a.total &&
           a.own * b.total == b.own * a.total;
  }
  static bool overlap(Part const& a, Part const& b) {
    return a.before * b.total < (b.before + b.own) * a.total &&
           b.before * a.total < (a.before + a.own) * b.total;
  }

  /// Whether all replicas of two positions have the same shares.
  static bool alike(Replicas const& replicas, int a, int b) {
    auto const& parts = replicas.parts();
    if (replicas.counts()[Layout::index(a)] != replicas.counts()[Layout::index(b)]) return false;
    for (Part const& x : parts)
      for (Part const& y : parts)
        if (x.position == a && y.position == b && x.replica == y.replica && !equal_shares(x, y))
          return false;
    return true;
  }

  [[gnu::cold]] static void link(Layout& layout) {
    auto& cells = layout.cells_;
    for (std::size_t c = 0; c < cells.size(); ++c) {
      if (cells[c].stage == 0) cells[c].gathers_input = part(layout, c).replicas > 1;
      if (layout.last(c)) continue;
      int neighbour = -1;  // position
      bool same = false;
      std::size_t const stage = Layout::index(cells[c].stage);
      for (std::size_t d = layout.first_cell_[stage + 1]; d < layout.first_cell_[stage + 2]; ++d) {
        if (cells[d].position != neighbour) {
          if (!layout.meets(c, d)) continue;
          if (neighbour >= 0) layout.refuse_owners(c);
          neighbour = cells[d].position;
          same = alike(*layout.options_.replicas, cells[c].position, neighbour);
        }
        if (same ? cells[c].replica != cells[d].replica
                 : !overlap(part(layout, c), part(layout, d)))
          continue;
        for (std::size_t e = layout.first_cell_[stage]; e < c; ++e)
          if (cells[e].position != cells[c].position && layout.meets(e, d)) layout.refuse_owners(d);
        if (same) {
          cells[c].after = static_cast<int>(d);
          cells[d].before = static_cast<int>(c);
        } else {
          cells[c].gathers_gradient = cells[d].gathers_input = true;
          layout.cuts_.push_back({static_cast<std::uint16_t>(c), static_cast<std::uint16_t>(d)});
        }
      }
    }
  }

  /// Replicas have the slots of the first of them: one number names the value of all.
  static std::size_t first_of(Layout const& layout, std::size_t cell) {
    return cell - Layout::index(layout.cells_[cell].replica);
  }

  [[gnu::cold]] static void assign_slots(Layout& layout) {
    layout.y_ = FixedArray<Messages>(layout.cells_.size());
    layout.dx_ = FixedArray<Messages>(layout.cells_.size());
    for (Cut const& cut : layout.cuts_) {
      auto const& from = layout.uses_[cut.from];
      auto const& to = layout.uses_[cut.to];
      std::size_t const there = layout.row_length(cut.to);
      std::size_t const here = layout.row_length(cut.from);
      auto const slots = [&](std::size_t which) {
        return std::max(1 + layout.spare_[which], layout.least_[which]);
      };
      layout.y_[cut.from] = Messages(from.forward, here, to.forward, there,
                                     slots(2 * first_of(layout, cut.from) + 1));
      if (layout.training_)
        layout.dx_[cut.to] =
            Messages(to.gradient, there, from.gradient, here, slots(2 * first_of(layout, cut.to)));
    }
  }

  static std::uint32_t signal(Layout const& layout, std::size_t cut, EdgeSignal which) {
    return signal_of(layout.cells_.size() + cut, which);
  }

  /// Before F: rows of the input. Before B or I: rows of the gradient.
  [[gnu::cold]] static void emit_before(Layout& layout, RankProgram& rank, Instruction& in) {
    std::size_t const c = in.cell;
    std::size_t const u = in.microbatch;
    Cell const& cell = layout.cells_[c];
    bool const forward = in.op == Op::forward;
    Instruction gather = in;
    gather.waits = gather.gives = 0;
    List<std::uint16_t> gives;
    if (forward && cell.gathers_input) {
      gather.op = Op::gather_input;
      for (std::size_t k = 0; k < layout.cuts_.size(); ++k) {
        Cut const cut = layout.cuts_[k];
        if (cut.to != c) continue;
        gather.y = layout.y_[cut.from].slot[u];
        layout.await_message(rank, gather, signal(layout, k, EdgeSignal::forward_full),
                             layout.y_[cut.from], u, cut.from, layout.uses_[cut.from].forward[u]);
        gives.push_back(static_cast<std::uint16_t>(signal(layout, k, EdgeSignal::forward_free)));
      }
      push(rank, gather, gives);
    }
    if (!forward && cell.gathers_gradient) {
      gather.op = Op::gather_gradient;
      for (std::size_t k = 0; k < layout.cuts_.size(); ++k) {
        Cut const cut = layout.cuts_[k];
        if (cut.from != c) continue;
        gather.dx = layout.dx_[cut.to].slot[u];
        layout.await_message(rank, gather, signal(layout, k, EdgeSignal::backward_full),
                             layout.dx_[cut.to], u, cut.to, layout.uses_[cut.to].gradient[u]);
        gives.push_back(static_cast<std::uint16_t>(signal(layout, k, EdgeSignal::backward_free)));
      }
      push(rank, gather, gives);
    }
    if (layout.last(c) && part(layout, c).replicas > 1 && forward != layout.training_) {
      gather.op = Op::gather_target;
      gather.waits = 0;
      push(rank, gather, {});
    }
    constexpr std::uint32_t gathered = 0;  // room is made before the taker's action
    for (std::size_t k = 0; k < layout.cuts_.size(); ++k) {
      Cut const cut = layout.cuts_[k];
      if (forward && cut.from == c) {
        in.y = layout.y_[c].slot[u];
        layout.await_room(rank, in, signal(layout, k, EdgeSignal::forward_free), layout.y_[c], u,
                          cut.to, gathered);
      }
      if (!forward && cut.to == c)
        layout.await_room(rank, in, signal(layout, k, EdgeSignal::backward_free), layout.dx_[c], u,
                          cut.from, gathered);
    }
  }

  [[gnu::cold]] static void emit(Layout& layout, RankProgram& rank, Instruction& in) {
    std::size_t const c = in.cell;
    bool const forward = in.op == Op::forward;
    bool const gradient = gives_input_gradient(in.op);
    List<std::uint16_t> gives;
    if (layout.training_ && layout.cells_[c].gathers_input && layout.cells_[c].stage != 0)
      in.dx = layout.dx_[c].slot[in.microbatch];
    for (std::size_t g = 0; g < in.gives; ++g) gives.push_back(in.give[g]);
    for (std::size_t k = 0; k < layout.cuts_.size(); ++k) {
      Cut const cut = layout.cuts_[k];
      if (forward && cut.from == c)
        gives.push_back(static_cast<std::uint16_t>(signal(layout, k, EdgeSignal::forward_full)));
      if (gradient && cut.to == c)
        gives.push_back(static_cast<std::uint16_t>(signal(layout, k, EdgeSignal::backward_full)));
    }
    push(rank, in, gives);
  }

  [[gnu::cold]] static void name_signals(Layout const& layout, Program& program) {
    for (std::size_t k = 0; k < layout.cuts_.size(); ++k) {
      Cell const& from = layout.cells_[layout.cuts_[k].from];
      Cell const& to = layout.cells_[layout.cuts_[k].to];
      program.signals[signal(layout, k, EdgeSignal::forward_full)] = {from.rank, to.rank,
                                                                      from.stage};
      program.signals[signal(layout, k, EdgeSignal::forward_free)] = {to.rank, from.rank};
      program.signals[signal(layout, k, EdgeSignal::backward_full)] = {to.rank, from.rank,
                                                                       from.stage};
      program.signals[signal(layout, k, EdgeSignal::backward_free)] = {from.rank, to.rank};
    }
  }

  [[gnu::cold]] static bool make_room(Layout& layout, std::uint32_t which) {
    std::size_t const k = which / signals_per_edge - layout.cells_.size();
    if (k >= layout.cuts_.size()) return false;
    Cut const cut = layout.cuts_[k];
    auto const kind = static_cast<EdgeSignal>(which % signals_per_edge);
    if (kind == EdgeSignal::forward_free)
      return ++layout.spare_[2 * first_of(layout, cut.from) + 1] <= layout.units_;
    if (kind == EdgeSignal::backward_free)
      return ++layout.spare_[2 * first_of(layout, cut.to)] <= layout.units_;
    return false;
  }

  // --- machine

  static void require_rows_of(SlotType const& input, int layer) {
    if (input.rows == nullptr)
      raise(Errc::bad_configuration, "the input of layer ", layer, " cannot be cut by rows, which ",
            layer == 0 ? "its replicas need" : "differently replicated stages need",
            "; give its type rows(), resize_rows(like, n) and copy_rows(at, from, first, n), or "
            "both stages the same replicas");
  }

  /// What kernels read later must not be cut now.
  static void require_on_stream(Machine const& machine, SlotType const& type, char const* what,
                                int layer = -1) {
    if (machine.model.memory == nullptr || type.rows_on_stream) return;
    raise(Errc::bad_configuration, what, layer < 0 ? text("") : text(" of layer ", layer),
          " has rows that the host copies, but kernels read it later; where stages enqueue, "
          "replicas need a cuda::Tensor, or a type that copies its rows on cuda::stream() and says "
          "static constexpr bool rows_on_stream = true");
  }

  [[noreturn]] [[gnu::cold]] static void refuse_target(int replicas) {
    raise(Errc::bad_configuration, "the loss's Target cannot be cut by rows, which the ", replicas,
          " replicas of the last stage need; give it rows(), resize_rows(like, n) and "
          "copy_rows(at, from, first, n), or the last position 1 replica");
  }

  [[gnu::cold]] static void require_rows(Machine const& machine, schedule::Table const& table,
                                         bool target_has_rows) {
    if (table.stages != machine.stages()) return;
    auto const& replicas = machine.model.options.replicas;
    require_rows_of(*machine.model.layers[0].ops().input, 0);
    Layout const layout(table, {.replicas = &replicas});
    for (Cell const& cell : layout.cells_) {
      std::size_t const first = machine.model.first_layer[Layout::index(cell.stage)];
      if (cell.gathers_input)
        require_rows_of(*machine.model.layers[first].ops().input, static_cast<int>(first));
      int const count = replicas.counts()[Layout::index(cell.position)];
      if (cell.stage + 1 == table.stages && count > 1 && !target_has_rows) refuse_target(count);
    }
  }

  [[gnu::cold]] static void load(Machine& machine) {
    Program const& program = *machine.run.program;
    auto const& parts = machine.model.options.replicas.parts();
    ReplicaRun& run = ReplicaSums::run_of(machine);
    ReplicaSums::load(machine);
    if (run.ranks.size() != parts.size()) run.ranks = FixedArray<ReplicaRank>(parts.size());
    run.inputs.clear();
    run.gradients.clear();
    for (std::size_t c = 0; c < program.cells.size(); ++c) {
      Cell const& cell = program.cells[c];
      StageRun const& stage = machine.run.cells[c];
      if (cell.gathers_input) {
        require_rows_of(*stage.front->ops->input, stage.front->number);
        require_on_stream(machine, *stage.front->ops->input, "the input", stage.front->number);
      }
      auto const rank = static_cast<std::size_t>(cell.rank);
      if (cell.stage + 1 == program.stages) {
        run.ranks[rank].cuts_target = parts[rank].replicas > 1;
        run.ranks[rank].last_cell = c;
      }
      for (Cut const& cut : program.cuts) {
        if (cut.to == c)
          run.inputs.push_back({c, static_cast<std::size_t>(program.cells[cut.from].rank),
                                machine.run.cells[cut.from].back->y});
        if (cut.from == c)
          run.gradients.push_back({c, static_cast<std::size_t>(program.cells[cut.to].rank),
                                   machine.run.cells[cut.to].dx});
      }
    }
    for (std::size_t r = 0; r < parts.size(); ++r) {
      run.ranks[r].rows.resize(static_cast<std::size_t>(program.microbatches));
      run.ranks[r].first_rows.resize(run.ranks[r].rows.size());
      machine.run.ranks[r].share =
          static_cast<double>(parts[r].own) / static_cast<double>(parts[r].total);
    }
  }

  /// floor(count * share / total), with no product that could overflow.
  static std::size_t border(std::size_t count, std::uint64_t share, std::uint64_t total) {
    return count / total * share + count % total * share / total;
  }

  [[gnu::cold]] static void begin_step(Machine& machine) {
    ReplicaRun& run = *machine.run.replica_run;
    ReplicaSums::begin_step(machine);
    auto const& parts = machine.model.options.replicas.parts();
    StepArguments const& asked = machine.run.arguments;
    SlotType const& input = *machine.model.layers[0].ops().input;
    auto const microbatches = static_cast<std::size_t>(machine.run.program->microbatches);
    for (std::size_t m = 0; m < microbatches; ++m) {
      std::size_t const count = input.rows(asked.inputs[m]);
      for (std::size_t r = 0; r < parts.size(); ++r) {
        Part const& part = parts[r];
        RowRange const rows{border(count, part.before, part.total),
                            border(count, part.before + part.own, part.total)};
        if (rows.count() == 0)
          raise(Errc::bad_configuration, "microbatch ", m, " has ", counted(count, "row"),
                ", of which replica ", part.replica, " of the ", part.replicas, " of position ",
                part.position, " would get none; give each microbatch at least ",
                (part.total + part.own - 1) / part.own, " rows, or the position fewer replicas");
        run.ranks[r].rows[m] = rows;
        run.ranks[r].first_rows[m] = rows.first;
      }
    }
    for (std::size_t r = 0; r < parts.size(); ++r) {
      machine.run.ranks[r].context.share_rows(run.ranks[r].first_rows.data());
      if (!run.ranks[r].cuts_target) continue;
      ReplicaRank& own = run.ranks[r];
      own.arguments = asked;
      if (asked.losses != nullptr)
        own.arguments.losses =
            asked.losses + static_cast<std::size_t>(parts[r].replica) * microbatches;
      if (asked.targets.first != nullptr) {
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
        grow(own.outputs, type, microbatches);
        own.arguments.outputs = places(own.outputs, type);
      }
      machine.run.ranks[r].arguments = &own.arguments;
    }
  }

  [[gnu::cold]] static void end_step(Machine& machine) {
    ReplicaSums::end_step(machine);
    if (machine.model.memory == nullptr) join_outputs(machine);
  }

  /// Puts predictions together.
  [[gnu::cold]] static void join_outputs(Machine& machine) {
    if (machine.run.arguments.outputs.first == nullptr) return;
    ReplicaRun& run = *machine.run.replica_run;
    Program const& program = *machine.run.program;
    SlotType const& type = *machine.model.layers[machine.model.layers.size() - 1].ops().output;
    for (std::size_t m = 0; m < static_cast<std::size_t>(program.microbatches); ++m) {
      std::size_t total = 0;
      std::size_t at = 0;
      for (bool const measure : {true, false}) {
        for (std::size_t r = 0; r < run.ranks.size(); ++r) {
          ReplicaRank const& own = run.ranks[r];
          if (!own.cuts_target || !runs(machine, r, m)) continue;
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

  /// Of targets and outputs at hand.
  [[gnu::cold]] static std::uint64_t bytes(ReplicaRun const& run) {
    std::uint64_t sum = 0;
    for (ReplicaRank const& own : run.ranks) sum += own.target.bytes() + own.outputs.bytes();
    return sum;
  }

  /// Whether a rank's cell of the last stage takes a microbatch.
  static bool runs(Machine const& machine, std::size_t rank, std::size_t m) {
    auto const cell = machine.run.replica_run->ranks[rank].last_cell;
    for (Instruction const& in : machine.run.program->ranks[rank].code)
      if (in.op == Op::forward && in.cell == cell && in.microbatch == m) return true;
    return false;
  }

  static void execute(Machine& machine, RankState& rank, Instruction const& in, Clock clock) {
    if (in.op == Op::pass) return;
    if (has_group(in.op)) return ReplicaSums::execute(machine, rank, in, clock);
    ReplicaRun& run = *machine.run.replica_run;
    std::size_t const m = in.microbatch;
    ReplicaRank const& own = run.ranks[static_cast<std::size_t>(rank.number)];
    RowRange const rows = own.rows[m];
    StageRun const& stage = machine.run.cells[in.cell];
    if (in.op == Op::gather_target) {
      if (machine.run.arguments.targets.first == nullptr) return;
      SlotType const& input = *machine.model.layers[0].ops().input;
      return take(*machine.run.arguments.loss_ops.target, own.target[0],
                  machine.run.arguments.targets[m], rows,
                  input.rows(machine.run.arguments.inputs[m]));
    }
    bool const forward = in.op == Op::gather_input;
    SlotType const& type = forward ? *stage.front->ops->input : *stage.back->ops->output;
    void* const to = forward ? stage.x[in.x] : stage.back->dy[in.dy];
    if (forward && machine.run.program->cells[in.cell].stage == 0)
      return take(type, to, machine.run.arguments.inputs[m], rows,
                  type.rows(machine.run.arguments.inputs[m]));
    std::size_t multiple = 0;  // rows of the value for each of the microbatch
    for (RowSource const& source : forward ? run.inputs : run.gradients) {
      if (source.cell != in.cell) continue;
      RowRange theirs = run.ranks[source.rank].rows[m];
      RowRange const both = theirs.common(rows);
      if (both.count() == 0) continue;
      if (source.cut) theirs = both;
      void const* const from = source.from[forward ? in.y : in.dx];
      std::size_t const times = multiple_of(type.rows(from), theirs.count());
      if (multiple == 0) type.resize_rows(to, from, rows.count() * times);
      if (multiple != 0 && multiple != times) refuse_rows(type.rows(from), theirs.count());
      multiple = times;
      type.copy_rows(to, (both.first - rows.first) * times, from,
                     (both.first - theirs.first) * times, both.count() * times);
    }
  }

  /// A replica's rows of what the caller gave.
  static void take(SlotType const& type, void* to, void const* from, RowRange rows,
                   std::size_t count) {
    std::size_t const times = multiple_of(type.rows(from), count);
    type.resize_rows(to, from, rows.count() * times);
    type.copy_rows(to, 0, from, rows.first * times, rows.count() * times);
  }

  static std::size_t multiple_of(std::size_t rows, std::size_t inputs) {
    if (rows == 0 || rows % inputs != 0) refuse_rows(rows, inputs);
    return rows / inputs;
  }

  [[noreturn]] [[gnu::cold]] static void refuse_rows(std::size_t rows, std::size_t inputs) {
    raise(Errc::mismatch, "a value of ", counted(rows, "row"), " belongs to ",
          counted(inputs, "row"),
          " of the model's input; with replicas, every value that is cut must have as many "
          "rows as the input, or the same multiple of it");
  }

  static constexpr std::uint64_t most_total = 0xffffffff;
};

inline constexpr ReplicaOps replica_ops{&Replication::link,
                                        &Replication::assign_slots,
                                        &Replication::emit_before,
                                        &Replication::emit,
                                        &Replication::name_signals,
                                        &Replication::make_room,
                                        &group_gradients,
                                        &Replication::load,
                                        &Replication::begin_step,
                                        &Replication::end_step,
                                        &Replication::join_outputs,
                                        &Replication::execute,
                                        &ReplicaSums::note,
                                        &ReplicaSums::measures,
                                        &ReplicaSums::current_groups,
                                        &ReplicaSums::extent,
                                        [](ReplicaRun* run) noexcept { delete run; },
                                        &Replication::bytes,
                                        &Replication::require_rows,
                                        &Replication::require};

template <> struct ReplicaTable<WithReplicas> {
  static constexpr ReplicaOps const* ops = &replica_ops;
};

}  // namespace detail
}  // namespace stagger
