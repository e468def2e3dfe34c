// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The values that are sent from a stage to the next one in another process.
///
/// The signal that a value is ready is sent together with the value, which goes into the same slot
/// of the receiver's machine. The sender has waited until the slot is free, so nobody reads it.
/// Messages between two processes must stay in order.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include <stagger/core/error.hpp>
#include <stagger/core/portable.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/engine/replica_run.hpp>
#include <stagger/engine/row_splitter.hpp>
#include <stagger/engine/slots.hpp>
#include <stagger/model/sequential.hpp>
#include <stagger/model/split.hpp>
#include <stagger/program/traffic.hpp>

namespace stagger::mpi::detail {

using stagger::detail::LayerTraits;
using stagger::detail::Machine;
using stagger::detail::Places;
using stagger::detail::RowRange;
using stagger::detail::RowSplitter;
using stagger::detail::slot_type;
using stagger::detail::SlotType;
using stagger::detail::StageRun;
using stagger::detail::Within;

/// The functions that send values of one type; null if these cannot be sent.
struct PortType {
  SlotType const* type = nullptr;
  void (*write)(ByteWriter&, void const* value) = nullptr;
  void (*read)(ByteReader&, void* value) = nullptr;
};

template <class T> constexpr PortType make_port_type() {
  static_cast<void>(stagger::detail::require_fields<Portable, T>());
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

/// The types of the inputs and outputs of all layers.
template <class Types> struct PortTypes;
template <template <class...> class List, class... L> struct PortTypes<List<L...>> {
  static constexpr std::size_t count = 3 * sizeof...(L);
  static constexpr PortType table[count] = {
      make_port_type<typename LayerTraits<L>::Layer::Input>()...,
      make_port_type<typename Within<typename LayerTraits<L>::Layer>::type>()...,
      make_port_type<typename LayerTraits<L>::Layer::Output>()...};
};

/// The signals that announce a value, where it lies, and its bytes; what ranks report at their end.
class EdgeValues {
 public:
  EdgeValues(Machine& machine, PortType const* types, std::size_t count)
      : machine_(machine), ports_(types), port_count_(count) {}

  [[nodiscard]] Program const& program() const noexcept { return machine_.program(); }
  /// Signals below this one may announce a value.
  [[nodiscard]] std::size_t signals() const noexcept {
    return (program().cells.size() + program().row_edges.size()) * signals_per_edge;
  }

  /// Writes the value that a signal announces.
  /// @param to  [ranks] whether the receiver's process runs the rank
  /// @return the kind of what is sent; none if the signal announces no value
  std::optional<TrafficKind> write(ByteWriter& out, std::uint32_t signal, Instruction const& in,
                                   bool const* to) const {
    Value const value = value_of(signal);
    if (value.type == nullptr) return std::nullopt;
    if (is_there(value, to)) return TrafficKind::control;
    PortType const& type = port(*value.type);
    std::uint16_t const slot = value.forward ? in.y : in.dx;
    out.add(slot);
    void const* from = value.places[slot];
    if (value.by_rows) {
      RowRange const rows = rows_of(value.sender, in.microbatch);
      std::uint32_t const columns = columns_of(value, from);
      Taken const taken = taken_of(value, rows, in.microbatch, to, columns);
      void const* const part =
          row_splitter_.split(*value.type, from, rows, taken.rows, taken.columns);
      out.add(in.microbatch);
      out.add(part != nullptr ? columns + 1 : 0U);  // of the whole value, if this is a part
      if (part != nullptr) from = part;
    }
    type.write(out, from);
    return kind_of(value);
  }

  /// Puts it into its slot.
  /// @param own  [ranks] whether this process runs the rank
  /// @return whether the signal announces one
  bool read(ByteReader& in, std::uint32_t signal, bool const* own) const {
    Value const value = value_of(signal);
    if (value.type == nullptr || is_there(value, own)) return value.type != nullptr;
    PortType const& type = port(*value.type);
    auto const slot = in.take<std::uint16_t>();
    auto const microbatch = value.by_rows ? in.take<std::uint32_t>() : 0;
    std::uint32_t const columns = value.by_rows ? in.take<std::uint32_t>() : 0;
    if (columns == 0) {
      type.read(in, value.places[slot]);
      return true;
    }
    RowRange const rows = rows_of(value.sender, microbatch);
    void* const part = row_splitter_.object(*value.type);
    type.read(in, part);
    Taken const taken = taken_of(value, rows, microbatch, own, columns - 1);
    row_splitter_.put_back(*value.type, value.places[slot], rows, taken.rows, part, taken.columns);
    return true;
  }

  /// How many of the `given` messages of a signal in a step can be in transit to one process at a
  /// time: with a value, one for each of its slots and one whose arrival is not known yet.
  [[nodiscard]] std::size_t under_way(std::uint32_t signal, std::size_t given) const {
    Value const value = value_of(signal);
    return value.type == nullptr ? given : std::min<std::size_t>(given, value.slots + 1U);
  }

  /// Checks, before the first step, that all values between processes can be sent.
  /// @param process  [ranks]
  void require_portable(int const* process) const {
    for (std::uint32_t s = 0; s < signals(); ++s) {
      auto const& ends = program().signals[s];
      Value const value = value_of(s);
      if (value.type != nullptr && process[ends.sender] != process[ends.receiver])
        (void)port(*value.type, "value", ends.edge);
    }
  }

  /// The functions that send values of a type.
  /// @throws Error bad_configuration if they cannot be sent
  [[nodiscard]] PortType const& port(SlotType const& type, char const* what = "value",
                                     int edge = -1) const {
    for (std::size_t i = 0; i < port_count_; ++i)
      if (ports_[i].type == &type && ports_[i].write != nullptr) return ports_[i];
    raise(Errc::bad_configuration,
          edge < 0 ? text("the model's ", what)
                   : text("the value between the stages ", edge, " and ", edge + 1),
          " cannot go to another process; give its type a member fields() that returns a std::tie "
          "of tensors, vectors and numbers, or specialise stagger::Portable for it");
  }

  /// The results of a rank of the last stage for the caller of the step: losses or outputs. Members
  /// of a group have the same results; those of the first one are taken.
  template <class Wire> void results(Wire wire, std::integral auto rank) const {
    stagger::detail::StepArguments const& arguments = *machine_.run.ranks[rank].arguments;
    bool first = true;
    for (Instruction const& in : program().ranks[rank].code) {
      Cell const& cell = program().cells[in.cell];
      if (!gives_output(in.op) || !cell.last() || cell.member != 0) continue;
      if (std::exchange(first, false) && arguments.terms != nullptr) wire.number(*arguments.terms);
      auto const m = in.microbatch;
      if (arguments.losses != nullptr) wire.number(arguments.losses[m]);
      if (arguments.outputs.first != nullptr)
        wire.value(port(*machine_.run.cells[in.cell].back->ops->output, "output"),
                   arguments.outputs[m]);
    }
  }
  template <class Wire> void spans(Wire wire, std::integral auto rank) const {
    auto& own = machine_.run.ranks[rank];
    std::size_t count = own.spans.size();
    wire.number(own.peak_in_flight);
    wire.number(count);
    own.spans.resize(count);
    wire.bytes(own.spans.data(), count * sizeof(schedule::Span));
  }

 private:
  /// The slots of the values that a signal announces; no type if it announces none.
  struct Value {
    SlotType const* type = nullptr;
    Places places;
    std::uint32_t slots = 0;  // how many there are
    bool forward = true;
    bool by_rows = false;      // its receivers take a part of it
    std::size_t sender = 0;    // then its cell
    std::size_t row_edge = 0;  // and which of the program it is
  };
  /// The part of a value that the ranks of one process take.
  struct Taken {
    RowRange rows;
    stagger::detail::TakenColumns columns;
  };

  [[nodiscard]] Value value_of(std::uint32_t signal) const {
    if (signal >= signals() || program().signals[signal].edge < 0) return {};
    std::size_t edge = signal / signals_per_edge;
    bool const forward =
        static_cast<EdgeSignal>(signal % signals_per_edge) == EdgeSignal::forward_full;
    auto const& cells = program().cells;
    auto const& runs = machine_.run.cells;
    if (edge < cells.size()) {  // a slot of the receiver
      auto const after = cells[edge].after;
      if (after == Cell::none) return {};
      if (forward)
        return {runs[after].front->ops->input, runs[after].x, cells[after].x_slots, true};
      return {runs[edge].back->ops->output, runs[edge].back->dy, cells[edge].dy_slots, false};
    }
    edge -= cells.size();
    RowEdge const ends = program().row_edges[edge];  // a slot of the sender
    std::size_t const from = forward ? ends.from : ends.to;
    StageRun const& run = runs[from];
    if (forward)
      return {run.back->ops->output, run.back->y, cells[from].y_slots, true, true, from, edge};
    return {run.front->ops->input, run.dx, cells[from].dx_slots, false, true, from, edge};
  }

  [[nodiscard]] TrafficKind kind_of(Value const& value) const {
    if (!value.by_rows) return value.forward ? TrafficKind::activations : TrafficKind::gradients;
    RowEdge const& edge = program().row_edges[value.row_edge];
    auto const& cells = program().cells;
    return stagger::detail::Grouped::kind(machine_.model.grouped, cells[value.sender],
                                          cells[value.forward ? edge.to : edge.from],
                                          value.forward);
  }
  [[nodiscard]] RowRange rows_of(std::size_t cell, std::size_t microbatch) const {
    return machine_.run.replica_run->cells[cell].rows[microbatch];
  }
  /// The cell that takes a value over an edge, if it is on one of these ranks; otherwise none.
  [[nodiscard]] Cell const* taker_of(Value const& value, RowEdge const& edge,
                                     bool const* to) const {
    if ((value.forward ? edge.from : edge.to) != value.sender ||
        !(value.forward ? edge.forward : edge.backward).used)
      return nullptr;
    Cell const& taker = program().cells[value.forward ? edge.to : edge.from];
    return to[taker.rank] ? &taker : nullptr;
  }
  /// Whether the value was already sent to the same process, over an edge to another of its ranks:
  /// an instruction gives the signals of its edges in order.
  [[nodiscard]] bool is_there(Value const& value, bool const* to) const {
    for (std::size_t e = 0; value.by_rows && e < value.row_edge; ++e)
      if (taker_of(value, program().row_edges[e], to) != nullptr) return true;
    return false;
  }
  [[nodiscard]] auto const& sources_of(Value const& value) const {
    auto const& run = *machine_.run.replica_run;
    return value.forward ? run.inputs : run.gradients;
  }
  /// The columns of a value of which members of a group take some; otherwise 0.
  [[nodiscard]] std::uint32_t columns_of(Value const& value, void const* object) const {
    for (auto const& source : sources_of(value))
      if (source.maker == value.sender && source.blocks != nullptr)
        return static_cast<std::uint32_t>(source.blocks->count(object));
    return 0;
  }
  /// The rows and columns from the first to the last that ranks of the receiver's process take from
  /// a cell; these ranks share the slot.
  /// @param columns  as columns_of answers
  [[nodiscard]] Taken taken_of(Value const& value, RowRange rows, std::size_t microbatch,
                               bool const* to, std::size_t columns) const {
    Taken taken{{rows.last, rows.first}, {}};
    for (RowEdge const& edge : program().row_edges) {
      Cell const* const taker = taker_of(value, edge, to);
      if (taker == nullptr) continue;
      RowRange const theirs = rows_of(value.forward ? edge.to : edge.from, microbatch).common(rows);
      if (theirs.count() == 0) continue;
      taken.rows.first = std::min(taken.rows.first, theirs.first);
      taken.rows.last = std::max(taken.rows.last, theirs.last);
      TakenPart const part = (value.forward ? edge.forward : edge.backward).part;
      if (part == TakenPart::all || part == TakenPart::put) continue;
      for (auto const& source : sources_of(value)) {
        if (source.cell != (value.forward ? edge.to : edge.from) || source.maker != value.sender)
          continue;
        IndexRange const own = source.columns(columns);
        auto& of = taken.columns;
        if (of.ops == nullptr) of = {source.blocks, own, columns};
        of.of.first = std::min(of.of.first, own.first);
        of.of.last = std::max(of.of.last, own.last);
      }
    }
    if (taken.rows.first >= taken.rows.last) taken.rows = {rows.first, rows.first};
    return taken;
  }

  Machine& machine_;
  PortType const* ports_;  // [port_count_]
  std::size_t port_count_;
  mutable RowSplitter row_splitter_{};
};

}  // namespace stagger::mpi::detail
