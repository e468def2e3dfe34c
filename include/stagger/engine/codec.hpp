// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The bytes that go with a signal to a rank in another process.
///
/// Every process has a machine with all ranks and runs its own. A signal that says "the value is
/// there" takes the value along, into the same slot of the taker's machine; the giver has waited
/// for a free slot, so no one reads it. Messages between two processes must keep their order.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <stagger/core/list.hpp>
#include <stagger/core/portable.hpp>
#include <stagger/engine/detail/cut_rows.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/model/sequential.hpp>

namespace stagger::detail {

/// How the values of one type travel; nulls where they cannot.
struct PortType {
  SlotType const* type = nullptr;
  void (*write)(ByteWriter&, void const* value) = nullptr;
  void (*read)(ByteReader&, void* value) = nullptr;
};

template <class T> constexpr PortType make_port_type() {
  PortType port;
  port.type = &slot_type<T>;
  if constexpr (Portable<T>::exists) {
    port.write = [](ByteWriter& out, void const* value) {
      Portable<T>::write(out, *static_cast<T const*>(value));
    };
    port.read = [](ByteReader& in, void* value) { Portable<T>::read(in, *static_cast<T*>(value)); };
  }
  return port;
}

/// Of the inputs of all layers, and their outputs.
template <class Types> struct PortTypes;
template <template <class...> class List, class... L> struct PortTypes<List<L...>> {
  static constexpr std::size_t count = 2 * sizeof...(L);
  static constexpr PortType table[count] = {
      make_port_type<typename LayerTraits<L>::Layer::Input>()...,
      make_port_type<typename LayerTraits<L>::Layer::Output>()...};
};

/// A machine's side of a transport.
struct MessageCodec {
  Machine& machine;
  PortType const* ports = nullptr;
  std::size_t port_count = 0;
  mutable CutRows cut_rows{};

  [[nodiscard]] Program const& program() const noexcept { return *machine.run.program; }
  [[nodiscard]] std::size_t edge_signals() const noexcept {
    return (program().cells.size() + program().cuts.size()) * kinds;
  }
  /// Whether the step ends with an update that all ranks make together.
  [[nodiscard]] bool commits() const noexcept { return program().training && program().flushes; }
  /// Whether a signal says that its giver has finished, and will not fail any more.
  [[nodiscard]] bool votes(std::uint32_t signal) const noexcept {
    auto const ranks = static_cast<std::size_t>(program().computing);
    std::size_t const first = edge_signals() + ranks;
    return commits() && signal >= first && signal < first + ranks;
  }
  /// Whether it goes with gradients of a group, or with sums of them: each time others.
  [[nodiscard]] bool carries_group(std::uint32_t signal) const noexcept {
    SignalEnds const& ends = program().signals[signal];
    return ends.gradients >= 0 || ends.sums >= 0;
  }

  /// What the giver of a signal sends with it, right after `in`.
  /// @param to  [ranks] whether the taker's process runs the rank
  void write(ByteWriter& out, std::uint32_t signal, Instruction const& in, bool const* to) const {
    Value const value = value_of(signal);
    if (value.type != nullptr) {
      std::uint16_t const slot = value.forward ? in.y : in.dx;
      out.add(slot);
      if (!value.cut) return port(*value.type).write(out, value.places[slot]);
      RowRange const rows = rows_of(program().signals[signal].giver, in.microbatch);
      RowRange const taken = taken_of(value, rows, in.microbatch, to);
      void const* const part = cut_rows.cut(*value.type, value.places[slot], rows, taken);
      out.add(in.microbatch);
      out.add(part != nullptr);
      return port(*value.type).write(out, part != nullptr ? part : value.places[slot]);
    }
    if (!commits() || signal < edge_signals()) return;
    if (carries_group(signal)) {
      out.add(in.group);
      return each_part(signal, in.group, to,
                       [&](std::byte const* at, std::size_t bytes) { out.add(at, bytes); });
    }
    bool const vote = votes(signal);
    each_block(signal, to, [&](LayerParameters& parameters, LayerParameters::Share* share) {
      ParameterView const* views = share == nullptr ? parameters.views() : share->views();
      for (std::size_t i = 0; i < parameters.count(); ++i)
        out.add(views[i].gradient, parameters.value_bytes(i));
    });
    auto const rank = static_cast<std::size_t>(machine.run.program->signals[signal].giver);
    if (vote || machine.model.shards) write_sums(out, rank);
    if (vote) write_results(out, rank);
  }

