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
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/engine/lay_out.hpp>
#include <stagger/engine/memory.hpp>
#include <stagger/engine/options.hpp>
#include <stagger/engine/parameter_memory.hpp>
#include <stagger/engine/rank.hpp>
#include <stagger/engine/replica_ops.hpp>
#include <stagger/engine/step_fate.hpp>

namespace stagger {

class Profiler;

namespace detail {

class Machine : public StepFate {
 public:
  /// @param cuts    [stages - 1] first layer of each stage after the first, rising
  /// @param memory  where parameters go; none: on the host
  /// @param shards  whether there is optimizer state only for what a back end names, hold_states()
  /// @param whole   whether all of the model's; else the back end holds those that it needs
  [[gnu::cold]] Machine(List<Layer> layers, std::vector<int> const& cuts, Options const& options,
                        int states, ParameterMemory const& memory = {}, bool shards = false,
                        bool whole = true)
      : device_memory_(memory),
        memory_(memory.allocate != nullptr ? &device_memory_ : nullptr),
        layers_(std::move(layers)),
        parameters_(layers_.size()),
        options_(options),
        shards_(shards) {
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      int const number = static_cast<int>(l);
      parameters_[l].adopt(layers_[l].ops().adopt_parameters(layers_[l].object(), number), number,
                           states, memory_, shards, whole);
    }
    if (memory_ != nullptr) sums_.make(memory_, parameter_count() * sizeof(double));
    for (int const cut : cuts) first_layer_.push_back(static_cast<std::size_t>(cut));
    first_layer_.push_back(layers_.size());
    storage_ = FixedArray<CellStorage>(first_layer_.size() - 1);
    for (std::size_t s = 0; s < storage_.size(); ++s)
      storage_[s].layers = FixedArray<LayerStorage>(first_layer_[s + 1] - first_layer_[s]);
  }

  Machine(Machine const&) = delete;
  Machine& operator=(Machine const&) = delete;
  ~Machine() {
    if (replica_run_ != nullptr) options_.replicas.ops()->destroy(replica_run_);
  }

  [[nodiscard]] int stages() const noexcept { return static_cast<int>(storage_.size()); }
  [[nodiscard]] Options& options() noexcept { return options_; }
  [[nodiscard]] Options const& options() const noexcept { return options_; }
  [[nodiscard]] FixedArray<LayerParameters>& parameters() noexcept { return parameters_; }
  /// Shows every parameter to the caller, in layer order.
  /// @param own  only those that are here, the others by name
  [[gnu::cold]] void append_states(std::vector<ParameterState>& states, bool own = false) {
    if (memory_ != nullptr) take_back_shown();
    for (auto& layer : parameters_) own ? layer.append_own(states) : layer.append_states(states);
    shown_ = memory_ != nullptr || shards_;
  }
  /// What the caller has written into what it was shown.
  [[gnu::cold]] void take_back_shown() {
    if (std::exchange(shown_, false)) take_back();
  }
  [[nodiscard]] bool shards() const noexcept { return shards_; }
  [[nodiscard]] std::int64_t steps() const noexcept { return steps_; }
  void resume(std::int64_t steps) noexcept { steps_ = steps; }

  void set_optimizer(OptimizerCall const& call) noexcept { optimizer_ = call; }
  [[nodiscard]] void const* optimizer() const noexcept { return optimizer_.optimizer; }
  /// Of the optimizer's numbers as they are now; 0 where they are not known.
  [[nodiscard]] std::uint64_t optimizer_digest() const noexcept {
    return optimizer_.digest(optimizer_.optimizer);
  }
  [[nodiscard]] std::size_t enqueued_bytes() const noexcept { return optimizer_.enqueued_bytes; }

  // For back ends with a memory of their own for parameters.

