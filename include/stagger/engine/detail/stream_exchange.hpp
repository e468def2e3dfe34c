// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Streams that exchange parameters with a server: the worker pushes changes, and adds its
///         own changes to the snapshots that it receives.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <utility>

#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/engine/detail/server_exchange.hpp>
#include <stagger/parameters/parameter_memory.hpp>

namespace stagger::detail {

/// For each cell it keeps the changes of the current push and of the pushes that a snapshot may
/// lack, and the snapshots to ask for.
class StreamExchange final : public ServerExchange {
 public:
  /// @throws Error  bad_configuration for a staleness model that cannot work
  [[gnu::cold]] StreamExchange(std::shared_ptr<ParameterLink> link, Machine& machine,
                               StalenessModel const& staleness)
      : ServerExchange(std::move(link), machine, possible(staleness)) {}
  ~StreamExchange() override { leave(); }

  [[gnu::cold]] void load(Machine& machine) override {
    ServerExchange::load(machine);
    if (!program_->training) return;
    if (streams_.size() != cells_.size()) streams_ = FixedArray<CellStream>(cells_.size());
    auto const per_push = static_cast<std::uint32_t>(program_->push_minibatches);
    for (CellStream& stream : streams_) {
      stream.kept = 1;
      stream.changes = 0;
      stream.asks.clear();
      stream.version_of.resize(static_cast<std::size_t>(program_->updates));
      stream.others.assign(1, 0);
    }
    for (auto const& rank : program_->ranks)
      for (Instruction const& in : rank.code) {
        CellStream& stream = streams_[in.cell];
        if (in.op == Op::apply) ++stream.changes;
        if (in.op == Op::forward)
          stream.version_of[in.microbatch] = static_cast<std::uint32_t>(stream.others.size() - 1);
        if (in.op != Op::pull || !in.snapshot()) continue;
        stream.others.push_back(0);
        if (!in.last_pull())  // pushes after the snapshot, with the current one and unused ones
          stream.kept = std::max(
              stream.kept, std::size_t{(stream.changes + per_push - 1) / per_push} - in.rounds());
        if (in.last_pull() || in.rounds() > (stream.asks.empty() ? 0 : stream.asks.back()))
          stream.asks.push_back(in.last_pull() ? all_rounds : in.rounds());
      }
  }

  void begin_step() override {
    if (!program_->training) return;
    for (std::size_t c = 0; c < cells_.size(); ++c) {
      make_room(c);
      streams_[c].changes = 0;
      streams_[c].asked = 0;
      streams_[c].taken = 0;
      streams_[c].versions = 0;
      cells_[c].missing.store(0);
    }
    open();
    for (std::size_t c = 0; c < cells_.size(); ++c) ask(c);
  }

  bool execute(Machine& machine, Instruction const& in) override {
    if (in.op == Op::apply)
      change(machine, in);
    else if (in.op == Op::push)
      push(in);
    else
      pull(in);
    return in.op == Op::push || (in.op == Op::pull && in.snapshot());
  }

  [[gnu::cold]] void end_step(Machine&, std::exception_ptr why) override {
    if (!is_open() || !program_->training) return;  // evaluation exchanges nothing
    if (!why)
      count_staleness(0, program_->updates, [&](std::size_t c, int m) {
        return streams_[c].others[streams_[c].version_of[m]];
      });
    close(why);
  }

  [[nodiscard]] std::uint64_t bytes() const override {
    std::uint64_t sum = 0;
    for (CellStream const& stream : streams_)
      for (ParameterBlock const& block : stream.pushes) sum += block.size();
    return sum;
  }

 private:
  struct CellStream {
    std::size_t kept = 1;               // pushes in memory
    FixedArray<ParameterBlock> pushes;  // [kept][layers]
    List<std::uint32_t> asks;           // rounds of the snapshots that it needs, in order
    std::size_t asked = 0;              // how many of these it has asked for
    std::uint32_t taken = 0;            // rounds of the newest snapshot that it has
    std::uint32_t changes = 0;          // made
    std::uint32_t versions = 0;         // versions made from snapshots so far
    List<std::uint32_t> version_of;     // [minibatches] number of the version that it sees
    List<std::uint32_t> others;         // [versions + 1] pushes of each other worker, at least
  };

  [[nodiscard]] ParameterBlock& push_block(std::size_t c, std::uint32_t push, std::size_t l) {
    return streams_[c].pushes[push % streams_[c].kept * cells_[c].count + l];
  }