  /// Puts it where it belongs.
  /// @param own  [ranks] whether this process runs the rank
  void read(ByteReader& in, std::uint32_t signal, bool const* own) const {
    Value const value = value_of(signal);
    if (value.type != nullptr) {
      auto const slot = in.take<std::uint16_t>();
      if (!value.cut) return port(*value.type).read(in, value.places[slot]);
      auto const microbatch = in.take<std::uint32_t>();
      if (!in.take<bool>()) return port(*value.type).read(in, value.places[slot]);
      RowRange const rows = rows_of(program().signals[signal].giver, microbatch);
      void* const part = cut_rows.object(*value.type);
      port(*value.type).read(in, part);
      return cut_rows.put(*value.type, value.places[slot], rows,
                          taken_of(value, rows, microbatch, own), part);
    }
    if (!commits() || signal < edge_signals()) return;
    if (carries_group(signal)) {
      auto const group = in.take<decltype(Instruction::next_version)>();
      return each_part(signal, group, own,
                       [&](std::byte* at, std::size_t bytes) { in.take(at, bytes); });
    }
    bool const vote = votes(signal);
    each_block(signal, own, [&](LayerParameters& parameters, LayerParameters::Share* share) {
      ParameterView const* views = share == nullptr ? parameters.views() : share->views();
      for (std::size_t i = 0; i < parameters.count(); ++i)
        in.take(views[i].gradient, parameters.value_bytes(i));
    });
    auto const rank = static_cast<std::size_t>(machine.run.program->signals[signal].giver);
    if (vote || machine.model.shards) read_sums(in, rank, vote);
    if (vote) read_results(in, rank);
  }

  /// What a rank of the last stage leaves for the caller of the step: losses, outputs.
  void write_results(ByteWriter& out, std::size_t rank) const {
    StepArguments const& arguments = *machine.run.ranks[rank].arguments;
    each_result(rank, [&](std::size_t m, SlotType const& type) {
      if (arguments.losses != nullptr) out.add(arguments.losses[m]);
      if (arguments.outputs.first != nullptr) port(type, "output").write(out, arguments.outputs[m]);
    });
  }
  void read_results(ByteReader& in, std::size_t rank) const {
    StepArguments const& arguments = *machine.run.ranks[rank].arguments;
    each_result(rank, [&](std::size_t m, SlotType const& type) {
      if (arguments.losses != nullptr) arguments.losses[m] = in.take<double>();
      if (arguments.outputs.first != nullptr) port(type, "output").read(in, arguments.outputs[m]);
    });
  }

  void write_spans(ByteWriter& out, std::size_t rank) const {
    auto const& spans = machine.run.ranks[rank].spans;
    out.add(machine.run.ranks[rank].peak_in_flight);
    out.add(spans.size());
    out.add(spans.data(), spans.size() * sizeof(schedule::Span));
  }
  void read_spans(ByteReader& in, std::size_t rank) const {
    auto& spans = machine.run.ranks[rank].spans;
    machine.run.ranks[rank].peak_in_flight = in.take<int>();
    spans.resize(in.take<std::size_t>());
    in.take(spans.data(), spans.size() * sizeof(schedule::Span));
  }

