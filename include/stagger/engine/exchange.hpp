// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A worker that trains with others through a parameter server: changes, pushes and pulls.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/engine/detail/exchange_ops.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/parameters/parameter_link.hpp>
#include <stagger/parameters/parameter_memory.hpp>
#include <stagger/program/program.hpp>
#include <stagger/program/versions.hpp>

namespace stagger::detail {

/// Of each cell: the changes of the push at hand and of those that a snapshot may lack, and which
/// snapshots it asks for.
class ServerExchange final : public Exchange, private ParameterListener {
 public:
  /// @throws Error  bad_configuration for a model that cannot be, mismatch for a worker that differs
  ///                from the others
  [[gnu::cold]] ServerExchange(std::shared_ptr<ParameterLink> link, Machine& machine,
                               StalenessModel const& staleness,
                               std::shared_ptr<void const> const& kept)
      : link_(std::move(link)), machine_(machine), staleness_(staleness) {
    require_possible();
    auto& layers = machine.parameters();
    link_->join({layers.data(), layers.size()},
                {staleness.push_minibatches, staleness.pushes, staleness.adds, most_ahead(),
                 machine.model.optimizer, kept},
                *this);
    stage_of_ = FixedArray<std::size_t>(layers.size());
  }
  ServerExchange(ServerExchange const&) = delete;
  ServerExchange& operator=(ServerExchange const&) = delete;
  ~ServerExchange() override { link_->leave(); }

  [[gnu::cold]] void load(Machine& machine) override {
    program_ = &machine.program();
    if (!program_->training) return;
    if (cells_.size() != program_->cells.size())
      cells_ = FixedArray<CellExchange>(program_->cells.size());
    auto const per_push = static_cast<std::uint32_t>(program_->push_minibatches);
    for (std::size_t c = 0; c < cells_.size(); ++c) {
      CellExchange& cell = cells_[c];
      cell.kept = program_->flushes ? 0 : 1;
      cell.changes = 0;
      cell.asks.clear();
      cell.first_layer = machine.first_layers()[program_->cells[c].stage];
      cell.layers = machine.first_layers()[program_->cells[c].stage + 1] - cell.first_layer;
      for (std::size_t l = 0; l < cell.layers; ++l) stage_of_[cell.first_layer + l] = c;
    }
    for (auto const& rank : program_->ranks)
      for (Instruction const& in : rank.code) {
        CellExchange& cell = cells_[in.cell];
        if (in.op == Op::apply) ++cell.changes;
        if (in.op != Op::pull || !in.snapshot() || program_->flushes) continue;
        if (!in.last_pull())  // pushes behind the snapshot, with the one at hand and unused ones
          cell.kept = std::max(cell.kept,
                               std::size_t{(cell.changes + per_push - 1) / per_push} - in.rounds());
        if (in.last_pull() || in.rounds() > (cell.asks.empty() ? 0 : cell.asks.back()))
          cell.asks.push_back(in.last_pull() ? all_rounds : in.rounds());
      }
    for (CellExchange& cell : cells_) {
      if (cell.pushes.size() >= cell.kept * cell.layers) continue;
      cell.pushes = FixedArray<ParameterBlock>(cell.kept * cell.layers);
      for (std::size_t i = 0; i < cell.pushes.size(); ++i)
        cell.pushes[i].make(nullptr, layer(cell, i % cell.layers).bytes_of_values());
    }
  }

  void begin_step() override {
    if (!program_->training) return;
    for (CellExchange& cell : cells_) {
      cell.changes = 0;
      cell.asked = 0;
      cell.missing.store(0);
    }
    if (!std::exchange(running_, true)) {
      link_->begin();
      steps_ = 0;
      read_newest();
    }
    for (CellExchange& cell : cells_) ask(cell);
  }

  void execute(Machine& machine, Instruction const& in) override {
    CellExchange& cell = cells_[in.cell];
    if (in.op == Op::apply)
      change(machine, cell, in);
    else if (program_->flushes)
      in.op == Op::push ? push_gradients(cell) : pull_newest(cell);
    else if (in.op == Op::push)
      push(cell, in);
    else
      pull(cell, in);
  }

  [[gnu::cold]] void end_step(Machine&, std::exception_ptr why) override {
    if (!running_ || !program_->training) return;  // evaluation exchanges nothing
    ++steps_;
    if (!why && program_->flushes) return;  // the next step goes on
    running_ = false;
    link_->end(why);
    if (why) read_newest();
  }

  [[nodiscard]] std::uint64_t bytes() const override {
    std::uint64_t sum = 0;
    for (CellExchange const& cell : cells_)
      for (ParameterBlock const& block : cell.pushes) sum += block.size();
    return sum;
  }
  [[nodiscard]] std::string waits_for() const override { return link_->waits_for(); }