  void make_room(std::size_t c) {
    CellStream& stream = streams_[c];
    std::size_t const layers = cells_[c].count;
    if (stream.pushes.size() >= stream.kept * layers) return;
    stream.pushes = FixedArray<ParameterBlock>(stream.kept * layers);
    for (std::size_t i = 0; i < stream.pushes.size(); ++i)
      stream.pushes[i].make(nullptr, layer(cells_[c], i % layers).bytes_of_values());
  }

  /// Computes the change of a minibatch, and adds it to the sum since the last push.
  void change(Machine& machine, Instruction const& in) {
    auto const per_push = static_cast<std::uint32_t>(program_->push_minibatches);
    std::uint32_t const number = streams_[in.cell].changes++;
    for (std::size_t l = 0; l < cells_[in.cell].count; ++l) {
      LayerParameters& own = layer(cells_[in.cell], l);
      machine.change(own, in);
      ParameterBlock& sum = push_block(in.cell, number / per_push, l);
      std::byte const* const made = own.stored().values[in.next_version].data();
      if (number % per_push != 0)
        own.add_values(sum.data(), made);
      else if (sum.size() != 0)
        std::memcpy(sum.data(), made, sum.size());
    }
  }

  void push(Instruction const& in) {
    CellLayers const& cell = cells_[in.cell];
    bool const ends = static_cast<int>(streams_[in.cell].changes) == program_->updates;
    for (std::size_t l = 0; l < cell.count; ++l) {
      link_->push(cell.first + l, push_block(in.cell, in.round(), l).data(), ends);
      count(cell.first + l, TrafficKind::pushes);
    }
  }

  /// Makes a version of the weights: from a snapshot and the worker's own later pushes, each as one
  /// sum; or from the previous version and the change in the slot of the new one.
  void pull(Instruction const& in) {
    CellLayers const& cell = cells_[in.cell];
    CellStream& stream = streams_[in.cell];
    bool const asked = in.snapshot() && (in.last_pull() || in.rounds() > stream.taken);
    if (asked) stream.taken = in.rounds();
    if (in.snapshot()) stream.others[++stream.versions] = all_rounds;
    for (std::size_t l = 0; l < cell.count; ++l) {
      if (asked) count(cell.first + l, TrafficKind::pulls);
      LayerParameters& own = layer(cell, l);
      std::byte* const to = own.stored().values[in.next_version].data();
      if (!in.snapshot()) {
        own.add_values(to, own.stored().values[in.version].data());
        continue;
      }
      if (in.last_pull()) {
        link_->take_last(cell.first + l, to);
        continue;
      }
      VersionTag const tag =
          take(cell.first + l, in.rounds(), to, in.rounds() + in.waves(),
               [&](std::uint32_t push) { return push_block(in.cell, push, l).data(); });
      std::uint32_t& others = stream.others[stream.versions];
      others = std::min(others, tag.others);
    }
    if (in.snapshot() && (in.rounds() != 0 || in.last_pull())) ask(in.cell);
  }

  /// Asks for the next snapshot.
  void ask(std::size_t c) {
    CellStream& stream = streams_[c];
    CellLayers& cell = cells_[c];
    if (stream.asked == stream.asks.size()) return;
    if (cell.missing.load() != 0) return;  // the previous one has not arrived
    std::uint32_t const rounds = stream.asks[stream.asked++];
    cell.missing.store(cell.count);
    for (std::size_t l = 0; l < cell.count; ++l)
      rounds == all_rounds ? link_->ask_last(cell.first + l) : link_->ask(cell.first + l, rounds);
  }

  /// Refuses a staleness model whose pushes cannot be added.
  [[gnu::cold]] static StalenessModel possible(StalenessModel const& model) {
    if (model.pushes != staleness::Pushes::changes)
      raise(Errc::bad_configuration,
            "a stream pushes changes, not gradients: weights move on while the server works; let "
            "the staleness model push changes, or be synchronous");
    if (model.adds == staleness::Adds::in_turn)
      raise(Errc::bad_configuration,
            "workers that stream cannot push in turn; let the staleness model add on arrival or "
            "in the order of workers");
    return model;
  }

  void arrived(std::size_t layer, std::uint32_t rounds) noexcept override {
    one_arrived(layer, rounds);
  }
  void arrived_last(std::size_t layer) noexcept override {
    one_arrived(layer, rounds_of_stream() + 1);
  }

  FixedArray<CellStream> streams_;  // [cells]
};

}  // namespace stagger::detail
