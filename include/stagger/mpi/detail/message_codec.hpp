// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The bytes that go with a signal to a rank in another process.
///
/// A signal that says "the value is there" takes the value along, into the same slot of the receiver's
/// machine; the sender has waited for a free slot, so no one reads it. Messages between two processes
/// must keep their order.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>

#include <stagger/core/error.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/portable.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/engine/replica_ops.hpp>
#include <stagger/engine/row_splitter.hpp>
#include <stagger/mpi/detail/held_parameters.hpp>
#include <stagger/mpi/detail/port_types.hpp>

namespace stagger::mpi::detail {

using stagger::detail::Places;
using stagger::detail::RowRange;
using stagger::detail::RowSplitter;
using stagger::detail::StageRun;
using stagger::detail::StepArguments;

/// A machine's side of the messages between processes.
struct MessageCodec : HeldParameters {
  MessageCodec(Machine& whose, PortType const* types, std::size_t count)
      : HeldParameters{whose}, ports_(types), port_count_(count) {}

  [[nodiscard]] std::size_t edge_signals() const noexcept {
    return (program().cells.size() + program().row_edges.size()) * signals_per_edge;
  }
  /// Whether a signal says that its sender has finished, and will not fail any more.
  [[nodiscard]] bool votes(std::uint32_t signal) const noexcept {
    auto const ranks = static_cast<unsigned>(program().computing);
    std::size_t const first = edge_signals() + ranks;
    return commits() && signal >= first && signal < first + ranks;
  }
  /// Whether it goes with gradients of a group, or with sums of them: each time others.
  [[nodiscard]] bool carries_group(std::uint32_t signal) const noexcept {
    SignalEnds const& ends = program().signals[signal];
    return ends.gradients >= 0 || ends.sums >= 0;
  }

  /// What the sender of a signal sends with it, right after `in`.
  /// @param to  [ranks] whether the receiver's process runs the rank
  void write(ByteWriter& out, std::uint32_t signal, Instruction const& in, bool const* to) const {
    Value const value = value_of(signal);
    if (value.type != nullptr) {
      std::uint16_t const slot = value.forward ? in.y : in.dx;
      out.add(slot);
      if (!value.by_rows) return port(*value.type).write(out, value.places[slot]);
      RowRange const rows = rows_of(program().signals[signal].sender, in.microbatch);
      RowRange const taken = taken_of(value, rows, in.microbatch, to);
      void const* const part = row_splitter_.split(*value.type, value.places[slot], rows, taken);
      out.add(in.microbatch);
      out.add(part != nullptr);
      return port(*value.type).write(out, part != nullptr ? part : value.places[slot]);
    }
    gradients(Writing{out}, signal, in.group, to);
  }

  /// Puts it where it belongs.
  /// @param own  [ranks] whether this process runs the rank
  void read(ByteReader& in, std::uint32_t signal, bool const* own) const {
    Value const value = value_of(signal);
    if (value.type != nullptr) {
      auto const slot = in.take<std::uint16_t>();
      if (!value.by_rows) return port(*value.type).read(in, value.places[slot]);
      auto const microbatch = in.take<std::uint32_t>();
      if (!in.take<bool>()) return port(*value.type).read(in, value.places[slot]);
      RowRange const rows = rows_of(program().signals[signal].sender, microbatch);
      void* const part = row_splitter_.object(*value.type);
      port(*value.type).read(in, part);
      return row_splitter_.put_back(*value.type, value.places[slot], rows,
                                    taken_of(value, rows, microbatch, own), part);
    }
    gradients(Reading{in}, signal, 0, own);
  }

  /// What a rank of the last stage leaves for the caller of the step: losses, outputs.
  template <class Wire> void results(Wire wire, std::integral auto rank) const {
    StepArguments const& arguments = *machine.run.ranks[rank].arguments;
    for (Instruction const& in : program().ranks[rank].code) {
      if (in.op != Op::forward || in.stage + 1 != program().stages) continue;
      auto const m = in.microbatch;
      if (arguments.losses != nullptr) wire.number(arguments.losses[m]);
      if (arguments.outputs.first != nullptr)
        wire.value(port(*machine.run.cells[in.cell].back->ops->output, "output"),
                   arguments.outputs[m]);
    }
  }
  template <class Wire> void spans(Wire wire, std::integral auto rank) const {
    auto& own = machine.run.ranks[rank];
    std::size_t count = own.spans.size();
    wire.number(own.peak_in_flight);
    wire.number(count);
    own.spans.resize(count);
    wire.bytes(own.spans.data(), count * sizeof(schedule::Span));
  }