  [[nodiscard]] ParameterMemory const* memory_of_parameters() const noexcept { return memory_; }
  [[nodiscard]] std::size_t parameter_count() const noexcept {
    std::size_t count = 0;
    for (auto const& parameters : parameters_) count += parameters.count();
    return count;
  }
  /// [parameter_count()] sums of the squares of each one's gradient, in layer order.
  [[nodiscard]] double const* square_sums() const noexcept {
    return reinterpret_cast<double const*>(sums_.data());
  }
  /// Brings back what a step that failed has changed. Such a back end calls it itself.
  [[gnu::cold]] void undo() {
    if (program_->training) zero_gradients();
    for (auto& duties : duties_)
      if (std::exchange(duties.updated, false))
        for (Duty const& duty : duties.layers) parameters_[duty.layer].copy_part(duty.range, true);
    if (program_->training && !program_->flushes)
      for (auto& parameters : parameters_) parameters.restore();
  }
  void gradient_norm(double norm) noexcept { gradient_norm_ = norm; }
  /// Keeps something for as long as there are parameters.
  void keep(std::shared_ptr<void const> thing) noexcept { kept_ = std::move(thing); }
  /// The device may still work on the parameters: their memory is never given back.
  void abandon_parameters() noexcept {
    device_memory_.release = [](ParameterMemory const&, void*) noexcept {};
  }

  /// Makes the slots of a program and points every rank at them. Of values and slots, allocates
  /// only what earlier programs did not need.
  [[gnu::cold]] void load(Program const& program) {
    program_ = &program;
    // Each by itself: the last load may have found no memory after the first of them.
    if (ranks_.size() != program.ranks.size()) ranks_ = FixedArray<RankState>(program.ranks.size());
    if (duties_.size() != ranks_.size()) duties_ = FixedArray<Duties>(ranks_.size());
    for (auto& duties : duties_) {
      duties.add.clear();
      duties.layers.clear();
      duties.squares.clear();
      duties.clear.clear();
    }
    if (cells_.size() != program.cells.size()) cells_ = FixedArray<StageRun>(program.cells.size());
    std::size_t owner = 0;  // of several owners of a stage, the how manieth
    for (std::size_t c = 0; c < cells_.size(); ++c) {
      owner = c > 0 && program.cells[c - 1].stage == program.cells[c].stage ? owner + 1 : 0;
      make_cell(program.cells[c], owner, cells_[c]);
      cells_[c].front = &cells_[c].layers.front();
      cells_[c].back = &cells_[c].layers.back();
    }
    for (std::size_t c = 0; c < cells_.size(); ++c) {
      int const before = program.cells[c].before;
      if (before == Cell::none) continue;
      auto& producer = cells_[static_cast<std::size_t>(before)].layers.back();
      producer.y = cells_[c].x;
      cells_[c].dx = producer.dy;
    }
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      auto& rank = ranks_[r];
      rank.number = static_cast<int>(r);
      rank.cells = cells_.data();
      rank.begin = program.ranks[r].code.data();
      rank.end = rank.begin + program.ranks[r].code.size();
      if (options_.record) rank.spans.reserve(program.ranks[r].code.size());
    }
    if (options_.replicas.ops() != nullptr) options_.replicas.ops()->load(*this);
  }

  [[nodiscard]] Program const& program() const noexcept { return *program_; }
  /// Of the step, as it was asked for; those of a rank may differ.
  [[nodiscard]] StepArguments const& arguments() const noexcept { return arguments_; }
  /// Puts predictions of replicas together, behind all work of the step.
  void join_outputs() {
    if (options_.replicas.ops() != nullptr) options_.replicas.ops()->join_outputs(*this);
  }
  [[nodiscard]] FixedArray<RankState>& ranks() noexcept { return ranks_; }
  [[nodiscard]] FixedArray<RankState> const& ranks() const noexcept { return ranks_; }

  /// Sets every rank to the start of the loaded program.
  [[gnu::cold]] void begin_step(StepArguments const& arguments) {
    arguments_ = arguments;
    begin_fate();
    gradient_norm_ = 0;
    for (auto& duties : duties_) duties.updated = false;
    if (!shards_ || program_->training)  // else nobody may know yet whose state it is
      if (std::exchange(shown_, false)) take_back();
    if (program_->training && !program_->flushes)
      for (auto& parameters : parameters_) parameters.save();
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
    if (options_.replicas.ops() != nullptr) options_.replicas.ops()->begin_step(*this);
  }

  /// Ends a step on the caller's side.
  /// @throws what any rank threw, Error for a deadline or a cancellation; parameters are then those
  /// of the last step
  [[gnu::cold]] void end_step() {
    if (failed()) {
      if (memory_ == nullptr) undo();
      rethrow();
    }
    if (program_->training) steps_ += program_->updates;
    if (options_.replicas.ops() != nullptr) options_.replicas.ops()->end_step(*this);
  }

