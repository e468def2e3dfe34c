// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Steps that exchange parameters with a server: the worker pushes gradients or changes and
///         waits for weights, or takes several local steps and continues from the mean of all
///         workers.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <utility>

#include <stagger/core/combinations.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/engine/detail/exchange/server_exchange.hpp>
#include <stagger/parameters/parameter_memory.hpp>
#include <stagger/program/exchange_rules.hpp>

namespace stagger::detail {

/// At the end of a step, the worker pushes its gradients, or the changes that its optimizer makes
/// of them, and receives the weights of the next step. To these it adds its own changes that they
/// lack; it keeps as many of them as weights may lack, as further versions of the values.
class StepExchange : public ServerExchange {
 public:
  /// @throws Error  bad_configuration for a staleness model that cannot work
  [[gnu::cold]] StepExchange(std::shared_ptr<ParameterLink> link, Machine& machine,
                             StalenessModel const& staleness)
      : StepExchange(std::move(link), machine, staleness, {}) {
    require_pushes_in_steps(staleness);
  }
  ~StepExchange() override { leave(); }

  void begin_exchange() override {
    if (!program_->training) return;
    agreed().require(machine_, staleness_);
    if (open()) {
      steps_ = 0;
      rounds_ = 0;
      for (CellLayers& cell : cells_)
        std::fill(cell.contained.begin(), cell.contained.end(), std::uint32_t{0});
    }
    for (CellLayers& cell : cells_) {
      std::copy(cell.contained.begin(), cell.contained.end(), cell.seen.begin());
      cell.missing.store(cell.layers.size());
    }
    std::uint32_t const before = rounds_;
    rounds_ = std::max(rounds_, needed());
    asks_ = rounds_ != before || staleness_.adds != staleness::Adds::in_worker_order;
    if (!asks_ && renews_) refuse_without_own(static_cast<int>(rounds_), steps_ + 1);
  }

  bool carry_out(Instruction const& in) override {
    if (!pushes(in.op)) {
      pull(in.cell);
      return asks_;
    }
    IndexRange const layers = pushed_by(in);
    if (program_->pushes_groups)  // some are pushed before all gradients of the step are there
      static_cast<void>(StepEnd{machine_.model, machine_.run}.finite(
          layers, program_->cells[in.cell].rank, nullptr, on_device() ? packed_.data() : nullptr));
    double const scale = gradient_scale(machine_, in);
    bool const changes = kept_ != 0;
    auto& on_host = on_device() ? packed_ : machine_.parameters();
    if (!changes)
      for (std::size_t const l : layers) scale_gradients(on_host[l], scale);
    else if (on_device())
      for (std::size_t const l : layers) agreed().share(packed_[l], kept(l, made()).data());
    else
      change(layers, scale);
    push(in.cell, layers, [&](std::size_t l) {
      if (exchanges_memory(in.cell))
        on_host[l].exchange(changes ? 1 : LayerParameters::gradients,
                            [&](ParameterBlock& values) { link_->hand_over(l, values); });
      else
        link_->push(l, changes ? change_of(l, made()) : on_host[l].stored().gradients.data(),
                    false);
    });
    if (!changes && !on_device())
      for (std::size_t const l : layers) machine_.parameters()[l].zero_gradients();
    return true;
  }

  [[nodiscard]] Makes makes() const noexcept override {
    return kept_ != 0 ? Makes::kernel : Makes::gradients;
  }
  void make_push(Instruction const& in) override {
    UpdateStep step{1, machine_.steps() + 1, 0, 1};
    for (std::size_t const l : pushed_by(in)) {
      LayerParameters& own = machine_.parameters()[l];
      if (kept_ != 0) {
        machine_.model.optimizer.change(machine_.optimizer(), own, step);
        copy_enqueued(own, kept(l, made()).span(), own.stored().values[1].data());
      } else {
        copy_enqueued(own, packed_[l].stored().gradients.span(), own.stored().gradients.data());
      }
    }
  }

  [[gnu::cold]] void end_step(Machine&, std::exception_ptr const& why) override {
    if (!is_open() || !program_->training) return;  // evaluation exchanges nothing
    if (!why) count_staleness(steps_, 1, [&](std::size_t c, int) { return cells_[c].seen.data(); });
    ++steps_;
    if (why) close(why);
  }

 protected:
  [[gnu::cold]] StepExchange(std::shared_ptr<ParameterLink> link, Machine& machine,
                             StalenessModel const& staleness, FixedArray<LayerParameters> packed)
      : ServerExchange(std::move(link), machine, staleness, std::move(packed)),
        kept_(changes_kept()),
        renews_(staleness.pushes == staleness::Pushes::gradients ||
                (kept_ != 0 && staleness.adds != staleness::Adds::in_worker_order)) {
    for (std::size_t l = 0; kept_ != 0 && l < machine.parameters().size(); ++l) {
      if (!machine.model.counted(l)) continue;
      machine.parameters()[l].reserve_versions(1 + (on_device() ? 1 : kept_));
      if (on_device()) packed_[l].reserve_versions(1 + kept_);
    }
  }

