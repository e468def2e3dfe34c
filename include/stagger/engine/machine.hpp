// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The engine without its back end: layers on ranks, values in slots, programs, and the
/// outcome of a step.

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/engine/lay_out.hpp>
#include <stagger/engine/options.hpp>
#include <stagger/engine/rank.hpp>

namespace stagger {

/// Memory of a pipeline by use, in bytes.
struct Memory {
  std::uint64_t parameters = 0;   ///< values, gradients and optimizer state
  std::uint64_t activations = 0;  ///< stage inputs, inner outputs and saved state, all slots
  std::uint64_t gradients = 0;    ///< of activations, all slots
  std::uint64_t scratch = 0;
};

namespace detail {

/// A step's fate is decided once, by whoever comes first: the ranks, when all have finished, or an
/// error.
enum class Fate : std::uint8_t { open, committed, failed };

class Machine {
 public:
  using Update = void (*)(void const* optimizer, LayerParameters&, double scale,
                          std::int64_t step) noexcept;

  /// @param cuts  [stages - 1] first layer of each stage after the first, rising
  Machine(std::vector<Layer> layers, std::vector<int> const& cuts, Options const& options,
          int states)
      : layers_(std::move(layers)), options_(options) {
    for (std::size_t l = 0; l < layers_.size(); ++l)
      parameters_.emplace_back(layers_[l].ops().adopt_parameters(layers_[l].object()),
                               static_cast<int>(l), states);
    std::size_t begin = 0;
    for (std::size_t s = 0; s <= cuts.size(); ++s) {
      std::size_t const end = s < cuts.size() ? static_cast<std::size_t>(cuts[s]) : layers_.size();
      add_stage(begin, end);
      begin = end;
    }
    first_sink_ = Slots(*layers_.front().ops().input, 1);
    stages_.front().dx = places(first_sink_, *layers_.front().ops().input);
  }

  [[nodiscard]] int stages() const noexcept { return static_cast<int>(stages_.size()); }
  [[nodiscard]] Options& options() noexcept { return options_; }
  [[nodiscard]] std::vector<LayerParameters>& parameters() noexcept { return parameters_; }
  [[nodiscard]] std::int64_t steps() const noexcept { return steps_; }
  void resume(std::int64_t steps) noexcept { steps_ = steps; }

  /// The optimizer, by address; it may change between steps.
  void set_optimizer(void const* optimizer, Update step) noexcept {
    optimizer_ = optimizer;
    update_ = step;
  }

  /// Makes the slots of a program and points every rank at them. Allocates only what earlier
  /// programs did not need.
  void load(Program const& program) {
    if (ranks_.size() != program.ranks.size()) {
      ranks_ = std::vector<RankState>(program.ranks.size());
      rank_layers_.assign(program.ranks.size(), {});
    }
    for (auto& layers : rank_layers_) layers.clear();
    for (int s = 0; s < stages(); ++s) {
      auto const index = static_cast<std::size_t>(s);
      reserve(index, program.slots[index]);
      auto& mine = rank_layers_[static_cast<std::size_t>(program.owner[index])];
      for (std::size_t l = begin_[index]; l < begin_[index + 1]; ++l) mine.push_back(l);
    }
    for (std::size_t s = 0; s < stages_.size(); ++s) wire(s);
    program_ = &program;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      auto& rank = ranks_[r];
      rank.number = static_cast<int>(r);
      rank.stages = stages_.data();
      rank.begin = program.ranks[r].code.data();
      rank.end = rank.begin + program.ranks[r].code.size();
      if (options_.record) rank.spans.reserve(program.ranks[r].code.size());
    }
  }

  [[nodiscard]] Program const& program() const noexcept { return *program_; }
  [[nodiscard]] std::vector<RankState>& ranks() noexcept { return ranks_; }

  /// Sets every rank to the start of the loaded program.
  void begin_step(StepArguments const& arguments) {
    arguments_ = arguments;
    fate_.store(Fate::open, std::memory_order_relaxed);
    failure_ = nullptr;
    gradient_norm_ = 0;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      auto& rank = ranks_[r];
      rank.next.store(rank.begin, std::memory_order_relaxed);
      rank.wait = program_->ranks[r].waits.data();
      rank.arguments = &arguments_;
      rank.executed = false;
      rank.record = options_.record;
      rank.in_flight = rank.peak_in_flight = 0;
      rank.spans.clear();
      rank.context.begin_step(steps_, options_.seed, program_->training);
    }
  }

  /// Ends a step on the caller's side.
  /// @throws what any rank threw, Error for a deadline or a cancellation; parameters are then those
  /// of the last step
  void end_step() {
    if (fate_.load(std::memory_order_acquire) == Fate::failed) {
      if (program_->training)
        for (auto& parameters : parameters_) parameters.zero_gradients();
      std::rethrow_exception(std::exchange(failure_, nullptr));
    }
    if (program_->training) ++steps_;
  }

  /// Ends the step with an error unless its fate is decided already.
  /// @return whether this call decided it
  bool fail(std::exception_ptr failure) noexcept {
    if (failing_.exchange(true)) return false;  // one writer of `failure_`
    bool decided = false;
    if (Fate open = fate_.load(); open == Fate::open) {
      failure_ = std::move(failure);
      decided = fate_.compare_exchange_strong(open, Fate::failed);
    }
    failing_.store(false);
    return decided;
  }
  [[nodiscard]] bool failed() const noexcept { return fate_.load() == Fate::failed; }