  /// How many messages of a signal can be on their way to one process at a time, of `given` in a
  /// step: with a value as many as there are slots for it, and one whose arrival is not known yet.
  [[nodiscard]] std::size_t under_way(std::uint32_t signal, std::size_t given) const {
    if (value_of(signal).type == nullptr) return given;
    bool const forward = is_forward(signal);
    std::size_t const edge = signal / signals_per_edge;
    auto const& cells = program().cells;
    std::uint32_t slots = 0;
    if (edge < cells.size()) {
      slots = forward ? cells[cells[edge].after].x_slots : cells[edge].dy_slots;
    } else {
      RowEdge const ends = program().row_edges[edge - cells.size()];
      slots = forward ? cells[ends.from].y_slots : cells[ends.to].dx_slots;
    }
    return std::min<std::size_t>(given, slots + 1U);
  }

  /// Makes sure, before the first step, that what crosses can travel.
  /// @param process  [ranks]
  void require_portable(int const* process) const {
    for (std::uint32_t s = 0; s < edge_signals(); ++s) {
      auto const& ends = program().signals[s];
      Value const value = value_of(s);
      if (value.type != nullptr && process[ends.sender] != process[ends.receiver])
        (void)port(*value.type, "value", ends.edge);
    }
  }

 private:
  /// Of a signal that announces a value.
  [[nodiscard]] static bool is_forward(std::uint32_t signal) noexcept {
    return static_cast<EdgeSignal>(signal % signals_per_edge) == EdgeSignal::forward_full;
  }

  /// The slots that a signal announces a value in; none: no type.
  struct Value {
    SlotType const* type = nullptr;
    Places places;
    bool forward = true;
    bool by_rows = false;    // those who take it take rows of it
    std::size_t sender = 0;  // then its cell
  };

  [[nodiscard]] Value value_of(std::uint32_t signal) const {
    if (signal >= edge_signals() || program().signals[signal].edge < 0) return {};
    std::size_t edge = signal / signals_per_edge;
    bool const forward = is_forward(signal);
    auto const& cells = machine.run.cells;
    if (edge < cells.size()) {  // a slot of the receiver
      if (program().cells[edge].after == Cell::none) return {};
      StageRun const& here = cells[edge];
      StageRun const& there = cells[program().cells[edge].after];
      if (forward) return {there.front->ops->input, there.x, true};
      return {here.back->ops->output, here.back->dy, false};
    }
    RowEdge const ends = program().row_edges[edge - cells.size()];  // a slot of the sender
    if (forward)
      return {cells[ends.from].back->ops->output, cells[ends.from].back->y, true, true, ends.from};
    return {cells[ends.to].front->ops->input, cells[ends.to].dx, false, true, ends.to};
  }

  [[nodiscard]] RowRange rows_of(int rank, std::size_t microbatch) const {
    return machine.run.replica_run->ranks[rank].rows[microbatch];
  }
  /// From the first row to the last that ranks of the receiver's process take of a cell's. All cells
  /// of that process share the slot, so each gets them all.
  [[nodiscard]] RowRange taken_of(Value const& value, RowRange rows, std::size_t microbatch,
                                  bool const* to) const {
    RowRange taken{rows.last, rows.first};
    for (RowEdge const& edge : program().row_edges) {
      if ((value.forward ? edge.from : edge.to) != value.sender) continue;
      int const rank = program().cells[value.forward ? edge.to : edge.from].rank;
      RowRange const theirs = rows_of(rank, microbatch);
      if (!to[rank] || std::max(rows.first, theirs.first) >= std::min(rows.last, theirs.last))
        continue;
      taken.first = std::min(taken.first, std::max(rows.first, theirs.first));
      taken.last = std::max(taken.last, std::min(rows.last, theirs.last));
    }
    return taken.first < taken.last ? taken : RowRange{rows.first, rows.first};
  }

  [[nodiscard]] PortType const& port(SlotType const& type, char const* what = "value",
                                     int edge = -1) const {
    for (std::size_t i = 0; i < port_count_; ++i)
      if (ports_[i].type == &type && ports_[i].write != nullptr) return ports_[i];
    if (edge >= 0)
      raise(Errc::bad_configuration, "the value between the stages ", edge, " and ", edge + 1,
            " cannot go to another process; give its type a member fields() that returns a "
            "std::tie of tensors, vectors and numbers, or specialise stagger::Portable for it");
    raise(Errc::bad_configuration, "the model's ", what,
          " cannot go to another process; give its type a member fields() that returns a std::tie "
          "of tensors, vectors and numbers, or specialise stagger::Portable for it");
  }

