// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The engine without its back end: layers on ranks, values in slots, programs, and the
/// outcome of a step.

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/engine/detail/exchange_part.hpp>
#include <stagger/engine/detail/execution.hpp>
#include <stagger/engine/detail/model_state.hpp>
#include <stagger/engine/detail/rank.hpp>
#include <stagger/engine/detail/step_part.hpp>
#include <stagger/engine/detail/traffic_counts.hpp>
#include <stagger/engine/memory.hpp>
#include <stagger/engine/options.hpp>
#include <stagger/engine/step_status.hpp>
#include <stagger/parameters/parameter_memory.hpp>
#include <stagger/program/program.hpp>

namespace stagger {

namespace detail {

/// How a back end receives signals that no rank gives. They may come from any thread, from before
/// the beginning of a step to its end.
struct OutsideSignals {
  void* self = nullptr;
  void (*give)(void* self, std::uint32_t signal, std::uint32_t count) noexcept = nullptr;
  void (*fail)(void* self, std::exception_ptr why) noexcept = nullptr;
  /// Resets them before a step; the back end itself resets only signals that ranks give.
  void clear(Program const& program) const noexcept {
    for (std::size_t c = 0; c < program.cells.size(); ++c) give(self, program.outside_signal(c), 0);
  }
};

class Machine : public StepStatus {
 public:
  /// @param cuts    [stages - 1] first layer of each stage after the first, rising
  /// @param memory  the memory for parameters; none: the host's
  /// @param shards  whether there is optimizer state only for what hold_states() names
  /// @param whole   whether all parameters get memory; otherwise the back end calls their hold()
  [[gnu::cold]] Machine(List<Layer> layers, std::vector<int> const& cuts, Options const& options,
                        int states, ParameterMemory const& memory = {}, bool shards = false,
                        bool whole = true, Grouped const* grouped = nullptr)
      : model(std::move(layers), cuts, options, states, memory, shards, whole, grouped),
        run(model) {}

  Machine(Machine const&) = delete;
  Machine& operator=(Machine const&) = delete;
  [[gnu::cold]] [[gnu::noinline]] ~Machine() = default;

  /// Adds what the machine does in a step beside the actions of the table.
  template <class Part> [[gnu::cold]] Part& add(std::unique_ptr<Part> part) {
    Part& added = *part;
    parts_.push_back(std::move(part));
    return added;
  }

  [[nodiscard]] int stages() const noexcept { return static_cast<int>(model.stages()); }
  [[nodiscard]] Options& options() noexcept { return model.options; }
  [[nodiscard]] Options const& options() const noexcept { return model.options; }
  [[nodiscard]] FixedArray<LayerParameters>& parameters() noexcept { return model.parameters; }
  /// Shows every parameter to the caller, in layer order.
  /// @param own  only those in this process; of the others, only the names
  [[gnu::cold]] void append_states(std::vector<ParameterState>& states, bool own = false) {
    if (model.memory != nullptr) take_back_shown();
    model.append_states(states, own);
  }
  /// Takes over what the caller has written into the copies of parameters.
  [[gnu::cold]] void take_back_shown() {
    if (std::exchange(model.shown, false)) run.take_back(model);
  }
  [[nodiscard]] bool shards() const noexcept { return model.shards; }
  [[nodiscard]] std::int64_t steps() const noexcept { return model.steps; }
  [[gnu::cold]] void resume(std::int64_t steps) {
    require_step(steps, "training cannot go on from");
    model.steps = steps;
  }

  [[nodiscard]] void const* optimizer() const noexcept { return model.optimizer.optimizer; }
  /// A digest of the optimizer's current numbers; 0 if they are unknown.
  [[nodiscard]] std::uint64_t optimizer_digest() const noexcept {
    return model.optimizer.digest(model.optimizer.optimizer);
  }

  /// Undoes the changes of a failed step. A back end with its own memory for parameters calls it
  /// itself.
  [[gnu::cold]] void undo() {
    if (run.program->training) run.zero_gradients(model);
    for (auto& end_of_step : run.end_of_step)
      if (std::exchange(end_of_step.updated, false))
        for (LayerPart const& own : end_of_step.layers)
          model.parameters[own.layer].copy_part(own.range, true);
    if (restores()) run.each_updated_early(model, [](LayerParameters& layer) { layer.restore(); });
  }
  void gradient_norm(double norm) noexcept { run.gradient_norm = norm; }

