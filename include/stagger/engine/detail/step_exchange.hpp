// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Steps that exchange parameters with a server: the worker pushes gradients and waits for
///         weights, or takes several local steps and continues from the mean of all workers.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <utility>

#include <stagger/core/error.hpp>
#include <stagger/engine/detail/server_exchange.hpp>

namespace stagger::detail {

/// At the end of a step, the worker pushes gradients and receives the weights of the next step.
class StepExchange : public ServerExchange {
 public:
  /// @throws Error  bad_configuration for a staleness model that cannot work
  [[gnu::cold]] StepExchange(std::shared_ptr<ParameterLink> link, Machine& machine,
                             StalenessModel const& staleness,
                             FixedArray<LayerParameters> packed = {})
      : ServerExchange(std::move(link), machine, possible(staleness), std::move(packed)) {}
  ~StepExchange() override { leave(); }

  void begin_step() override {
    if (!program_->training) return;
    if (open()) {
      steps_ = 0;
      for (CellLayers& cell : cells_) cell.others = 0;
    }
    for (CellLayers& cell : cells_) cell.seen = cell.others;
  }

  bool execute(Machine&, Instruction const& in) override {
    CellLayers& cell = cells_[in.cell];
    if (in.op == Op::pull) {
      pull(cell);
      return true;
    }
    push(cell, [this](std::size_t l) { return exchanged()[l].stored().gradients.data(); });
    for (std::size_t l = 0; l < cell.count; ++l) layer(cell, l).zero_gradients();
    return true;
  }

  [[gnu::cold]] void end_step(Machine&, std::exception_ptr why) override {
    if (!is_open() || !program_->training) return;  // evaluation exchanges nothing
    if (!why) count_staleness(steps_, 1, [&](std::size_t c, int) { return cells_[c].seen; });
    ++steps_;
    if (why) close(why);
  }

 protected:
  /// Pushes the layers of a cell, and asks for the weights of the next step.
  /// @param of  (layer) -> the values to push
  template <class Of> void push(CellLayers& cell, Of of) {
    cell.missing.store(cell.count);
    for (std::size_t l = cell.first; l < cell.first + cell.count; ++l) {
      link_->push(l, of(l), false);
      count(l, TrafficKind::pushes);
    }
    for (std::size_t l = cell.first; l < cell.first + cell.count; ++l) link_->ask(l, needed());
  }
  void pull(CellLayers& cell) {
    cell.others = stagger::detail::all_rounds;
    for (std::size_t l = cell.first; l < cell.first + cell.count; ++l) {
      VersionTag const tag = link_->take(l, needed(), exchanged()[l].values().data());
      cell.others = std::min(cell.others, tag.others);
      count(l, TrafficKind::pulls);
      take_up(l);
    }
  }

  int steps_ = 0;  // taken since the link opened

 private:
  /// Pushes of every worker that the next step's weights must contain.
  [[nodiscard]] std::uint32_t needed() const {
    return static_cast<std::uint32_t>(std::max(0, staleness_.needs(staleness_.policy, steps_ + 1)));
  }

  /// Refuses a staleness model whose needs would never be met.
  [[gnu::cold]] static StalenessModel possible(StalenessModel const& model) {
    bool const mean = averages(model.pushes);
    if (!mean && (model.pushes != staleness::Pushes::gradients || model.push_minibatches != 1))
      raise(Errc::bad_configuration,
            "a step pushes its gradients, once; let a staleness model that pushes changes or "
            "several minibatches be taken by stream: synchronous = false");
    if (mean && model.adds != staleness::Adds::in_worker_order)
      raise(Errc::bad_configuration,
            "a mean of weights is taken once all workers have pushed theirs; let the staleness "
            "model add in the order of workers");
    for (int m = 0; m < looked_at; ++m) {
      int const needs = model.needs(model.policy, m);
      int const made = m / model.push_minibatches;
      if (needs > made)
        raise(Errc::bad_configuration, "the staleness model needs ", needs,
              " pushes of every worker at minibatch ", m, ", before which a worker makes only ",
              made, "; let it need fewer");
      if (needs < made && model.adds == staleness::Adds::in_worker_order)
        raise(Errc::bad_configuration, "the staleness model needs ", needs,
              " pushes of every worker at minibatch ", m,
              " and adds in the order of workers, so that a worker would lack its own; "
              "let it add on arrival, or push changes");
    }
    return model;
  }

  void arrived(std::size_t layer, std::uint32_t) noexcept override { one_arrived(layer, 1); }
  void arrived_last(std::size_t) noexcept override {}  // steps do not ask for it
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

  bool execute(Machine&, Instruction const& in) override {
    CellLayers& cell = cells_[in.cell];
    bool const meets = (steps_ + 1) % staleness_.push_minibatches == 0;
    if (in.op == Op::pull) {
      if (meets) pull(cell);
    } else if (meets) {
      update(in);
      for (std::size_t l = 0; l < cell.count; ++l) pack(cell.first + l);
      push(cell, [this](std::size_t l) { return exchanged()[l].values().data(); });
    } else {
      if (machine_.commit()) update(in);  // from here on the step cannot fail
      tell(in.cell, 1);
    }
    return meets;
  }

  [[nodiscard]] std::uint64_t bytes() const override {
    std::uint64_t sum = 0;
    for (LayerParameters const& layer : packed_) sum += layer.bytes();
    return sum;
  }

 private:
  /// Takes the optimizer's step for a cell's layers, unless they were updated before, and, since
  /// what comes back from the server is written there, for their copies.
  void update(Instruction const& in) {
    if (program_->cells[in.cell].alone) return;
    CellLayers const& cell = cells_[in.cell];
    ModelState& model = machine_.model;
    UpdateStep const step{machine_.run.gradient_scale(model, program_->cells[in.cell].rank),
                          machine_.steps() + 1};
    auto const update = [&](std::size_t l) {
      model.optimizer.update(machine_.optimizer(), machine_.parameters()[l], step);
    };
    for (std::size_t l = cell.first; l < cell.first + cell.count; ++l) {
      if (!model.counted(l)) continue;
      update(l);
      if (model.grouped != nullptr) model.grouped->each_copy(l, update);
    }
  }

  void pack(std::size_t l) {
    if (packed_.size() == 0 || !machine_.model.counted(l)) return;
    std::byte* to = packed_[l].values().data();
    for (auto const& block : machine_.parameters()[l].blocks())
      if (!block.empty()) to = std::copy(block.begin(), block.end(), to);
  }
  void received(std::size_t l) override {
    if (packed_.size() == 0 || !machine_.model.counted(l)) return;
    std::byte const* from = packed_[l].values().data();
    for (auto const& block : machine_.parameters()[l].blocks()) {
      if (!block.empty()) std::memcpy(block.data(), from, block.size());
      from += block.size();
    }
  }
};

}  // namespace stagger::detail
