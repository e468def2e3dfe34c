// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The bytes that go with a signal to a rank in another process.

#include <cstddef>
#include <cstdint>

#include <stagger/core/index_range.hpp>
#include <stagger/core/portable.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/mpi/detail/edge_values.hpp>
#include <stagger/mpi/detail/held_parameters.hpp>

namespace stagger::mpi::detail {

/// Writes and reads the bytes of messages between processes.
struct MessageCodec : HeldParameters {
  MessageCodec(Machine& whose, PortType const* types, std::size_t count)
      : HeldParameters{whose}, edges(whose, types, count) {}

  /// Whether a signal says that its sender has finished and can no longer fail.
  [[nodiscard]] bool votes(std::uint32_t signal) const noexcept {
    return commits() && is_done(signal);
  }

  /// Writes what is sent with a signal, right after `in`.
  /// @param to  [ranks] whether the receiver's process runs the rank
  /// @return the kind of what is sent
  TrafficKind write(ByteWriter& out, std::uint32_t signal, Instruction const& in,
                    bool const* to) const {
    if (auto const kind = edges.write(out, signal, in, to)) return *kind;
    bool const some = gradients(Writing{out}, signal, in.group, to);
    return some ? TrafficKind::gradient_sums : TrafficKind::control;
  }

  /// Puts what was received into its slot, or into the gradients.
  /// @param own  [ranks] whether this process runs the rank
  void read(ByteReader& in, std::uint32_t signal, bool const* own) const {
    if (!edges.read(in, signal, own)) gradients(Reading{in}, signal, 0, own);
  }

  EdgeValues edges;

 private:
  /// Whether a rank gives the signal when it has added up its gradients.
  [[nodiscard]] bool is_done(std::uint32_t signal) const noexcept {
    auto const ranks = static_cast<unsigned>(program().computing);
    std::size_t const first = edges.signals() + ranks;
    return signal >= first && signal < first + ranks;
  }
  /// What is sent with a signal that announces gradients, or the end of a rank.
  /// @param group  of what is written
  /// @return whether there are gradients, or their sums, among it
  template <class Wire>
  bool gradients(Wire wire, std::uint32_t signal, std::uint16_t group, bool const* to) const {
    if (signal < edges.signals()) return false;
    bool const done = program().training && program().flushes && is_done(signal);
    if (done) of_gradients(wire, program().signals[signal].sender);
    if (!commits()) {  // a worker of a server pushes what was scaled by the norm over all ranks
      if (machine.model.options.clip_norm && done)
        squares(wire, program().signals[signal].sender, true, to);
      return false;
    }
    bool some = false;
    auto const send = [&](std::byte* at, std::size_t bytes) {
      wire.bytes(at, bytes);
      some = some || bytes != 0;
    };
    if (program().signals[signal].of_group()) {
      wire.number(group);
      each_part(signal, group, to, send);
      return some;
    }
    each_block(signal, to, [&](LayerParameters const& parameters, std::byte* gradients) {
      for (std::size_t i = 0; i < parameters.count(); ++i)
        send(gradients + parameters.range(i).first, parameters.value_bytes(i));
    });
    bool const vote = votes(signal);
    int const rank = program().signals[signal].sender;
    if ((vote || machine.model.shards) && machine.model.options.clip_norm)
      squares(wire, rank, vote, to);
    if (vote) edges.results(wire, rank);
    return some;
  }

  /// The blocks of gradients that are sent at the end of a rank's backward: its own to the stage's
  /// first owner, and later the sums to the other owners.
  template <class Visit> void each_block(std::uint32_t signal, bool const* to, Visit visit) const {
    if (!program().groups.empty()) return;  // they were sent group by group
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
        for (std::size_t i = 0; wanted && i < layers.size(); ++i) {
          LayerParameters const& parameters = machine.model.parameters[layers.first + i];
          visit(parameters, sums ? parameters.stored().gradients.data()
                                 : machine.gradients_of(stage, c - cells.first, i, 0));
        }
      }
    });
  }

  /// What is sent when the signal of a group is given for the k-th time. Of a cell's gradients,
  /// each process gets the parts that it adds up; of its sums, the part that the cell has added up.
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
        ByteRange const range = parameters.part(holder - cells.first, cells.size());
        if (range.first >= range.last) continue;
        std::size_t const layer = l - layers_of(stage).first;
        visit(sums ? parameters.stored().gradients.at(range.first)
                   : machine.gradients_of(stage, cell - cells.first, layer, range.first),
              range.size());
      }
    }
  }

  /// What a rank that has finished knows of gradients: whether those that it has added up are
  /// finite, and to which of its own anything was added, if other ranks have the same parameters.
  template <class Wire> void of_gradients(Wire wire, int rank) const {
    wire.number(machine.run.end_of_step[rank].not_finite);
    each_stage(program(), [&](int stage, IndexRange cells) {
      bool has = false;
      for (std::size_t const c : cells) has = has || program().cells[c].rank == rank;
      if (!has || cells.size() == 1) return;
      for (std::size_t const l : layers_of(stage))
        for (std::size_t i = 0; i < machine.model.parameters[l].count(); ++i) {
          bool added = machine.model.parameters[l].added(i);
          wire.number(added);
          if (added) machine.model.parameters[l].note_added(i);
        }
    });
  }
  /// The sums of squares of the gradients that a rank has added up.
  void squares(Writing wire, int rank, bool, bool const*) const {
    for (auto const& one : machine.run.end_of_step[rank].squares)
      wire.number(machine.model.parameters[one.layer].square_sums()[one.parameter]);
  }
  /// Takes sums that are complete, or that a rank of this process continues. Other sums may be
  /// older than those here, since members of a group pass each layer on to different ranks.
  /// @param whole  takes complete ones
  void squares(Reading wire, int rank, bool whole, bool const* own) const {
    for (auto const& one : machine.run.end_of_step[rank].squares) {
      LayerParameters& parameters = machine.model.parameters[one.layer];
      double sum = 0;
      wire.number(sum);
      if (whole ? parameters.ends_in(one.parameter, one.range) : is_next(one.layer, rank, own))
        parameters.received_square_sums()[one.parameter] = sum;
    }
  }
  /// Whether the holder of a layer after a rank is here.
  [[nodiscard]] bool is_next(std::size_t layer, int rank, bool const* own) const {
    IndexRange const cells = cells_of(program(), stage_of(layer));
    for (std::size_t c = cells.first; c + 1 < cells.last; ++c)
      if (program().cells[c].rank == rank) return own[program().cells[c + 1].rank];
    return false;
  }
};

}  // namespace stagger::mpi::detail