  /// Carries out what ends a step on one rank: `hand_in`, `finish` or `update`; or
  /// what replicas do between actions and instead of their last backward.
  void execute_end(RankState& rank, Instruction const& in, Clock clock = {}) {
    if (in.op == Op::finish)
      finish(duties_[static_cast<std::size_t>(rank.number)]);
    else if (in.op == Op::update)
      update(rank);
    else if (in.op == Op::apply)
      apply(in);
    else if (!ends_step(in.op))
      options_.replicas.ops()->execute(*this, rank, in, clock);
  }

  /// What is added up while backward runs, if that is what replicas do on this back end.
  [[nodiscard]] [[gnu::cold]] List<GradientGroup> const* groups() {
    auto const* const ops = options_.replicas.ops();
    return ops == nullptr ? nullptr : ops->groups(*this);
  }
  /// Whether training steps are being measured to decide what is added up together.
  [[nodiscard]] bool measures() const {
    return replica_run_ != nullptr && options_.replicas.ops()->measures(*replica_run_);
  }
  void set_grouping(GroupingChoice const& choice) noexcept { grouping_ = choice; }
  [[nodiscard]] GroupingChoice const& grouping() const noexcept { return grouping_; }
  /// Of each stage, and the number of layers.
  [[nodiscard]] List<std::size_t> const& first_layers() const noexcept { return first_layer_; }
  void set_grouping_peers(GroupingPeers const& peers) noexcept { grouping_peers_ = peers; }
  /// Of a `backward_part` or a `reduce`.
  [[nodiscard]] GroupExtent extent(Instruction const& in) const {
    return options_.replicas.ops()->extent(*this, in);
  }

  /// 2-norm of all gradients before clipping; 0 where nothing clips.
  [[nodiscard]] double gradient_norm() const noexcept { return gradient_norm_; }

  [[nodiscard]] Memory memory() const {
    Memory memory;
    for (auto const& parameters : parameters_) {
      memory.parameters += parameters.bytes();
      memory.optimizer_state += parameters.state_bytes();
    }
    for (auto const& first : storage_) {
      for (auto const* owner = &first; owner != nullptr; owner = owner->next.get()) {
        for (auto const& share : owner->shares) memory.parameters += share.bytes();
        memory.activations += owner->x.bytes();
        for (auto const& layer : owner->layers) {
          memory.activations += layer.y.bytes() + layer.saved.bytes();
          memory.gradients += layer.dy.bytes();
        }
        memory.gradients += owner->dx.bytes();
        memory.activations += owner->repeated_output.bytes();
      }
    }
    for (auto const& rank : ranks_) memory.scratch += rank.context.scratch_bytes();
    if (replica_run_ != nullptr)
      memory.activations += options_.replicas.ops()->bytes(*replica_run_);
    return memory;
  }

 private:
  friend struct Replication;
  friend struct Cargo;
  friend struct Islands;
  friend struct ReplicaSums;
  friend class stagger::Profiler;
  struct LayerStorage {
    Slots y, saved, dy;
  };
  /// What one owner of a stage has for itself.
  struct CellStorage {
    List<Layer> layer_copies;                   // of every owner but the first
    FixedArray<LayerParameters::Share> shares;  // likewise
    FixedArray<LayerStorage> layers;
    Slots x;  // of the first stage: one object that takes a gradient nobody reads
    Slots repeated_output;
    Slots dx;                           // where the stage before gathers it
    std::unique_ptr<CellStorage> next;  // of the stage's next owner
  };
  struct Addition {
    LayerParameters* to;
    LayerParameters::Share* from;
  };
  /// Parameters of a layer that a rank updates.
  struct Duty {
    std::size_t layer = 0;
    ByteRange range;
  };
  struct Square {
    std::size_t layer = 0;
    std::size_t parameter = 0;
    ByteRange range = {};  // of the layer, if another rank adds up the rest
  };
  /// What a rank does at the end of a step.
  struct Duties {
    List<Addition> add;    // in the order of owners
    List<Square> squares;  // of these gradients it adds them up
    List<Duty> layers;
    List<LayerParameters::Share*> clear;
    bool updated = false;  // and what was before is saved
  };

