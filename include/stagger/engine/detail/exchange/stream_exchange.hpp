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
#include <mutex>
#include <utility>

#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/engine/detail/exchange/server_exchange.hpp>
#include <stagger/parameters/parameter_memory.hpp>

namespace stagger::detail {

/// How many rounds the newest weights of a cell contain that have arrived, where these are asked
/// for again and again.
class ArrivedRounds {
 public:
  void begin(std::size_t layers) {
    std::lock_guard const lock(mutex_);
    there_ = 0;
    layers_.assign(layers, {});
  }
  /// Weights of a layer have arrived. Called by any thread.
  /// @param rounds  that they contain, at least
  /// @param tell    (rounds) called, by one thread at a time, if the weights of all layers contain
  ///                more rounds than before
  template <class Tell> void arrive(std::size_t layer, std::uint32_t rounds, Tell tell) noexcept {
    std::lock_guard const lock(mutex_);
    ++layers_[layer].answers;
    if (rounds <= layers_[layer].rounds) return;
    layers_[layer].rounds = rounds;
    std::uint32_t least = all_rounds;
    for (std::size_t l = layers_.size(); l-- > 0 && least > there_;)
      least = std::min(least, layers_[l].rounds);
    if (least > there_) tell(there_ = least);
  }
  [[nodiscard]] std::uint32_t there() {
    std::lock_guard const lock(mutex_);
    return there_;
  }
  /// How often weights of a layer have arrived since the last call.
  [[nodiscard]] std::uint32_t take_answers(std::size_t layer) {
    std::lock_guard const lock(mutex_);
    return std::exchange(layers_[layer].answers, 0);
  }

