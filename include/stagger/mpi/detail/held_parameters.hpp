// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The parameters that a process holds, which of them it updates, and their bytes.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <stagger/core/error.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/list.hpp>
#include <stagger/core/portable.hpp>
#include <stagger/engine/machine.hpp>

namespace stagger::mpi::detail {

using stagger::detail::ByteRange;
using stagger::detail::cells_of;
using stagger::detail::each_stage;
using stagger::detail::LayerParameters;
using stagger::detail::Machine;

/// Writes a message. Reading has the same functions, so that one description of a message's
/// contents serves both ends.
struct Writing {
  ByteWriter& out;
  void bytes(void const* at, std::size_t count) { out.add(at, count); }
  template <class T> void number(T const& value) { out.add(value); }
  template <class Port> void value(Port const& port, void const* at) { port.write(out, at); }
};
/// Reads a message.
struct Reading {
  ByteReader& in;
  void bytes(void* at, std::size_t count) { in.take(at, count); }
  template <class T> void number(T& value) { value = in.take<T>(); }
  template <class Port> void value(Port const& port, void* at) { port.read(in, at); }
};

/// Every process has a machine with all ranks, and runs its own ranks. Arguments `own`, `from` and
/// `to` say for each rank whether a process runs it.
struct HeldParameters {
  Machine& machine;

  [[nodiscard]] Program const& program() const noexcept { return *machine.run.program; }
  /// Whether the step ends with an update that all ranks make together. A parameter server makes
  /// that of a worker.
  [[nodiscard]] bool commits() const noexcept {
    return program().training && program().flushes && !program().exchanges();
  }
  [[nodiscard]] IndexRange layers_of(int stage) const noexcept {
    return machine.model.layers_of(stage);
  }
  [[nodiscard]] int stage_of(std::size_t layer) const {
    int stage = 0;
    while (layer >= layers_of(stage).last) ++stage;
    return stage;
  }
  /// The rank that adds up the gradients of a layer, and always has its parameters.
  [[nodiscard]] int owner_of(std::size_t layer) const {
    return program().cells[cells_of(program(), stage_of(layer)).first].rank;
  }

  /// Allocates memory for the stages that this process runs, and frees that of the others. Of
  /// owners in other processes it needs the gradients that it adds up.
  void hold(bool const* own) const {
    each_stage(program(), [&](int stage, IndexRange cells) {
      bool const here = runs(cells, own);
      IndexRange const layers = layers_of(stage);
      for (std::size_t const l : layers) {
        LayerParameters& parameters = machine.model.parameters[l];
        if (!here) parameters.release();
        bool const made = here && parameters.hold();
        auto& owners = machine.run.storage[stage];
        for (std::size_t o = 1; o < owners.size(); ++o) {
          auto& copy = owners[o].copies[l - layers.first];
          Kept const kept = here && o < cells.size() && commits()
                                ? kept_of(cells, o, parameters, own)
                                : copy.kept();
          if (!here)
            copy.release();
          else if (made || kept != copy.kept() || (copy.bytes() == 0 && !kept.arrive()))
            copy.of(parameters, parameters.views(), parameters.stored(), kept);
        }
      }
    });
  }

  /// A process updates all parameters of the stages that it runs, each on its lowest rank with that
  /// stage. Its lowest rank of all writes the norm.
  void share_updates(bool const* own) const {
    machine.run.reporter =
        static_cast<int>(std::find(own, own + program().ranks.size(), true) - own);
    for (auto& end_of_step : machine.run.end_of_step) end_of_step.layers.clear();
    if (machine.model.shards) return shard_updates(own);
    each_stage(program(), [&](int stage, IndexRange cells) {
      for (std::size_t const c : cells) {
        int const rank = program().cells[c].rank;
        if (!own[rank] || program().cells[c].alone) continue;
        for (std::size_t const l : layers_of(stage))
          machine.run.end_of_step[rank].layers.push_back({l, {}});
        return;
      }
    });
  }

  /// If each rank updates a part: calls `visit(rank, layer, part)` for each.
  template <class Visit> void each_shard(Visit visit) const {
    each_stage(program(), [&](int stage, IndexRange cells) {
      for (std::size_t const l : layers_of(stage))
        for (std::size_t const c : cells)
          visit(program().cells[c].rank, l,
                machine.model.parameters[l].part(c - cells.first, cells.size()));
    });
  }

