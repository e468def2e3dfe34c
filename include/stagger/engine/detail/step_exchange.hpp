// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Steps of a worker that trains with others through a parameter server: it pushes
///         gradients and waits for weights.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

#include <stagger/core/error.hpp>
#include <stagger/engine/detail/server_exchange.hpp>

namespace stagger::detail {

/// At the end of a step, gradients go to the server, and the weights of the next step come back.
class StepExchange final : public ServerExchange {
 public:
  /// @throws Error  bad_configuration for a model that cannot be, mismatch for a worker that differs
  ///                from the others
  [[gnu::cold]] StepExchange(std::shared_ptr<ParameterLink> link, Machine& machine,
                             StalenessModel const& staleness,
                             std::shared_ptr<void const> const& kept)
      : ServerExchange(std::move(link), machine, possible(staleness), kept) {}
  ~StepExchange() override { leave(); }

  void begin_step() override {
    if (!program_->training) return;
    if (open()) steps_ = 0;
  }

  void execute(Machine&, Instruction const& in) override {
    CellLayers& cell = cells_[in.cell];
    in.op == Op::push ? push(cell) : pull(cell);
  }

  [[gnu::cold]] void end_step(Machine&, std::exception_ptr why) override {
    if (!is_open() || !program_->training) return;  // evaluation exchanges nothing
    ++steps_;
    if (why) close(why);
  }

 private:
  /// Then gradients are zero.
  void push(CellLayers& cell) {
    cell.missing.store(cell.count);
    for (std::size_t l = 0; l < cell.count; ++l) {
      LayerParameters& own = layer(cell, l);
      link_->push(cell.first + l, own.stored().gradients.data(), false);
      own.zero_gradients();
    }
    for (std::size_t l = 0; l < cell.count; ++l) link_->ask(cell.first + l, needed());
  }
  /// What the next step is to see.
  void pull(CellLayers& cell) {
    for (std::size_t l = 0; l < cell.count; ++l)
      link_->take(cell.first + l, needed(), layer(cell, l).values().data());
  }
  /// Pushes of every worker that the next step is to see.
  [[nodiscard]] std::uint32_t needed() const {
    return static_cast<std::uint32_t>(std::max(0, staleness_.needs(staleness_.policy, steps_ + 1)));
  }

  /// Refuses what cannot be waited for.
  [[gnu::cold]] static StalenessModel const& possible(StalenessModel const& model) {
    if (model.pushes != staleness::Pushes::gradients || model.push_minibatches != 1)
      raise(Errc::bad_configuration,
            "a step pushes its gradients, once; let a staleness model that pushes changes or "
            "several minibatches be taken by stream: synchronous = false");
    for (int m = 0; m < looked_at; ++m) {
      int const needs = model.needs(model.policy, m);
      if (needs > m)
        raise(Errc::bad_configuration, "the staleness model needs ", needs,
              " pushes of every worker at minibatch ", m,
              ", before which a worker makes only as many as that; let it need fewer");
      if (needs < m && model.adds == staleness::Adds::in_worker_order)
        raise(Errc::bad_configuration, "the staleness model needs ", needs,
              " pushes of every worker at minibatch ", m,
              " and adds gradients in the order of workers, so that a worker would lack its own; "
              "let it add on arrival, or push changes");
    }
    return model;
  }

  void arrived(std::size_t layer, std::uint32_t) noexcept override { one_arrived(layer, 1); }
  void arrived_last(std::size_t) noexcept override {}  // steps do not ask for it

  int steps_ = 0;  // since the link opened
};

}  // namespace stagger::detail