  /// Pushes layers of a cell, and asks for their weights of the next step, unless the last ones are
  /// still what the server would answer.
  /// @param layers  all of the cell, or one of its gradient groups
  /// @param send    (layer) pushes it
  template <class Send> void push(std::size_t c, IndexRange layers, Send send) {
    for (std::size_t const l : layers) {
      send(l);
      if (!program_->pushes_sums) count(l, TrafficKind::pushes);
    }
    if (!asks_) return tell(c, 1);
    for (std::size_t const l : layers) link_->ask(l, rounds_);
  }
  void pull(std::size_t c) {
    CellLayers& cell = cells_[c];
    std::fill(cell.contained.begin(), cell.contained.end(), all_rounds);
    for (std::size_t const l : cell.layers) {
      bool const lays_on = kept_ != 0 && machine_.model.counted(l);
      VersionTag const tag =
          exchanges_memory(c)
              ? machine_.parameters()[l].exchange(
                    0, [&](ParameterBlock& to) { return link_->take_over(l, rounds_, to); })
              : take(l, rounds_, exchanged()[l].values().data(), lays_on ? made() + 1 : 0,
                     [&](std::uint32_t push) { return change_of(l, push); });
      note_contained(l, tag, rounds_, cell.contained.data());
      if (program_->pushes_sums) count(l, TrafficKind::pushes);  // not from two threads
      if (asks_) count(l, TrafficKind::pulls);
      take_up(l);
    }
  }

  int steps_ = 0;  // taken since the link opened

 private:
  /// Whether a cell's weights and pushes may exchange memory with the link, which saves copies:
  /// each step's weights contain its push, so that both are used once, and nobody else has views of
  /// them.
  [[nodiscard]] bool exchanges_memory(std::size_t c) const noexcept {
    return renews_ && machine_.model.grouped == nullptr && !on_device() &&
           machine_.run.storage[program_->cells[c].stage].size() == 1;
  }
  /// Pushes that the worker had made before this step.
  [[nodiscard]] std::uint32_t made() const { return static_cast<std::uint32_t>(steps_); }
  /// Pushes of every worker that the next step's weights must contain. They lack no more own ones
  /// than are kept, whatever a staleness model says beyond the steps that were looked at.
  [[nodiscard]] std::uint32_t needed() const {
    auto const needs =
        static_cast<std::uint32_t>(std::max(0, staleness_.needs(staleness_.policy, steps_ + 1)));
    bool const lays_on = kept_ != 0 && staleness_.adds == staleness::Adds::in_worker_order;
    return lays_on && made() + 1 > kept_ ? std::max(needs, made() + 1 - kept_) : needs;
  }

  /// How many of its own changes a worker keeps: those that weights may lack, and at least the one
  /// that it pushes; 0 if it pushes none.
  /// @throws Error  bad_configuration for a staleness model that cannot work
  [[nodiscard]] [[gnu::cold]] std::uint32_t changes_kept() const {
    require_possible_steps(staleness_);
    if (staleness_.pushes != staleness::Pushes::changes) return 0;
    if (staleness_.adds != staleness::Adds::in_worker_order) return 1;  // weights contain all
    std::uint32_t const most = most_ahead(staleness_);
    if (most == WorkerRules::unlimited)
      raise(Errc::bad_configuration,
            "the staleness model adds in the order of workers and sets no limit to how far they "
            "are apart, so that a worker would keep all of its changes; let needs() grow with the "
            "minibatch, or let it add on arrival");
    return std::max(most, 2U) - 1;
  }
  /// The values of a layer's change in a step, if it is kept.
  [[nodiscard]] std::byte const* change_of(std::size_t l, std::uint32_t step) const {
    return machine_.model.counted(l) ? kept(l, step).data() : nullptr;
  }
  [[nodiscard]] ParameterBlock const& kept(std::size_t l, std::uint32_t step) const {
    auto const& on_host = on_device() ? packed_ : machine_.parameters();
    return on_host[l].stored().values[1 + step % kept_];
  }
  /// Makes the changes of this step, from the weights that it saw.
  void change(IndexRange layers, double gradient_scale) {
    std::size_t const slot = 1 + made() % kept_;
    UpdateStep step{gradient_scale, machine_.steps() + 1, 0, slot};
    step.only_added = true;
    for (std::size_t const l : layers) {
      LayerParameters& own = machine_.parameters()[l];
      if (!machine_.model.counted(l)) {
        own.zero_gradients();
        continue;
      }
      machine_.model.optimizer.change(machine_.optimizer(), own, step);
      agreed().share(own, own.stored().values[slot].data());
    }
  }

  void arrived(std::size_t layer, std::uint32_t) noexcept override { one_arrived(layer, 1); }
  void read_moved() override {
    require_rule(Rule::moved_changes,
                 feature::moves_stages.with(feature::keeps_changes, kept_ > 1));
    ServerExchange::read_moved();
  }