  static Places places(Slots const& slots, SlotType const& type) {
    return {static_cast<std::byte*>(slots.count() == 0 ? nullptr : slots[0]), type.stride};
  }

  static void grow(Slots& slots, SlotType const& type, std::size_t count) {
    if (slots.count() < count) slots = Slots(type, count);
  }

  [[gnu::cold]] CellStorage& storage_of(std::size_t stage, std::size_t owner) {
    CellStorage* storage = &storage_[stage];
    std::size_t const layers = storage->layers.size();
    for (; owner != 0; --owner) {
      if (storage->next == nullptr) {
        auto made = std::make_unique<CellStorage>();
        made->layers = FixedArray<LayerStorage>(layers);
        made->shares = FixedArray<LayerParameters::Share>(layers);
        for (std::size_t i = 0; i < layers; ++i) {
          made->layer_copies.push_back(layers_[first_layer_[stage] + i]);
          made->shares[i].of(parameters_[first_layer_[stage] + i]);
        }
        storage->next = std::move(made);
      }
      storage = storage->next.get();
    }
    return *storage;
  }

  [[gnu::cold]] void make_cell(Cell const& need, std::size_t owner, StageRun& cell) {
    auto const stage = static_cast<std::size_t>(need.stage);
    CellStorage& storage = storage_of(stage, owner);
    cell.layers.clear();
    cell.repeated_output = nullptr;
    Duties& duties = duties_[static_cast<std::size_t>(need.rank)];
    cell.first = need.first();
    cell.last = need.last();
    for (std::size_t i = 0; i < storage.layers.size(); ++i) {
      std::size_t const l = first_layer_[stage] + i;
      LayerStorage& values = storage.layers[i];
      LayerRun run;
      run.object = owner == 0 ? layers_[l].object() : storage.layer_copies[i].object();
      run.ops = &layers_[l].ops();
      if (owner == 0) parameters_[l].reserve_versions(need.versions);
      run.parameter_count = parameters_[l].count();
      run.parameters = owner == 0 ? parameters_[l].views() : storage.shares[i].views();
      run.number = static_cast<int>(l);
      bool const final_layer = i + 1 == storage.layers.size();
      grow(values.saved, *run.ops->saved, need.kept_slots);
      if (!final_layer || cell.last)
        grow(values.y, *run.ops->output, need.kept_slots);
      else
        grow(values.y, *run.ops->output, need.y_slots);  // 0 where it lies with its reader
      grow(values.dy, *run.ops->output, final_layer ? need.dy_slots : need.inner_slots);
      if (final_layer && !cell.last && options_.recompute)
        grow(storage.repeated_output, *run.ops->output, 1);
      run.y = places(values.y, *run.ops->output);
      run.saved = places(values.saved, *run.ops->saved);
      run.dy = places(values.dy, *run.ops->output);
      cell.layers.push_back(run);
      if (owner == 0) {
        for (std::size_t p = 0; p < parameters_[l].count(); ++p) duties.squares.push_back({l, p});
        duties.layers.push_back({l, {}});
      } else {
        duties.clear.push_back(&storage.shares[i]);
        primary_duties(need.stage).add.push_back({&parameters_[l], &storage.shares[i]});
      }
    }
    SlotType const& input = *cell.layers.front().ops->input;
    grow(storage.x, input, cell.first ? 1 : need.x_slots);
    (cell.first ? cell.dx : cell.x) = places(storage.x, input);
    if (need.gathers_input) {
      grow(storage.dx, input, need.dx_slots);
      cell.dx = places(storage.dx, input);
    }
    if (storage.repeated_output.count() != 0) cell.repeated_output = storage.repeated_output[0];
  }

  /// Of the rank that adds up the gradients of a stage: its lowest owner.
  Duties& primary_duties(int stage) {
    for (auto const& cell : program_->cells)
      if (cell.stage == stage) return duties_[static_cast<std::size_t>(cell.rank)];
    return duties_.front();
  }