  /// Bytes of the values that the ranks of one process update and ranks of another one have too.
  [[nodiscard]] std::size_t renewed_bytes(bool const* own, bool const* to) const {
    std::size_t bytes = 0;
    if (commits() && machine.model.shards)
      each_renewed(own, to,
                   [&](LayerParameters&, ByteRange range) { bytes += range.last - range.first; });
    return bytes;
  }
  template <class Wire> void values(Wire wire, bool const* from, bool const* to) const {
    each_renewed(from, to, [&](LayerParameters& parameters, ByteRange range) {
      auto const bytes = parameters.value_bytes_of(range);
      wire.bytes(bytes.data(), bytes.size());
    });
  }

  /// Clears the gradients that a step leaves in parts which others update.
  void clear_gradients_of(bool const* own) const noexcept {
    each_stage(program(), [&](int stage, IndexRange cells) {
      if (!runs(cells, own)) return;
      for (std::size_t const l : layers_of(stage)) machine.model.parameters[l].zero_gradients();
    });
  }

  /// For sums by a library: calls `visit(type, gradient of the cell, sum of all, bytes)` for each
  /// parameter of a `reduce`'s group.
  template <class Visit> void each_gradient(Instruction const& in, Visit visit) const {
    std::size_t const first = machine.model.layers_of(in.stage).first;
    for (std::size_t const l : machine.model.layers_of(machine.program().groups[in.group])) {
      LayerParameters& sum = machine.model.parameters[l];
      for (std::size_t p = 0; p < sum.count(); ++p)
        visit(sum.declaration(p).type,
              machine.gradients_of(in.stage, in.part(), l - first, sum.range(p).first),
              static_cast<std::byte*>(sum.views()[p].gradient), sum.value_bytes(p));
    }
  }

 private:
  using Kept = stagger::detail::KeptGradients;

  /// What a further owner's copy keeps for a step.
  [[nodiscard]] Kept kept_of(IndexRange cells, std::size_t owner, LayerParameters const& layer,
                             bool const* own) const noexcept {
    auto const here = [&](std::size_t c) { return own[program().cells[c].rank]; };
    std::size_t first = cells.first;  // of this process
    while (!here(first)) ++first;
    std::size_t const c = cells.first + owner;
    if (here(c) && c != first) return {};
    ByteRange part{0, 0};
    bool const grouped = !program().groups.empty();
    if (!grouped && first == cells.first) part = {0, layer.bytes_of_values()};
    for (std::size_t d = first; grouped && d < cells.last; ++d) {
      if (!here(d) || machine.run.grouping.by == collective::By::library) continue;
      part = part.with(layer.part(d - cells.first, cells.size()));
    }
    return {c == first ? Kept::Of::first : Kept::Of::other, part};
  }

  [[nodiscard]] bool runs(IndexRange cells, bool const* own) const noexcept {
    bool any = false;
    for (std::size_t const c : cells) any = any || own[program().cells[c].rank];
    return any;
  }

  /// Each rank updates its part, and its process has the optimizer state of that part only.
  [[gnu::cold]] void shard_updates(bool const* own) const {
    List<ByteRange> held(machine.model.parameters.size(), ByteRange{0, 0});
    each_shard([&](int rank, std::size_t layer, ByteRange part) {
      if (!own[rank]) return;
      machine.run.end_of_step[rank].layers.push_back({layer, part});
      held[layer] = held[layer].with(part);  // and the gaps between its parts
    });
    for (std::size_t l = 0; l < held.size() && program().training; ++l)
      if (!machine.model.parameters[l].hold_states(held[l]))
        stagger::detail::refuse_other_shares(machine.model.number(l), program().microbatches);
  }

  template <class Visit> void each_renewed(bool const* from, bool const* to, Visit visit) const {
    each_stage(program(), [&](int stage, IndexRange cells) {
      if (!runs(cells, to)) return;
      for (std::size_t const l : layers_of(stage))
        for (std::size_t const c : cells) {
          LayerParameters& parameters = machine.model.parameters[l];
          ByteRange const part = parameters.part(c - cells.first, cells.size());
          if (from[program().cells[c].rank] && part.first < part.last) visit(parameters, part);
        }
    });
  }
};

}  // namespace stagger::mpi::detail