  std::uint32_t kept_;        // changes in memory; 0 if gradients or weights are pushed
  bool renews_;               // each step's weights are new and contain its push
  std::uint32_t rounds_ = 0;  // that the next step's weights contain
  bool asks_ = true;          // whether this step asks for weights
};

/// The worker's own optimizer takes each step; at the end of a period the worker pushes its weights
/// and receives the mean.
class LocalExchange final : public StepExchange {
 public:
  /// @throws Error  as for StepExchange
  [[gnu::cold]] LocalExchange(std::shared_ptr<ParameterLink> link, Machine& machine,
                              StalenessModel const& staleness)
      : StepExchange(std::move(link), machine, staleness,
                     staleness.pushes == staleness::Pushes::weights_and_state
                         ? layers_told(machine.model, true)
                         : FixedArray<LayerParameters>()) {}
  ~LocalExchange() override { leave(); }

  [[gnu::cold]] void runs(bool const* ranks) override {
    StepExchange::runs(ranks);
    spread_ = false;
    for (std::size_t l = 0; l < machine_.parameters().size(); ++l) {
      bool const here = machine_.parameters()[l].present();
      spread_ = spread_ || !here;
      if (packed_.size() != 0 && !here)
        packed_[l].release();
      else if (packed_.size() != 0 && packed_[l].hold())
        packed_[l].release_gradients();
    }
  }

  bool carry_out(Instruction const& in) override {
    CellLayers const& cell = cells_[in.cell];
    bool const exchanges = ends_period();
    if (!pushes(in.op)) {
      if (exchanges) pull(in.cell);
    } else if (exchanges) {
      if (!on_device()) make_push(in);
      push(in.cell, cell.layers,
           [this](std::size_t l) { link_->push(l, exchanged()[l].values().data(), false); });
    } else if (on_device()) {
      tell(in.cell, 1);
    } else {
      // From here on the step cannot fail, unless another process fails: then, as after any step
      // that fails, weights are those of the last mean.
      if (spread_ ? !machine_.failed() : machine_.commit()) update(in);
      tell(in.cell, 1);
    }
    return exchanges;
  }

  [[nodiscard]] Makes makes() const noexcept override {
    return ends_period() ? Makes::kernel : Makes::update;
  }
  void make_push(Instruction const& in) override {
    update(in);
    for (std::size_t const l : cells_[in.cell].layers)
      if (ends_period()) pack(l);
  }

 private:
  /// Whether weights are exchanged at the end of the step.
  [[nodiscard]] bool ends_period() const noexcept {
    return (steps_ + 1) % staleness_.push_minibatches == 0;
  }
  /// What is packed of a layer: its values, and its states if they are exchanged.
  [[nodiscard]] std::array<std::span<std::byte>, 3> packed_blocks(std::size_t l) const noexcept {
    auto blocks = machine_.parameters()[l].blocks();
    if (staleness_.pushes != staleness::Pushes::weights_and_state) blocks[1] = blocks[2] = {};
    return blocks;
  }
  /// The process that ran a stage before has sent its values, while those of the server are from
  /// the last mean. Reading them tells the server which process exchanges the stage.
  void read_moved() override {
    ParameterBlock unused;
    for (CellLayers const& cell : cells_)
      for (std::size_t const l : cell.layers) {
        unused.make(nullptr, exchanged()[l].bytes_of_values());
        link_->read(l, unused.data());
        count(l, TrafficKind::pulls);
      }
  }
  /// Takes the optimizer's step for a cell's layers, unless they were updated before, and, since
  /// what comes back from the server is written there, for their copies.
  void update(Instruction const& in) {
    if (program_->cells[in.cell].alone) return;
    ModelState& model = machine_.model;
    UpdateStep step{gradient_scale(machine_, in), machine_.steps() + 1};
    step.only_added = !on_device();
    auto const update = [&](std::size_t l) {
      model.optimizer.update(machine_.optimizer(), machine_.parameters()[l], step);
    };
    for (std::size_t const l : cells_[in.cell].layers) {
      if (!model.counted(l)) continue;
      update(l);
      if (model.grouped != nullptr) model.grouped->each_copy(l, update);
    }
  }

  void pack(std::size_t l) {
    if (packed_.size() == 0 || !machine_.model.counted(l)) return;
    std::byte* to = packed_[l].values().data();
    for (auto const& block : packed_blocks(l)) {
      if (on_device())
        copy_enqueued(machine_.parameters()[l], {to, block.size()}, block.data());
      else if (!block.empty())
        std::memcpy(to, block.data(), block.size());
      to += block.size();
    }
  }
  void received(std::size_t l) override {
    if (packed_.size() == 0 || !machine_.model.counted(l)) return;
    std::byte const* from = packed_[l].values().data();
    for (auto const& block : packed_blocks(l)) {
      if (on_device())
        copy_enqueued(machine_.parameters()[l], block, from);
      else if (!block.empty())
        std::memcpy(block.data(), from, block.size());
      from += block.size();
    }
  }

  bool spread_ = false;  // whether other processes run some of the layers
};

}  // namespace stagger::detail