  /// How many messages of a signal can be on their way to one process at a time, of `given` in a
  /// step: with a value as many as there are slots for it, and one whose arrival is not known yet.
  [[nodiscard]] std::size_t under_way(std::uint32_t signal, std::size_t given) const {
    if (value_of(signal).type == nullptr) return given;
    bool const forward = signal % kinds == 0;
    std::size_t const edge = signal / kinds;
    auto const& cells = program().cells;
    std::uint32_t slots = 0;
    if (edge < cells.size()) {
      auto const after = static_cast<std::size_t>(cells[edge].after);
      slots = forward ? cells[after].x_slots : cells[edge].dy_slots;
    } else {
      Cut const cut = program().cuts[edge - cells.size()];
      slots = forward ? cells[cut.from].y_slots : cells[cut.to].dx_slots;
    }
    return std::min<std::size_t>(given, slots + 1U);
  }

  /// Makes sure, before the first step, that what crosses can travel.
  /// @param process  [ranks]
  void require_portable(int const* process) const {
    for (std::uint32_t s = 0; s < edge_signals(); ++s) {
      auto const& ends = program().signals[s];
      Value const value = value_of(s);
      if (value.type != nullptr && process[ends.giver] != process[ends.taker])
        (void)port(*value.type, "value", ends.edge);
    }
  }

  /// A process updates all parameters of the stages that it runs: of each, its lowest rank that
  /// runs it. Its lowest rank of all tells the norm.
  void share_updates(bool const* own) const {
    machine.run.reporter =
        static_cast<int>(std::find(own, own + program().ranks.size(), true) - own);
    auto const& cells = program().cells;
    for (auto& end_of_step : machine.run.end_of_step) end_of_step.layers.clear();
    if (machine.model.shards) return shard_updates(own);
    for (std::size_t c = 0, first = 0; c < cells.size(); ++c) {
      if (cells[c].stage != cells[first].stage) first = c;
      if (!own[cells[c].rank]) continue;
      bool done = false;
      for (std::size_t d = first; d < c; ++d) done = done || own[cells[d].rank];
      if (done) continue;
      auto const stage = static_cast<std::size_t>(cells[c].stage);
      for (std::size_t l = machine.model.first_layer[stage];
           l < machine.model.first_layer[stage + 1]; ++l)
        machine.run.end_of_step[static_cast<std::size_t>(cells[c].rank)].layers.push_back({l, {}});
    }
  }

  /// Bytes of values that the ranks of one process update and those of another have.
  [[nodiscard]] std::size_t renewed_bytes(bool const* own, bool const* to) const {
    std::size_t bytes = 0;
    if (commits() && machine.model.shards)
      each_renewed(own, to,
                   [&](LayerParameters&, ByteRange range) { bytes += range.last - range.first; });
    return bytes;
  }
  void write_values(ByteWriter& out, bool const* own, bool const* to) const {
    each_renewed(own, to, [&](LayerParameters& parameters, ByteRange range) {
      auto const bytes = parameters.value_bytes_of(range);
      out.add(bytes.data(), bytes.size());
    });
  }
  void read_values(ByteReader& in, bool const* from, bool const* own) const {
    each_renewed(from, own, [&](LayerParameters& parameters, ByteRange range) {
      auto const bytes = parameters.value_bytes_of(range);
      in.take(bytes.data(), bytes.size());
    });
  }
  /// What a step leaves in gradients of parts that others update.
  void clear_gradients_of(bool const* own) const noexcept {
    for (Cell const& cell : program().cells) {
      if (!own[cell.rank]) continue;
      auto const stage = static_cast<std::size_t>(cell.stage);
      for (std::size_t l = machine.model.first_layer[stage];
           l < machine.model.first_layer[stage + 1]; ++l)
        machine.model.parameters[l].zero_gradients();
    }
  }
  /// Calls `visit(rank, layer, part)` for what each rank updates.
  template <class Visit> void each_shard(Visit visit) const {
    auto const& cells = program().cells;
    for (std::size_t first = 0, end = 0; first < cells.size(); first = end) {
      auto const stage = static_cast<std::size_t>(cells[first].stage);
      while (end < cells.size() && cells[end].stage == cells[first].stage) ++end;
      for (std::size_t l = machine.model.first_layer[stage];
           l < machine.model.first_layer[stage + 1]; ++l)
        for (std::size_t c = first; c < end; ++c)
          visit(cells[c].rank, l, machine.model.parameters[l].part(c - first, end - first));
    }
  }