  /// Points every rank at the slots of a program, and makes those that earlier ones did not need.
  [[gnu::cold]] void load(Program const& program) {
    traffic.measure();  // while the slots are those of the previous program
    run.load(model, program);
    traffic.load(program, run.cells, model);
    for (auto const& part : parts_) part->load(*this);
  }

  [[nodiscard]] Program const& program() const noexcept { return *run.program; }
  /// The arguments of the step; a rank may have others.
  [[nodiscard]] StepArguments const& arguments() const noexcept { return run.arguments; }
  /// Called after the work of a step by a back end with its own memory for parameters.
  void settle_parts() {
    for (std::size_t p = parts_.size(); p-- > 0;) parts_[p]->settle(*this);
  }
  [[nodiscard]] FixedArray<RankState>& ranks() noexcept { return run.ranks; }
  [[nodiscard]] FixedArray<RankState> const& ranks() const noexcept { return run.ranks; }

  /// Sets every rank to the start of the loaded program.
  [[gnu::cold]] void begin_step(StepArguments const& arguments) {
    run.begin_step(arguments);
    begin_status();
    for (auto& layer : model.parameters) layer.clear_added();
    model.put_back_wholes();
    // Before the first training step it may not be known which rank has which state.
    if (!model.shards_on_host() || run.program->training) take_back_shown();
    if (restores()) run.each_updated_early(model, [](LayerParameters& layer) { layer.save(); });
    traffic.begin_step(arguments, model, model.memory != nullptr);
    for (std::size_t r = 0; r < run.ranks.size(); ++r) {
      auto& rank = run.ranks[r];
      begin_rank(rank, *run.program, run.program->ranks[r], model.options.record);
      rank.watched = rank.record || traffic.uneven();
      rank.arguments = &run.arguments;
      rank.context.begin_step(
          model.steps, model.options.seed, run.program->training,
          run.program->flushes ? 0 : run.program->microbatches / run.program->updates);
    }
    if (run.program->exchanges()) outside_.clear(*run.program);
    std::size_t begun = 0;
    try {
      for (; begun < parts_.size(); ++begun) parts_[begun]->begin_step(*this);
    } catch (...) {
      end_parts(begun, std::current_exception());
      throw;
    }
  }

  /// Ends a step on the calling thread.
  /// @throws what any rank threw, Error for a deadline or a cancellation; parameters are then those
  /// of the last step
  [[gnu::cold]] void end_step() {
    if (failed()) {
      run.find_failure(failure());
      if (model.memory == nullptr) undo();
      end_parts(parts_.size(), failure());
      rethrow();
    }
    traffic.end_step(model.memory != nullptr);
    end_parts(parts_.size(), nullptr);
    if (run.program->training) {
      // A back end with its own memory for parameters says so itself.
      if (model.options.non_finite == NonFinite::skip && StepEnd{model, run}.skips()) {
        run.skipped = 1;
        if (restores())  // what layers have updated in each pass
          run.each_updated_early(model, [](LayerParameters& layer) { layer.restore(); });
      }
      model.steps += run.program->updates - run.skipped;
    }
    if (model.memory == nullptr) settle_parts();
  }

  /// Carries out an instruction that is not an action of the table: the end of a step, an update or
  /// exchange of one stage, or what replicas do.
  [[gnu::noinline]] void execute_end(RankState& rank, Instruction const& in,
                                     Clock const& clock = {}) {
    bool drops = false;
    if (in.op == Op::apply && !in.updates_part()) {
      drops = !StepEnd{model, run}.finite(model.layers_of(in.stage), rank.number, &in);
      gradients_complete(model.layers_of(in.stage));
    }
    if (in.op == Op::finish) {
      StepEnd{model, run}.finish(rank.number);
      // An exception of a part still fails the step here: no rank has updated.
      for (auto const& own : run.end_of_step[rank.number].layers)
        if (!run.program->pushes_groups) gradients_complete({own.layer, own.layer + 1}, own.range);
    } else if (in.op == Op::update) {
      update(rank);
    } else {
      for (auto const& part : parts_)
        if (part->execute(*this, rank, in, clock)) return;
      if (in.op == Op::apply) model.apply(in, run.program->counted_updates(), drops);
    }
  }