 private:
  struct Layer {
    std::uint32_t rounds = 0;
    std::uint32_t answers = 0;
  };
  std::mutex mutex_;
  std::uint32_t there_ = 0;
  List<Layer> layers_;
};

/// For each cell it keeps the changes of the current push and of the pushes that a snapshot may
/// lack, and the snapshots to ask for.
///
/// Where pushes are added in the order of workers, it asks for each snapshot as soon as it has the
/// one before. Where they are added on arrival, it asks for the newest weights behind each push,
/// and a version waits for them only if those that are there lack rounds that it needs.
class StreamExchange final : public ServerExchange {
 public:
  /// @throws Error  bad_configuration for a staleness model that cannot work
  [[gnu::cold]] StreamExchange(std::shared_ptr<ParameterLink> link, Machine& machine,
                               StalenessModel const& staleness)
      : ServerExchange(std::move(link), machine, staleness) {}
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
      stream.versions = 0;
    }
    for (auto const& rank : program_->ranks)
      for (Instruction const& in : rank.code) {
        CellStream& stream = streams_[in.cell];
        if (updates(in.op)) ++stream.changes;
        if (gives_output(in.op)) stream.version_of[in.microbatch] = stream.versions;
        if (!exchanges(in.op) || !in.snapshot()) continue;
        ++stream.versions;
        if (!in.last_pull())  // pushes after the snapshot, with the current one and unused ones
          stream.kept = std::max(
              stream.kept, std::size_t{(stream.changes + per_push - 1) / per_push} - in.rounds());
        if (on_arrival() || in.last_pull() ||
            in.rounds() > (stream.asks.empty() ? 0 : stream.asks.back()))
          stream.asks.push_back(in.last_pull() ? all_rounds : in.rounds());
      }
    for (CellStream& stream : streams_)
      stream.contained.assign((stream.versions + std::size_t{1}) * link_->workers(), 0);
  }

  void begin_exchange() override {
    if (!program_->training) return;
    for (std::size_t c = 0; c < cells_.size(); ++c) {
      make_room(c);
      streams_[c].changes = 0;
      streams_[c].asked = 0;
      streams_[c].most_asked = 0;
      streams_[c].taken = 0;
      streams_[c].versions = 0;
      streams_[c].arrived.begin(cells_[c].layers.size());
      cells_[c].missing.store(0);
    }
    open();
    for (std::size_t c = 0; c < cells_.size(); ++c) on_arrival() ? ask_to_wait(c) : ask_next(c);
  }

  bool carry_out(Instruction const& in) override {
    if (updates(in.op))
      change(machine_, in);
    else if (pushes(in.op))
      push(in);
    else
      pull(in);
    return in.reaches_server();
  }

  [[gnu::cold]] void end_step(Machine&, std::exception_ptr const& why) override {
    if (!is_open() || !program_->training) return;  // evaluation exchanges nothing
    if (!why)
      count_staleness(0, program_->updates, [&](std::size_t c, int m) {
        return contained_in(streams_[c], streams_[c].version_of[m]);
      });
    close(why);
  }

  [[gnu::cold]] void add_memory(Memory& memory) const override {
    for (CellStream const& stream : streams_)
      for (ParameterBlock const& block : stream.pushes) memory.parameters += block.size();
  }

 private:
  struct CellStream {
    std::size_t kept = 1;               // pushes in memory
    FixedArray<ParameterBlock> pushes;  // [kept][layers]
    List<std::uint32_t> asks;           // rounds of the snapshots to ask for, in order; on arrival
                                        // of all snapshots
    std::size_t asked = 0;              // how many of these it has asked for; on arrival: taken
    std::uint32_t most_asked = 0;       // most rounds for which it has asked
    std::uint32_t taken = 0;         // in the order of workers: rounds of the snapshot that it has
    ArrivedRounds arrived;           // on arrival
    std::uint32_t changes = 0;       // made
    std::uint32_t versions = 0;      // versions made from snapshots so far
    List<std::uint32_t> version_of;  // [minibatches] number of the version that it sees
    List<std::uint32_t> contained;   // [versions + 1][workers] pushes of each, at least
  };

  [[nodiscard]] std::uint32_t* contained_in(CellStream& stream, std::uint32_t version) const {
    return stream.contained.data() + version * link_->workers();
  }
  [[nodiscard]] ParameterBlock& push_block(std::size_t c, std::uint32_t push, std::size_t l) {
    IndexRange const layers = cells_[c].layers;
    return streams_[c].pushes[push % streams_[c].kept * layers.size() + (l - layers.first)];
  }

  void make_room(std::size_t c) {
    CellStream& stream = streams_[c];
    std::size_t const count = stream.kept * cells_[c].layers.size();
    if (stream.pushes.size() >= count) return;
    stream.pushes = FixedArray<ParameterBlock>(count);
    for (std::uint32_t push = 0; push < stream.kept; ++push)
      for (std::size_t const l : cells_[c].layers)
        push_block(c, push, l).make(nullptr, machine_.parameters()[l].bytes_of_values());
  }

  /// Computes the change of a minibatch, and adds it to the sum since the last push.
  void change(Machine& machine, Instruction const& in) {
    auto const per_push = static_cast<std::uint32_t>(program_->push_minibatches);
    std::uint32_t const number = streams_[in.cell].changes++;
    for (std::size_t const l : cells_[in.cell].layers) {
      LayerParameters& own = machine_.parameters()[l];
      machine.change(own, in);
      ParameterBlock& sum = push_block(in.cell, number / per_push, l);
      std::byte* const made = own.stored().values[in.next_version].data();
      agreed().share(own, made);
      if (number % per_push != 0)
        own.add_values(sum.data(), made);
      else if (sum.size() != 0)
        std::memcpy(sum.data(), made, sum.size());
    }
  }

  void push(Instruction const& in) {
    bool const ends = static_cast<int>(streams_[in.cell].changes) == program_->updates;
    for (std::size_t const l : cells_[in.cell].layers) {
      link_->push(l, push_block(in.cell, in.round(), l).data(), ends);
      count(l, TrafficKind::pushes);
    }
    if (on_arrival()) ask_for_newest(in.cell);
  }

  /// Makes a version of the weights: from a snapshot and the worker's own later pushes, each as one
  /// sum; or from the previous version and the change in the slot of the new one.
  void pull(Instruction const& in) {
    CellStream& stream = streams_[in.cell];
    if (in.snapshot()) {
      std::fill_n(contained_in(stream, ++stream.versions), link_->workers(), all_rounds);
      count_answers(in);
    }
    for (std::size_t const l : cells_[in.cell].layers) {
      LayerParameters& own = machine_.parameters()[l];
      std::byte* const to = own.stored().values[in.next_version].data();
      if (!in.snapshot()) {
        own.add_values(to, own.stored().values[in.version].data());
        continue;
      }
      if (in.last_pull()) {
        link_->take(l, all_rounds, to);
        continue;
      }
      VersionTag const tag =
          take(l, in.rounds(), to, in.rounds() + in.waves(),
               [&](std::uint32_t push) { return push_block(in.cell, push, l).data(); });
      note_contained(l, tag, in.rounds(), contained_in(stream, stream.versions));
    }
    if (!in.snapshot() || in.last_pull()) return;
    if (on_arrival()) {
      ++stream.asked;
      ask_to_wait(in.cell);
    } else if (in.rounds() != 0) {
      ask_next(in.cell);
    }
  }
  /// Counts what was received for a snapshot.
  void count_answers(Instruction const& in) {
    IndexRange const layers = cells_[in.cell].layers;
    CellStream& stream = streams_[in.cell];
    bool const taken = in.last_pull() || (!on_arrival() && in.rounds() > stream.taken);
    if (taken) stream.taken = in.rounds();
    for (std::size_t const l : layers) {
      std::uint32_t answers = taken ? 1 : 0;
      if (on_arrival()) answers += stream.arrived.take_answers(l - layers.first);
      while (answers-- > 0) count(l, TrafficKind::pulls);
    }
  }

  /// Asks for the next snapshot, unless the previous one has not arrived.
  void ask_next(std::size_t c) {
    CellStream& stream = streams_[c];
    if (stream.asked == stream.asks.size() || cells_[c].missing.load() != 0) return;
    std::uint32_t const rounds = stream.asks[stream.asked++];
    cells_[c].missing.store(cells_[c].layers.size());
    ask(c, rounds);
  }
  /// On arrival: asks for the next snapshot, if it will be waited for and was not asked for yet.
  void ask_to_wait(std::size_t c) {
    CellStream& stream = streams_[c];
    std::uint32_t const rounds = stream.asks[stream.asked];
    if (rounds == all_rounds)
      cells_[c].missing.store(cells_[c].layers.size());
    else if (rounds <= std::max(stream.arrived.there(), stream.most_asked))
      return;
    ask(c, rounds);
  }
  /// On arrival, behind a push: asks for the newest weights, or for some that are newer still if it
  /// must wait for those: for the next snapshot or, if that need not be waited for, the one after.
  void ask_for_newest(std::size_t c) {
    CellStream& stream = streams_[c];
    std::uint32_t const there = stream.arrived.there();
    std::uint32_t rounds = stream.asks[stream.asked];
    if (rounds == all_rounds) return;  // it has asked for that
    if (rounds <= there) rounds = stream.asks[stream.asked + 1];
    if (rounds <= there || rounds == all_rounds)
      ask(c, 0);
    else if (rounds > stream.most_asked)
      ask(c, rounds);
  }
  void ask(std::size_t c, std::uint32_t rounds) {
    streams_[c].most_asked = std::max(streams_[c].most_asked, rounds);
    for (std::size_t const l : cells_[c].layers) link_->ask(l, rounds);
  }
  /// Whether a snapshot is the newest.
  [[nodiscard]] bool on_arrival() const noexcept {
    return staleness_.adds == staleness::Adds::on_arrival;
  }

  void arrived(std::size_t layer, std::uint32_t rounds) noexcept override {
    if (rounds == all_rounds) return one_arrived(layer, program_->pushes() + 1);
    if (!on_arrival()) return one_arrived(layer, rounds);
    std::size_t const c = cell_of(layer);
    streams_[c].arrived.arrive(layer - cells_[c].layers.first, rounds,
                               [&](std::uint32_t there) { tell(c, there); });
  }

  FixedArray<CellStream> streams_;  // [cells]
};

}  // namespace stagger::detail
