// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Steps of a worker with late layers, whose gradients are exchanged while the next step
///         computes.
/// @source Chen et al., "OSP: Boosting Distributed Model Training with 2-stage Synchronization",
///         ICPP 2023, section 4.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

#include <stagger/core/combinations.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/engine/detail/exchange/server_exchange.hpp>
#include <stagger/parameters/late_layers.hpp>
#include <stagger/parameters/parameter_memory.hpp>
#include <stagger/program/check_program.hpp>
#include <stagger/program/version_passes.hpp>

namespace stagger::detail {

/// The loss of the step, as in its metrics.
[[nodiscard]] inline double loss_of_step(Machine const& machine) {
  StepArguments const& step = machine.arguments();
  double sum = 0;
  for (int m = 0; m < machine.program().microbatches; ++m) sum += step.losses[m];
  return sum * step.scales[0];
}

/// Whether the stream of a link has ended by an error, and by which.
struct LinkStatus final : StepStatus {
  using StepStatus::begin_status, StepStatus::failure;
};

/// A layer whose late values had not arrived when the first forward of its stage in a step began.
/// It runs in place of the layer in that forward, and looks for them again just before the layer.
class LateForward {
 public:
  /// @param taker  what takes late values that have arrived: take(taker, layer)
  void replace(LayerRun& layer, void* taker, void (*take)(void* taker, std::size_t layer),
               std::size_t number) {
    replaced_ = &layer;
    object_ = layer.object;
    ops_ = layer.ops;
    taker_ = taker;
    take_ = take;
    number_ = number;
    own_ = *layer.ops;
    own_.forward = &LateForward::forward;
    layer.object = this;
    layer.ops = &own_;
  }
  /// Puts the layer back in its place.
  void restore() noexcept {
    if (replaced_ == nullptr) return;
    replaced_->object = object_;
    replaced_->ops = ops_;
    replaced_ = nullptr;
  }

 private:
  static void forward(void* self, Context& context, void const* x, void* y, void* saved) {
    auto& late = *static_cast<LateForward*>(self);
    late.restore();
    late.take_(late.taker_, late.number_);
    late.ops_->forward(late.object_, context, x, y, saved);
  }

  LayerRun* replaced_ = nullptr;  // null: the layer is in its place
  void* object_ = nullptr;        // of the layer
  LayerOps const* ops_ = nullptr;
  void* taker_ = nullptr;
  void (*take_)(void*, std::size_t) = nullptr;
  std::size_t number_ = 0;
  LayerOps own_{};
};

/// What an exchange with late layers knows of a layer.
struct LateLayer {
  // For even and odd steps: how many of the first bytes of its values are late; 0 once they have
  // arrived.
  std::array<std::size_t, 2> late{};
  std::atomic<bool> here{false};  // whether the late values of the step before have arrived
  ParameterBlock kept{};          // memory of the prediction
  LateForward forward;
};

/// Steps are counted from 0 since the link opened. The first begins when the server says which
/// layers are late in it: none, unless the worker comes back among others that went on without it.
/// At the beginning of each other step the worker asks for the values that were late in the step
/// before, and which layers are late in this one. The first signal of a cell says that both have
/// arrived; after the computation the cell takes these values and pushes the gradients of urgent
/// layers. The second signal says that the urgent layers' new values have arrived. Then the cell
/// pushes late layers and replaces their values by predicted ones. If a layer is split, its first
/// part is late and the rest is urgent.
class OverlappedExchange final : public ServerExchange {
 public:
  [[gnu::cold]] OverlappedExchange(std::shared_ptr<ParameterLink> link, Machine& machine,
                                   StalenessModel const& staleness)
      : ServerExchange(std::move(link), machine, staleness), layers_(machine.parameters().size()) {
    machine.options().non_finite = NonFinite::fail;  // see Rule::late_looks
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      LayerParameters& own = machine.parameters()[l];
      if (calls().predict != nullptr) own.reserve_versions(2);
      if (own.present()) make_memory(l);
    }
  }
  ~OverlappedExchange() override { leave(); }

  [[gnu::cold]] void runs(bool const* ranks) override {
    ServerExchange::runs(ranks);
    for (CellLayers const& cell : cells_) each_layer(cell, [&](std::size_t l) { make_memory(l); });
  }

  void begin_exchange() override {
    if (program_->training) agreed().require(machine_, staleness_);
    open();
    ask(program_->training && known_.load() != steps_);
  }

  bool carry_out(Instruction const& in) override {
    if (pushes(in.op))
      push(in);
    else if (in.snapshot())
      pull(machine_, in);
    else
      correct(in);
    return in.reaches_server();
  }