  /// Makes memory for the stages that this process runs, and gives back that of the others.
  void hold(bool const* own) const {
    auto const& cells = program().cells;
    for (std::size_t s = 0, c = 0; s < machine.run.storage.size(); ++s) {
      bool here = false;
      for (; c < cells.size() && cells[c].stage == static_cast<int>(s); ++c)
        here = here || own[cells[c].rank];
      std::size_t const first = machine.model.first_layer[s];
      for (std::size_t l = first; l < machine.model.first_layer[s + 1]; ++l) {
        LayerParameters& parameters = machine.model.parameters[l];
        if (!here) parameters.release();
        bool const made = here && parameters.hold();
        for (auto* owner = machine.run.storage[s].next.get(); owner; owner = owner->next.get()) {
          auto& share = owner->shares[l - first];
          if (!here)
            share.release();
          else if (made || share.bytes() == 0)
            share.of(parameters);
        }
      }
    }
  }

  /// Gradients of ranks elsewhere come in where nobody takes the last ones away: of a rank that has
  /// none in this program, there must be none.
  void clear_gradients() const noexcept { machine.run.zero_gradients(machine.model); }

  /// The rank that adds up the gradients of a layer, and always has its parameters.
  [[nodiscard]] int owner_of(std::size_t layer) const {
    for (Cell const& cell : program().cells)
      if (layer < machine.model.first_layer[static_cast<std::size_t>(cell.stage) + 1])
        return cell.rank;
    return 0;
  }

  /// For sums by a library: calls `visit(type, gradient of the cell, sum of all, bytes)` for each
  /// parameter of a `reduce`'s group.
  template <class Visit> void each_gradient(Instruction const& in, Visit visit) const {
    auto* storage = &machine.run.storage[in.stage];
    for (unsigned h = 0; h < in.part(); ++h) storage = storage->next.get();
    GroupExtent const group = machine.extent(in);
    for (std::size_t i = group.lowest; i < group.end; ++i) {
      LayerParameters& sum = machine.model.parameters[group.first_layer + i];
      auto const* const own = in.part() == 0 ? sum.views() : storage->shares[i].views();
      for (std::size_t p = 0; p < sum.count(); ++p)
        visit(sum.declaration(p).type, static_cast<std::byte*>(own[p].gradient),
              static_cast<std::byte*>(sum.views()[p].gradient), sum.value_bytes(p));
    }
  }

  [[nodiscard]] std::size_t stage_of(std::size_t layer) const {
    std::size_t stage = 0;
    while (layer >= machine.model.first_layer[stage + 1]) ++stage;
    return stage;
  }
  [[nodiscard]] List<Layer> const& layers() const noexcept { return machine.model.layers; }
  [[nodiscard]] GroupingChoice const& grouping() const noexcept { return machine.grouping(); }
  /// Of the optimizer's numbers as they are now; 0 where they are not known.
  [[nodiscard]] std::uint64_t optimizer_digest() const noexcept {
    return machine.optimizer_digest();
  }

 private:
  static constexpr std::size_t kinds = 4;  // forward full, forward free, backward full and free

  /// The slots that a signal announces a value in; none: no type.
  struct Value {
    SlotType const* type = nullptr;
    Places places;
    bool forward = true;
    bool cut = false;       // those who take it take rows of it
    std::size_t giver = 0;  // then its cell
  };