  /// Carries out what ends a step on one rank: `finish` or `update`.
  void execute_end(RankState& rank, Instruction const& in) {
    if (in.op == Op::finish)
      finish(rank);
    else
      update(rank);
  }

  /// 2-norm of all gradients before clipping; 0 where nothing clips.
  [[nodiscard]] double gradient_norm() const noexcept { return gradient_norm_; }

  [[nodiscard]] Memory memory() const {
    Memory memory;
    for (auto const& parameters : parameters_) memory.parameters += parameters.bytes();
    for (auto const& storage : storage_) {
      memory.activations += storage.x.bytes();
      for (auto const& layer : storage.layers) {
        memory.activations += layer.y.bytes() + layer.saved.bytes();
        memory.gradients += layer.dy.bytes();
      }
    }
    for (auto const& rank : ranks_) memory.scratch += rank.context.scratch_bytes();
    return memory;
  }

 private:
  struct LayerStorage {
    Slots y, saved, dy;
  };
  struct StageStorage {
    Slots x;
    Slots repeated_output;
    std::vector<LayerStorage> layers;
  };

  static Places places(Slots const& slots, SlotType const& type) {
    return {static_cast<std::byte*>(slots.count() == 0 ? nullptr : slots[0]), type.stride};
  }

  void add_stage(std::size_t begin, std::size_t end) {
    StageRun stage;
    for (std::size_t l = begin; l < end; ++l) {
      LayerRun run;
      run.object = layers_[l].object();
      run.ops = &layers_[l].ops();
      run.parameters = parameters_[l].views();
      run.number = static_cast<int>(l);
      stage.layers.push_back(run);
    }
    stage.first = begin == 0;
    stage.last = end == layers_.size();
    stages_.push_back(std::move(stage));
    storage_.emplace_back().layers.resize(end - begin);
    begin_.back() = begin;
    begin_.push_back(end);
  }

  static void grow(Slots& slots, SlotType const& type, std::size_t count) {
    if (slots.count() < count) slots = Slots(type, count);
  }

  void reserve(std::size_t s, StageSlots const& need) {
    auto& storage = storage_[s];
    auto const& stage = stages_[s];
    if (!stage.first) grow(storage.x, *stage.layers.front().ops->input, need.x);
    for (std::size_t l = 0; l < stage.layers.size(); ++l) {
      auto const& ops = *stage.layers[l].ops;
      bool const final_layer = l + 1 == stage.layers.size();
      grow(storage.layers[l].saved, *ops.saved, need.kept);
      if (!final_layer || stage.last) grow(storage.layers[l].y, *ops.output, need.kept);
      grow(storage.layers[l].dy, *ops.output, final_layer ? need.dy : need.inner);
      if (final_layer && !stage.last && options_.recompute)
        grow(storage.repeated_output, *ops.output, 1);
    }
  }

  void wire(std::size_t s) {
    auto& stage = stages_[s];
    auto& storage = storage_[s];
    for (std::size_t l = 0; l < stage.layers.size(); ++l) {
      auto& layer = stage.layers[l];
      layer.y = places(storage.layers[l].y, *layer.ops->output);
      layer.saved = places(storage.layers[l].saved, *layer.ops->saved);
      layer.dy = places(storage.layers[l].dy, *layer.ops->output);
    }
    if (storage.repeated_output.count() != 0) stage.repeated_output = storage.repeated_output[0];
    if (s == 0) return;
    stage.x = places(storage.x, *stage.layers.front().ops->input);
    auto& before = stages_[s - 1];
    before.layers.back().y = stage.x;
    stage.dx = places(storage_[s - 1].layers.back().dy, *before.layers.back().ops->output);
  }

  void finish(RankState& rank) {
    if (!options_.clip_norm) return;
    for (std::size_t const layer : rank_layers_[static_cast<std::size_t>(rank.number)])
      parameters_[layer].sum_squares();
  }

  void update(RankState& rank) {
    Fate fate = Fate::open;
    if (!fate_.compare_exchange_strong(fate, Fate::committed) && fate == Fate::failed) return;
    double scale = 1;
    if (options_.clip_norm) {
      double sum =
          0;  // one sum per parameter, added in layer order: the same numbers for every cut
      for (auto const& parameters : parameters_)
        for (double const square_sum : parameters.square_sums()) sum += square_sum;
      double const norm = std::sqrt(sum);
      if (norm > *options_.clip_norm) scale = *options_.clip_norm / norm;
      if (rank.number == 0) gradient_norm_ = norm;
    }
    for (std::size_t const layer : rank_layers_[static_cast<std::size_t>(rank.number)])
      update_(optimizer_, parameters_[layer], scale, steps_ + 1);
  }

  std::vector<Layer> layers_;
  std::vector<LayerParameters> parameters_;  // [layers]
  std::vector<StageRun> stages_;
  std::vector<StageStorage> storage_;  // [stages]
  std::vector<std::size_t> begin_{0};  // [stages + 1] first layer
  Slots first_sink_;
  Options options_;
  void const* optimizer_ = nullptr;
  Update update_ = nullptr;

  Program const* program_ = nullptr;
  std::vector<RankState> ranks_;
  std::vector<std::vector<std::size_t>> rank_layers_;  // [ranks]
  StepArguments arguments_;
  std::int64_t steps_ = 0;
  double gradient_norm_ = 0;
  std::exception_ptr failure_;
  std::atomic<Fate> fate_{Fate::open};
  std::atomic<bool> failing_{false};
};

}  // namespace detail
}  // namespace stagger