  [[gnu::cold]] void end_step(Machine&, std::exception_ptr const& why) override {
    for (LateLayer& layer : layers_) layer.forward.restore();
    if (!is_open() || !program_->exchanges()) return;
    if (why) return close(why);
    if (!program_->training) return;
    count_staleness(static_cast<int>(steps_), 1,
                    [&](std::size_t c, int) { return cells_[c].seen.data(); });
    ++steps_;
  }

  [[nodiscard]] [[gnu::cold]] std::shared_ptr<Program const> late_answers(
      Program const& program) const override {
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      if (late(l, steps_ - 1) == 0) continue;
      auto answers = std::make_shared<Program const>(only_answers(program));
      require_ends(*answers);
      return answers;
    }
    return nullptr;
  }
  [[gnu::cold]] void await_late_answers() override {
    if (!is_open() || !program_->exchanges()) return;
    try {
      ask(false);
      await_answer("late values have not arrived", [this] {
        return std::all_of(cells_.begin(), cells_.end(), [](auto& c) { return c.missing == 0; });
      });
      for (CellLayers const& cell : cells_) each_layer(cell, [&](std::size_t l) { take_late(l); });
    } catch (Error const& error) {
      close(std::current_exception());
      if (error.code() != Errc::peer_failed) throw;  // otherwise the weights are now the server's
    }
  }
  [[gnu::cold]] void add_memory(Memory& memory) const override {
    for (LateLayer const& layer : layers_) memory.parameters += layer.kept.size();
  }

 private:
  /// @param not_here  what is waited for and has not come
  template <class Here> [[gnu::cold]] void await_answer(char const* not_here, Here here) {
    await(*link_, not_here, machine_.options().deadline_s,
          [&] { return here() || link_status_.failed(); });
    if (link_status_.failed()) std::rethrow_exception(link_status_.failure());
  }
  [[gnu::cold]] void begun() override {
    steps_ = 0;
    known_.store(all_rounds);
    link_->ask_late(0);
    await_answer(not_let_in, [this] { return known_.load() == 0; });
  }
  [[gnu::cold]] void make_memory(std::size_t l) {
    std::size_t const bytes = calls().remember ? machine_.parameters()[l].bytes_of_values() : 0;
    if (layers_[l].kept.size() != bytes) layers_[l].kept.make(nullptr, bytes);
  }
  /// Asks for the values that were late in the step before.
  /// @param which  whether to ask also which layers are late in this one
  void ask(bool which) {
    for (std::size_t c = 0; c < cells_.size(); ++c) {
      std::size_t missing = which ? 1 : 0;
      each_layer(cells_[c], [&](std::size_t l) {
        layers_[l].here.store(false);
        if (late(l, steps_ - 1) != 0) ++missing;
      });
      cells_[c].missing.store(missing);
      if (missing == 0) tell(c, 1);
    }
    for (CellLayers& cell : cells_)
      each_layer(cell, [&](std::size_t l) {
        if (ByteRange const part{0, late(l, steps_ - 1)}; part.last != 0)
          link_->ask(l, steps_, part);
      });
    if (which) link_->ask_late(steps_);
  }

  [[nodiscard]] LateCalls const& calls() const noexcept { return *staleness_.late; }
  [[nodiscard]] std::size_t late(std::size_t l, std::uint32_t step) const noexcept {
    return layers_[l].late[step % 2];
  }
  /// The part of a layer that is not late in this step.
  [[nodiscard]] ByteRange urgent(std::size_t l) const {
    return {late(l, steps_), machine_.parameters()[l].bytes_of_values()};
  }
  /// Calls `body` for each layer with parameters, in forward order.
  template <class Body> void each_layer(CellLayers const& cell, Body body) {
    for (std::size_t const l : cell.layers)
      if (machine_.parameters()[l].bytes_of_values() != 0) body(l);
  }

  /// Takes the late values of a layer, if they have arrived.
  void take_late(std::size_t l) {
    LateLayer& layer = layers_[l];
    ByteRange const part{0, late(l, steps_ - 1)};
    if (part.last == 0 || !layer.here.load()) return;
    layer.late[(steps_ - 1) % 2] = 0;
    LayerParameters& own = machine_.parameters()[l];
    link_->take(l, steps_, own.values().data(), part);
    count(l, TrafficKind::pulls, part);
    if (calls().remember != nullptr)
      calls().remember(staleness_.policy, own, layer.kept.data(), part);
  }
  /// Takes those of a cell's layers that have arrived, and lets its first forward look for the
  /// rest.
  void correct(Instruction const& in) {
    CellLayers const& cell = cells_[in.cell];
    StageRun& stage = machine_.run.cells[in.cell];
    each_layer(cell, [&](std::size_t l) {
      take_late(l);
      if (!program_->training || late(l, steps_ - 1) == 0) return;
      auto const take = [](void* self, std::size_t layer) {
        static_cast<OverlappedExchange*>(self)->take_late(layer);
      };
      layers_[l].forward.replace(stage.layers[l - cell.layers.first], this, take, l);
    });
  }

  void push(Instruction const& in) {
    CellLayers& cell = cells_[in.cell];
    std::uint32_t seen = steps_;
    each_layer(cell, [&](std::size_t l) {
      if (late(l, steps_ - 1) != 0) seen = steps_ - 1;
    });
    std::fill(cell.seen.begin(), cell.seen.end(), seen);
    each_layer(cell, [&](std::size_t l) { take_late(l); });
    std::size_t missing = 0;
    each_layer(cell, [&](std::size_t l) { missing += urgent(l).size() != 0; });
    double const scale = gradient_scale(machine_, in);
    each_layer(cell, [&](std::size_t l) { scale_gradients(machine_.parameters()[l], scale); });
    if (program_->cells[in.cell].last()) link_->report(loss_of_step(machine_));
    cell.missing.store(missing);
    if (missing == 0) tell(in.cell, 2);
    each_layer(cell, [&](std::size_t l) {
      LayerParameters& own = machine_.parameters()[l];
      if (late(l, steps_) == 0) {
        link_->push(l, own.stored().gradients.data(), false);
        own.zero_gradients();
      } else if (urgent(l).size() != 0) {
        link_->push(l, own.stored().gradients.data(), false, urgent(l));
      }
      if (urgent(l).size() != 0) count(l, TrafficKind::pushes, urgent(l));
    });
    each_layer(cell, [&](std::size_t l) {
      if (urgent(l).size() != 0) link_->ask(l, steps_ + 1, urgent(l));
    });
  }

  void pull(Machine& machine, Instruction const& in) {
    each_layer(cells_[in.cell], [&](std::size_t l) {
      LayerParameters& own = machine_.parameters()[l];
      if (urgent(l).size() != 0) {
        link_->take(l, steps_ + 1, own.values().data(), urgent(l));
        count(l, TrafficKind::pulls, urgent(l));
      }
      ByteRange const part{0, late(l, steps_)};
      if (part.last == 0) return;
      link_->push(l, own.stored().gradients.data(), false, part);
      count(l, TrafficKind::pushes, part);
      if (calls().predict == nullptr) return own.zero_gradients();
      Instruction change = in;
      change.set_update(0);
      change.version = 0;
      change.next_version = 1;
      machine.change(own, change);
      own.zero_states();  // the server's optimizer has the state; here it stays zero
      calls().predict(staleness_.policy, own, layers_[l].kept.data(), part);
    });
  }

  [[gnu::cold]] void close(std::exception_ptr const& why) override {
    ServerExchange::close(why);
    link_status_.begin_status();
    for (LateLayer& layer : layers_) layer.late = {};  // no late values will arrive any more
  }

  void arrived(std::size_t layer, std::uint32_t rounds) noexcept override {
    if (rounds == steps_) layers_[layer].here.store(true);  // late in the step before
    one_arrived(layer, rounds == steps_ ? 1 : 2);
  }
  void lost(std::exception_ptr why) noexcept override {
    link_status_.fail(why);
    ServerExchange::lost(std::move(why));
  }
  [[gnu::cold]] void read_moved() override {
    require_rule(Rule::moved_late_layers, feature::moves_stages | feature::late);
  }
  void late_layers(std::uint32_t step, LateSet const& set) noexcept override {
    if (step != steps_)
      return lost(raised(Errc::mismatch, "the server says which layers are late in step ", step,
                         ", but this worker is in step ", steps_,
                         "; use one version of the library everywhere"));
    for (std::size_t l = 0; l < layers_.size(); ++l)
      layers_[l].late[step % 2] = set.bytes(l, machine_.parameters()[l].bytes_of_values());
    known_.store(step);
    for (std::size_t c = 0; step != 0 && c < cells_.size(); ++c)
      if (cells_[c].missing.fetch_sub(1) == 1) tell(c, 1);
  }

  FixedArray<LateLayer> layers_;
  LinkStatus link_status_;
  std::uint32_t steps_ = 0;              // since the link opened
  std::atomic<std::uint32_t> known_{0};  // the step whose late layers are known
};

}  // namespace stagger::detail