  [[nodiscard]] Value value_of(std::uint32_t signal) const {
    if (signal >= edge_signals() || program().signals[signal].edge < 0) return {};
    std::size_t edge = signal / kinds;
    bool const forward = signal % kinds == 0;
    auto const& cells = machine.run.cells;
    if (edge < cells.size()) {  // a slot of the taker
      if (program().cells[edge].after == Cell::none) return {};
      StageRun const& here = cells[edge];
      StageRun const& there = cells[static_cast<std::size_t>(program().cells[edge].after)];
      if (forward) return {there.front->ops->input, there.x, true};
      return {here.back->ops->output, here.back->dy, false};
    }
    Cut const cut = program().cuts[edge - cells.size()];  // a slot of the giver
    if (forward)
      return {cells[cut.from].back->ops->output, cells[cut.from].back->y, true, true, cut.from};
    return {cells[cut.to].front->ops->input, cells[cut.to].dx, false, true, cut.to};
  }

  [[nodiscard]] RowRange rows_of(int rank, std::size_t microbatch) const {
    return machine.run.replica_run->ranks[static_cast<std::size_t>(rank)].rows[microbatch];
  }
  /// From the first row to the last that ranks of the taker's process take of a cell's. All cells
  /// of that process share the slot, so each gets them all.
  [[nodiscard]] RowRange taken_of(Value const& value, RowRange rows, std::size_t microbatch,
                                  bool const* to) const {
    RowRange taken{rows.last, rows.first};
    for (Cut const& cut : program().cuts) {
      if ((value.forward ? cut.from : cut.to) != value.giver) continue;
      int const rank = program().cells[value.forward ? cut.to : cut.from].rank;
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
    for (std::size_t i = 0; i < port_count; ++i)
      if (ports[i].type == &type && ports[i].write != nullptr) return ports[i];
    if (edge >= 0)
      raise(Errc::bad_configuration, "the value between the stages ", edge, " and ", edge + 1,
            " cannot go to another process; give its type a member fields() that returns a "
            "std::tie of tensors, vectors and numbers, or specialise stagger::Portable for it");
    raise(Errc::bad_configuration, "the model's ", what,
          " cannot go to another process; give its type a member fields() that returns a std::tie "
          "of tensors, vectors and numbers, or specialise stagger::Portable for it");
  }

  /// The blocks of gradients that go with the end of a rank's backward: what it hands in, to the
  /// stage's first owner; and later the sums, to the other owners.
  template <class Visit> void each_block(std::uint32_t signal, bool const* to, Visit visit) const {
    auto const& cells = program().cells;
    int const giver = program().signals[signal].giver;
    bool const sums = votes(signal);
    if (!program().groups.empty()) return;  // they have gone already
    for (std::size_t c = 0, first = 0; c < cells.size(); ++c) {
      if (cells[c].stage != cells[first].stage) first = c;
      if (cells[c].rank != giver || (c == first) != sums) continue;
      bool wanted = false;
      if (!sums) wanted = to[cells[first].rank];
      for (std::size_t d = c + 1; sums && d < cells.size() && cells[d].stage == cells[c].stage; ++d)
        wanted = wanted || to[cells[d].rank];
      if (!wanted) continue;
      auto const stage = static_cast<std::size_t>(cells[c].stage);
      auto* storage = &machine.run.storage[stage];
      for (std::size_t owner = c - first; owner != 0; --owner) storage = storage->next.get();
      for (std::size_t l = machine.model.first_layer[stage];
           l < machine.model.first_layer[stage + 1]; ++l)
        visit(machine.model.parameters[l],
              sums ? nullptr : &storage->shares[l - machine.model.first_layer[stage]]);
    }
  }

  /// What goes with the k-th time that a signal of a group is given. A cell's gradients: to each
  /// process the parts that are added up there. Its sums: the part that it has added up.
  template <class Visit>
  void each_part(std::uint32_t signal, std::size_t group, bool const* to, Visit visit) const {
    auto const& cells = program().cells;
    SignalEnds const& ends = program().signals[signal];
    bool const sums = ends.sums >= 0;
    auto const cell = static_cast<std::size_t>(sums ? ends.sums : ends.gradients);
    auto const stage = static_cast<std::size_t>(cells[cell].stage);
    std::size_t first = cell;
    while (first > 0 && cells[first - 1].stage == cells[cell].stage) --first;
    std::size_t end = cell + 1;
    while (end < cells.size() && cells[end].stage == cells[cell].stage) ++end;
    auto* storage = &machine.run.storage[stage];
    for (std::size_t holder = first; !sums && holder < cell; ++holder)
      storage = storage->next.get();
    std::size_t const begin = machine.model.first_layer[stage];
    auto const lowest = static_cast<std::size_t>(program().groups[group].lowest);
    std::size_t const stop = std::min(static_cast<std::size_t>(program().groups[group].highest) + 1,
                                      machine.model.first_layer[stage + 1] - begin);
    for (std::size_t holder = first; holder < end; ++holder) {
      if (sums && machine.model.shards) break;  // the others take new values instead
      if (sums ? holder != cell : !to[cells[holder].rank]) continue;
      for (std::size_t i = lowest; i < stop; ++i) {
        LayerParameters& parameters = machine.model.parameters[begin + i];
        if (parameters.count() == 0) continue;
        bool const whole = sums || cell == first;
        ParameterView const* views = whole ? parameters.views() : storage->shares[i].views();
        ByteRange const range = parameters.part(holder - first, end - first);
        visit(static_cast<std::byte*>(views[0].gradient) + range.first, range.last - range.first);
      }
    }
  }

  void write_sums(ByteWriter& out, std::size_t rank) const {
    if (!machine.model.options.clip_norm) return;
    for (auto const& one : machine.run.end_of_step[rank].squares)
      out.add(machine.model.parameters[one.layer].square_sums()[one.parameter]);
  }
  /// @param whole  only of parameters whose squares are all there
  void read_sums(ByteReader& in, std::size_t rank, bool whole) const {
    if (!machine.model.options.clip_norm) return;
    for (auto const& one : machine.run.end_of_step[rank].squares) {
      LayerParameters& parameters = machine.model.parameters[one.layer];
      auto const sum = in.take<double>();
      if (!whole || parameters.ends_in(one.parameter, one.range))
        parameters.received_square_sums()[one.parameter] = sum;
    }
  }

  /// Each rank updates its part, and its process has the optimizer's state of no other.
  [[gnu::cold]] void shard_updates(bool const* own) const {
    List<ByteRange> held(machine.model.parameters.size(), ByteRange{0, 0});
    each_shard([&](int rank, std::size_t layer, ByteRange part) {
      if (!own[rank]) return;
      machine.run.end_of_step[static_cast<std::size_t>(rank)].layers.push_back({layer, part});
      ByteRange& all = held[layer];  // and what lies between its parts
      if (all.last == 0) all = part;
      all = {std::min(all.first, part.first), std::max(all.last, part.last)};
    });
    for (std::size_t l = 0; l < held.size() && program().training; ++l)
      if (!machine.model.parameters[l].hold_states(held[l]))
        raise(Errc::bad_configuration, "the optimizer's state of layer ", l,
              " is shared out to ranks, and a step of ",
              counted(program().microbatches, "microbatch"),
              " shares it out to others; take all steps with as many microbatches, or "
              "leave shard_optimizer out");
  }

  template <class Visit> void each_renewed(bool const* from, bool const* to, Visit visit) const {
    auto const& cells = program().cells;
    auto const runs = [&](int stage) {
      for (Cell const& cell : cells)
        if (cell.stage == stage && to[cell.rank]) return true;
      return false;
    };
    each_shard([&](int rank, std::size_t layer, ByteRange part) {
      if (from[rank] && part.first < part.last && runs(static_cast<int>(stage_of(layer))))
        visit(machine.model.parameters[layer], part);
    });
  }

  /// Microbatches whose last stage a rank runs.
  template <class Visit> void each_result(std::size_t rank, Visit visit) const {
    for (Instruction const& in : program().ranks[rank].code)
      if (in.op == Op::forward && in.stage + 1 == program().stages)
        visit(in.microbatch, *machine.run.cells[in.cell].back->ops->output);
  }
};

}  // namespace stagger::detail