  /// What the caller may have written into a copy.
  [[gnu::cold]] void take_back() {
    for (auto& parameters : parameters_) parameters.take_back();
    for (std::size_t s = 0; s < storage_.size(); ++s)
      for (auto* owner = storage_[s].next.get(); owner != nullptr; owner = owner->next.get())
        for (std::size_t i = 0; i < owner->shares.size(); ++i)
          owner->shares[i].take_values(parameters_[first_layer_[s] + i]);
  }

  [[gnu::cold]] void zero_gradients() noexcept {
    for (auto& parameters : parameters_) parameters.zero_gradients();
    for (auto& first : storage_)
      for (auto* owner = first.next.get(); owner != nullptr; owner = owner->next.get())
        for (auto& share : owner->shares) share.zero();
  }

  void finish(Duties const& duties) {
    for (Addition const& addition : duties.add) addition.to->add(*addition.from);
    if (!options_.clip_norm) return;
    for (Square const& one : duties.squares)
      parameters_[one.layer].sum_squares(
          one.parameter, memory_ != nullptr ? sums_of(one.layer) : nullptr, one.range);
  }

  [[gnu::cold]] double* sums_of(std::size_t layer) const noexcept {
    auto* sums = reinterpret_cast<double*>(sums_.data());
    for (std::size_t l = 0; l < layer; ++l) sums += parameters_[l].count();
    return sums;
  }

  /// Without a flush: one stage's step, alone. An error later brings back what was before the
  /// stream.
  void apply(Instruction const& in) {
    for (std::size_t l = first_layer_[in.stage]; l < first_layer_[in.stage + 1U]; ++l)
      optimizer_.update(
          optimizer_.optimizer, parameters_[l],
          {1, steps_ + 1 + static_cast<std::int64_t>(in.update()), in.version, in.next_version});
  }

  void update(RankState& rank) {
    if (shards_ ? failed() : !commit()) return;  // shared out, it can still be taken back
    double scale = 1;
    if (options_.clip_norm && memory_ == nullptr) {
      double sum =
          0;  // one sum per parameter, added in layer order: the same numbers for every cut
      for (auto const& parameters : parameters_)
        for (double const square_sum : parameters.square_sums()) sum += square_sum;
      double const norm = std::sqrt(sum);
      if (norm > *options_.clip_norm) scale = *options_.clip_norm / norm;
      if (rank.number == reporter_) gradient_norm_ = norm;
    }
    Duties& duties = duties_[static_cast<std::size_t>(rank.number)];
    duties.updated = shards_;
    for (Duty const& duty : duties.layers)
      for (ByteRange part = duty.range; part.first < duty.range.last; part.first = part.last) {
        // What has just been saved is still in the cache when it is updated.
        part.last = shards_ ? std::min(part.first + saved_at_once, duty.range.last) : part.last;
        if (shards_) parameters_[duty.layer].copy_part(part, false);
        optimizer_.update(optimizer_.optimizer, parameters_[duty.layer],
                          {scale, steps_ + 1, 0, 0, part});
      }
    for (auto* const share : duties.clear) share->zero();
  }

  static constexpr std::size_t saved_at_once = std::size_t{1} << 15U;  // bytes
  std::shared_ptr<void const> kept_;
  ParameterMemory device_memory_;
  ParameterMemory const* memory_;  // null: parameters lie on the host
  List<Layer> layers_;
  FixedArray<LayerParameters> parameters_;  // [layers]
  List<std::size_t> first_layer_{0};        // [stages + 1]
  FixedArray<CellStorage> storage_;         // [stages] of the first owner
  Options options_;
  bool shards_;
  OptimizerCall optimizer_;
  ParameterBlock sums_;  // [parameters] of squares, where they lie elsewhere
  bool shown_ = false;   // the caller may have written into a copy

  Program const* program_ = nullptr;
  FixedArray<RankState> ranks_;
  FixedArray<StageRun> cells_;  // of the program
  FixedArray<Duties> duties_;   // [ranks]
  ReplicaRun* replica_run_ = nullptr;
  GroupingChoice grouping_;
  GroupingPeers grouping_peers_;
  StepArguments arguments_;
  std::int64_t steps_ = 0;
  double gradient_norm_ = 0;
  int reporter_ = 0;  // the rank that tells it
};

}  // namespace detail
}  // namespace stagger