 private:
  static constexpr int looked_at = 256;  // minibatches
  struct CellExchange {
    std::size_t first_layer = 0;
    std::size_t layers = 0;
    std::size_t kept = 1;                 // pushes in memory
    FixedArray<ParameterBlock> pushes;    // [kept][layers]
    List<std::uint32_t> asks;             // rounds of the snapshots that it waits for, in order
    std::size_t asked = 0;                // of those
    std::atomic<std::size_t> missing{0};  // layers of the one asked for last that are not there
    std::uint32_t changes = 0;            // made
  };

  [[nodiscard]] LayerParameters& layer(CellExchange const& cell, std::size_t l) const {
    return machine_.parameters()[cell.first_layer + l];
  }
  [[nodiscard]] ParameterBlock& push_block(CellExchange& cell, std::uint32_t push, std::size_t l) {
    return cell.pushes[push % cell.kept * cell.layers + l];
  }

  /// The change of a minibatch, and the sum since the last push.
  void change(Machine& machine, CellExchange& cell, Instruction const& in) {
    auto const per_push = static_cast<std::uint32_t>(program_->push_minibatches);
    bool const first = cell.changes % per_push == 0;
    std::uint32_t const push = cell.changes++ / per_push;
    for (std::size_t l = 0; l < cell.layers; ++l) {
      LayerParameters& own = layer(cell, l);
      machine.change(own, in);
      ParameterBlock& sum = push_block(cell, push, l);
      std::byte const* const made = own.stored().values[in.next_version].data();
      if (!first)
        own.add_values(sum.data(), made);
      else if (sum.size() != 0)
        std::memcpy(sum.data(), made, sum.size());
    }
  }

  void push(CellExchange& cell, Instruction const& in) {
    bool const ends = static_cast<int>(cell.changes) == program_->updates;
    for (std::size_t l = 0; l < cell.layers; ++l)
      link_->push(cell.first_layer + l, push_block(cell, in.round(), l).data(), ends);
  }

  /// Makes a version: from a snapshot and own pushes behind it, each as one sum; or from the version
  /// before and the change that lies where the new one will.
  void pull(CellExchange& cell, Instruction const& in) {
    for (std::size_t l = 0; l < cell.layers; ++l) {
      LayerParameters& own = layer(cell, l);
      std::byte* const to = own.stored().values[in.next_version].data();
      if (!in.snapshot()) {
        own.add_values(to, own.stored().values[in.version].data());
        continue;
      }
      if (in.last_pull()) {
        link_->take_last(cell.first_layer + l, to);
        continue;
      }
      std::uint32_t const contained = link_->take(cell.first_layer + l, in.rounds(), to);
      for (std::uint32_t push = contained; push < in.rounds() + in.waves(); ++push)
        own.add_values(to, push_block(cell, push, l).data());
    }
    if (in.snapshot() && (in.rounds() != 0 || in.last_pull())) ask(cell);
  }

  /// At the end of a step; then gradients are zero.
  void push_gradients(CellExchange& cell) {
    cell.missing.store(cell.layers);
    for (std::size_t l = 0; l < cell.layers; ++l) {
      LayerParameters& own = layer(cell, l);
      link_->push(cell.first_layer + l, own.stored().gradients.data(), false);
      own.zero_gradients();
    }
    auto const needed = static_cast<std::uint32_t>(rounds_after(steps_));
    for (std::size_t l = 0; l < cell.layers; ++l) link_->ask(cell.first_layer + l, needed);
  }
  /// What the next step is to see.
  void pull_newest(CellExchange& cell) {
    auto const needed = static_cast<std::uint32_t>(rounds_after(steps_));
    for (std::size_t l = 0; l < cell.layers; ++l)
      link_->take(cell.first_layer + l, needed, layer(cell, l).values().data());
  }

  /// Pushes of every worker that the step behind step `m` is to see.
  [[nodiscard]] int rounds_after(int m) const {
    return std::max(0, staleness_.needs(staleness_.policy, m + 1));
  }

  [[gnu::cold]] void read_newest() {
    for (CellExchange& cell : cells_)
      for (std::size_t l = 0; l < cell.layers; ++l)
        link_->read(cell.first_layer + l, layer(cell, l).values().data());
  }