  /// What goes with a signal that announces gradients, or the end of a rank.
  /// @param group  of what is written
  template <class Wire>
  void gradients(Wire wire, std::uint32_t signal, std::uint16_t group, bool const* to) const {
    if (!commits() || signal < edge_signals()) return;
    if (carries_group(signal)) {
      wire.number(group);
      return each_part(signal, group, to,
                       [&](std::byte* at, std::size_t bytes) { wire.bytes(at, bytes); });
    }
    each_block(signal, to, [&](LayerParameters& parameters, ParameterView const* views) {
      for (std::size_t i = 0; i < parameters.count(); ++i)
        wire.bytes(views[i].gradient, parameters.value_bytes(i));
    });
    bool const vote = votes(signal);
    int const rank = program().signals[signal].sender;
    if ((vote || machine.model.shards) && machine.model.options.clip_norm)
      squares(wire, rank, vote);
    if (vote) results(wire, rank);
  }

  /// The blocks of gradients that go with the end of a rank's backward: what it hands in, to the
  /// stage's first owner; and later the sums, to the other owners.
  template <class Visit> void each_block(std::uint32_t signal, bool const* to, Visit visit) const {
    if (!program().groups.empty()) return;  // they have gone already
    int const sender = program().signals[signal].sender;
    bool const sums = votes(signal);
    each_stage(program(), [&](int stage, IndexRange cells) {
      auto const taken = [&](std::size_t c) { return to[program().cells[c].rank]; };
      for (std::size_t const c : cells) {
        bool const first = c == cells.first;
        if (program().cells[c].rank != sender || first != sums) continue;
        bool wanted = !sums && taken(cells.first);
        for (std::size_t d = c + 1; sums && d < cells.last; ++d) wanted = wanted || taken(d);
        IndexRange const layers = layers_of(stage);
        for (std::size_t i = 0; wanted && i < layers.size(); ++i)
          visit(machine.model.parameters[layers.first + i],
                machine.gradients_of(stage, c - cells.first, i));
      }
    });
  }

  /// What goes with the k-th time that a signal of a group is given. A cell's gradients: to each
  /// process the parts that are added up there. Its sums: the part that it has added up.
  template <class Visit>
  void each_part(std::uint32_t signal, std::size_t group, bool const* to, Visit visit) const {
    SignalEnds const& ends = program().signals[signal];
    bool const sums = ends.sums >= 0;
    if (sums && machine.model.shards) return;  // the others take new values instead
    auto const cell = static_cast<std::size_t>(sums ? ends.sums : ends.gradients);
    int const stage = program().cells[cell].stage;
    IndexRange const cells = cells_of(program(), stage);
    IndexRange const layers = machine.model.layers_of(program().groups[group]);
    for (std::size_t const holder : cells) {
      if (sums ? holder != cell : !to[program().cells[holder].rank]) continue;
      for (std::size_t const l : layers) {
        LayerParameters const& parameters = machine.model.parameters[l];
        if (parameters.count() == 0) continue;
        ParameterView const* const views =
            machine.gradients_of(stage, sums ? 0 : cell - cells.first, l - layers_of(stage).first);
        ByteRange const range = parameters.part(holder - cells.first, cells.size());
        visit(static_cast<std::byte*>(views[0].gradient) + range.first, range.last - range.first);
      }
    }
  }

  /// Sums of squares of what a rank has added up.
  void squares(Writing wire, int rank, bool) const {
    for (auto const& one : machine.run.end_of_step[rank].squares)
      wire.number(machine.model.parameters[one.layer].square_sums()[one.parameter]);
  }
  /// @param whole  only of parameters whose squares are all there
  void squares(Reading wire, int rank, bool whole) const {
    for (auto const& one : machine.run.end_of_step[rank].squares) {
      LayerParameters& parameters = machine.model.parameters[one.layer];
      double sum = 0;
      wire.number(sum);
      if (!whole || parameters.ends_in(one.parameter, one.range))
        parameters.received_square_sums()[one.parameter] = sum;
    }
  }

  PortType const* ports_;  // [port_count_]
  std::size_t port_count_;
  mutable RowSplitter row_splitter_{};
};

}  // namespace stagger::mpi::detail