  /// The exchange with a parameter server, one of the parts; null: there is none.
  void set_exchange(Exchange* exchange) noexcept { exchange_ = exchange; }
  [[nodiscard]] Exchange* exchange() const noexcept { return exchange_; }
  /// From now on parts are told of gradients, by gradients_complete.
  void tell_gradients() noexcept { tells_gradients_ = true; }
  void gradients_complete(IndexRange layers, ByteRange range = {}) {
    for (std::size_t l = layers.first; tells_gradients_ && l < layers.last; ++l)
      for (auto const& part : parts_)
        if (model.counted(l)) part->gradients(model.parameters[l], range);
  }
  /// Removes all parts, which may call the back end.
  [[gnu::cold]] void remove_parts() noexcept {
    exchange_ = nullptr;
    groups_ = nullptr;
    while (!parts_.empty()) parts_.pop_back();
  }
  /// Says which ranks of the loaded program this process runs. @param ranks  [ranks]
  void runs(bool const* ranks) {
    if (exchange_ != nullptr) exchange_->runs(ranks);
  }
  /// What it waits for outside of the pipeline, as text.
  [[nodiscard]] [[gnu::cold]] std::string waits_for() const {
    return exchange_ == nullptr ? std::string() : exchange_->waits_for();
  }
  void outside(OutsideSignals const& signals) noexcept { outside_ = signals; }
  [[nodiscard]] OutsideSignals const& outside() const noexcept { return outside_; }
  /// Writes what `apply` would add to a layer into the slot of the next version.
  void change(LayerParameters& layer, Instruction const& in) noexcept {
    model.optimizer.change(model.optimizer.optimizer, layer, model.update_step(in));
    layer.clear_added();
  }

  /// The part for gradient groups, which are added up, or pushed, while backward runs; null: there
  /// are none.
  void set_gradient_groups(GradientGroupPart* groups) noexcept { groups_ = groups; }
  [[nodiscard]] GradientGroupPart* gradient_groups() const noexcept { return groups_; }
  /// Byte `offset` of an owner's gradients of layer `i` of a stage. If they arrive from another
  /// process, only the part that is added up here has memory.
  template <std::integral I>
  [[nodiscard]] std::byte* gradients_of(I stage, std::size_t owner, std::size_t i,
                                        std::size_t offset) noexcept {
    auto const* const copy = run.copy_of(stage, owner, i);
    if (copy != nullptr) return copy->at(offset);
    return model.parameters[model.first_layer[stage] + i].stored().gradients.at(offset);
  }

  /// Updates that the last step has left out.
  [[nodiscard]] int skipped() const noexcept { return run.skipped; }
  /// 2-norm of all gradients before clipping; 0 without clipping.
  [[nodiscard]] double gradient_norm() const noexcept { return run.gradient_norm; }

  [[nodiscard]] [[gnu::cold]] Memory memory() const {
    Memory memory;
    for (auto const& layer : model.parameters) {
      memory.parameters += layer.bytes();
      memory.optimizer_state += layer.state_bytes();
    }
    run.add_memory(memory);
    for (auto const& part : parts_) part->add_memory(memory);
    return memory;
  }

  ModelState model;
  Execution run;
  TrafficCounts traffic;

 private:
  /// Whether updates before the end of a run are taken back here if it fails. After a stream of a
  /// worker, its server has the weights to go on from.
  [[nodiscard]] bool restores() const noexcept {
    return exchange_ == nullptr || run.program->flushes;
  }
  /// @param count  parts that have begun the step
  [[gnu::cold]] void end_parts(std::size_t count, std::exception_ptr const& why) {
    for (std::size_t p = count; p-- > 0;) parts_[p]->end_step(*this, why);
  }

  [[gnu::cold]] void update(RankState& rank) {
    StepEnd const end{model, run};
    bool const skips = end.skips();  // throws before anything is updated or pushed
    if (exchange_ == nullptr) {      // otherwise the first holders of stages push the sums
      if (model.shards_on_host() ? failed() : !commit()) return;  // there it can still be undone
      end.update(rank.number, skips);
    }
    for (auto* const copy : run.end_of_step[rank.number].clear) copy->zero();
  }

  OutsideSignals outside_;
  std::vector<std::unique_ptr<StepPart>> parts_;  // each may use those before it
  Exchange* exchange_ = nullptr;                  // null: no parameter server
  GradientGroupPart* groups_ = nullptr;           // null: none
  bool tells_gradients_ = false;
};

/// In the push of a step: the factor that scales the worker's gradients down to Options::clip_norm,
/// by the norm of its own. All of its ranks have added up theirs before one of them pushes.
[[nodiscard]] inline double gradient_scale(Machine& machine, Instruction const& push) {
  return machine.run.gradient_scale(machine.model, machine.program().cells[push.cell].rank);
}

}  // namespace detail
}  // namespace stagger