  /// Refuses what cannot be waited for, and what a worker could not keep.
  [[gnu::cold]] void require_possible() const {
    if (staleness_) {
      if (staleness_.pushes != staleness::Pushes::changes)
        raise(Errc::bad_configuration,
              "a stream pushes changes, not gradients: weights move on while the server works; let "
              "the staleness model push changes, or be synchronous");
      if (staleness_.adds == staleness::Adds::in_turn)
        raise(Errc::bad_configuration,
              "workers that stream cannot push in turn; let the staleness model add on arrival or "
              "in the order of workers");
      return;
    }
    if (staleness_.pushes != staleness::Pushes::gradients || staleness_.push_minibatches != 1)
      raise(Errc::bad_configuration,
            "a step pushes its gradients, once; let a staleness model that pushes changes or "
            "several minibatches be taken by stream: synchronous = false");
    for (int m = 0; m < looked_at; ++m) {
      int const needs = staleness_.needs(staleness_.policy, m);
      if (needs > m)
        raise(Errc::bad_configuration, "the staleness model needs ", needs,
              " pushes of every worker at minibatch ", m,
              ", before which a worker makes only as many as that; let it need fewer");
      if (needs < m && staleness_.adds == staleness::Adds::in_worker_order)
        raise(Errc::bad_configuration, "the staleness model needs ", needs,
              " pushes of every worker at minibatch ", m,
              " and adds gradients in the order of workers, so that a worker would lack its own; "
              "let it add on arrival, or push changes");
    }
  }

  /// How many pushes of a worker may be there that not every other has made yet. Of the minibatches
  /// that are looked at; a stream may end with each.
  [[nodiscard]] [[gnu::cold]] std::size_t most_ahead() const {
    int most = 1;
    int needed = 0;
    for (int m = 0; m < looked_at; ++m) {
      needed = std::max(needed, staleness_.needs(staleness_.policy, m));
      most = std::max(most, m / staleness_.push_minibatches + 1 - needed);
    }
    return static_cast<std::size_t>(most);
  }

  /// Pushes of the worker.
  [[nodiscard]] std::uint32_t rounds_of_stream() const {
    auto const per_push = static_cast<std::uint32_t>(program_->push_minibatches);
    return (static_cast<std::uint32_t>(program_->updates) + per_push - 1) / per_push;
  }

  /// Asks for the next snapshot.
  void ask(CellExchange& cell) {
    if (cell.asked == cell.asks.size()) return;
    std::uint32_t const rounds = cell.asks[cell.asked];
    if (cell.missing.load() != 0) return;  // the one before is not there
    cell.missing.store(cell.layers);
    ++cell.asked;
    for (std::size_t l = 0; l < cell.layers; ++l)
      rounds == all_rounds ? link_->ask_last(cell.first_layer + l)
                           : link_->ask(cell.first_layer + l, rounds);
  }

  void arrived(std::size_t layer, std::uint32_t rounds) noexcept override {
    std::size_t const c = stage_of_[layer];
    if (cells_[c].missing.fetch_sub(1) != 1) return;
    auto const& outside = machine_.outside();
    outside.give(outside.self, program_->outside_signal(c), program_->flushes ? 1 : rounds);
  }
  void arrived_last(std::size_t layer) noexcept override { arrived(layer, rounds_of_stream() + 1); }
  /// Layers of a stage travel each on its own, and are shown as one.
  void carried(std::size_t layer, bool push, std::uint32_t number, double start_s,
               double end_s) override {
    Cell const& cell = program_->cells[stage_of_[layer]];
    RankState& rank = machine_.ranks()[cell.rank];
    if (!rank.record) return;
    schedule::Action const action{push ? schedule::Kind::push : schedule::Kind::pull, cell.stage,
                                  static_cast<int>(program_->flushes      ? 0
                                                   : number == all_rounds ? rounds_of_stream()
                                                                          : number)};
    for (auto span = rank.spans.end(); span != rank.spans.begin();) {
      if ((--span)->end_s < start_s) break;  // recorded before this one was sent
      if (!(span->action == action)) continue;
      span->start_s = std::min(span->start_s, start_s);
      span->end_s = std::max(span->end_s, end_s);
      return;
    }
    rank.spans.push_back({action, start_s, end_s, false});
  }
  void lost(std::exception_ptr why) noexcept override {
    auto const& outside = machine_.outside();
    outside.fail(outside.self, std::move(why));
  }

  std::shared_ptr<ParameterLink> link_;
  Machine& machine_;
  StalenessModel staleness_;
  Program const* program_ = nullptr;
  FixedArray<CellExchange> cells_;    // of the program
  FixedArray<std::size_t> stage_of_;  // [layers] cell
  int steps_ = 0;                     // since it began
  bool running_ = false;              // a stream, or steps
};

template <class Made>
[[gnu::cold]] std::unique_ptr<Exchange> make_exchange(std::shared_ptr<ParameterLink> const& link,
                                                      Machine& machine,
                                                      StalenessModel const& staleness,
                                                      std::shared_ptr<void const> const& kept) {
  return std::make_unique<Made>(link, machine, staleness, kept);
}

}  // namespace stagger::detail
