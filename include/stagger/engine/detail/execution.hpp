// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The execution of the loaded program: values in slots, the stages on their ranks, and the
///         work of each rank at the end of a step.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/list.hpp>
#include <stagger/core/math.hpp>
#include <stagger/engine/detail/gradient_group_part.hpp>
#include <stagger/engine/detail/model_state.hpp>
#include <stagger/engine/detail/rank.hpp>
#include <stagger/engine/detail/repeated_forward.hpp>
#include <stagger/engine/memory.hpp>
#include <stagger/engine/replica_run.hpp>
#include <stagger/engine/slots.hpp>
#include <stagger/program/describe.hpp>
#include <stagger/program/program.hpp>

namespace stagger::detail {

struct LayerStorage {
  Slots y, saved, dy;
};
/// The memory of one owner of a stage.
struct CellStorage {
  List<Layer> layer_copies;         // of every owner but the first
  FixedArray<GradientCopy> copies;  // likewise
  FixedArray<LayerStorage> layers;
  FixedArray<RepeatedForward> repeated;  // if recomputation is checked
  Slots x;  // of the first stage: one object for its input's gradient, which is not read
  Slots repeated_output;
  Slots dx;  // if the stage before gathers it
};
struct Addition {
  LayerParameters* to;
  GradientCopy const* from;
};
/// Parameters of a layer, or a part of them.
struct LayerPart {
  std::size_t layer = 0;
  ByteRange range;
};
struct Square {
  std::size_t layer = 0;
  std::size_t parameter = 0;
  ByteRange range = {};  // part of the layer, if other ranks add up the rest
};
/// What a rank does at the end of a step.
struct EndOfStep {
  List<Addition> add;      // in the order of owners
  List<Square> squares;    // the gradients whose squares it adds up
  List<LayerPart> layers;  // the layers that it updates
  List<GradientCopy*> clear;
  bool updated = false;  // it has updated them, and their former values are saved
  // Of the gradients whose squares it adds up: 1 + the last layer with one that is not finite.
  // 0: all are finite, or nobody looks.
  std::uint32_t not_finite = 0;
};

inline Places places(Slots const& slots, SlotType const& type) {
  return {static_cast<std::byte*>(slots.count() == 0 ? nullptr : slots[0]), type.stride};
}

struct Execution {
  explicit Execution(ModelState const& model) : storage(model.stages()) {
    for (int s = 0; std::cmp_less(s, storage.size()); ++s) storage_of(model, s, 0);
  }

  /// Makes the slots of a program and points every rank at them. Allocates only what earlier
  /// programs did not need.
  [[gnu::cold]] void load(ModelState& model, Program const& next) {
    program = &next;
    // Checked one by one, since an earlier load may have run out of memory between them.
    if (ranks.size() != next.ranks.size()) ranks = FixedArray<RankState>(next.ranks.size());
    if (end_of_step.size() != ranks.size()) end_of_step = FixedArray<EndOfStep>(ranks.size());
    for (auto& of : end_of_step) {
      of.add.clear();
      of.layers.clear();
      of.squares.clear();
      of.clear.clear();
    }
    if (cells.size() != next.cells.size()) cells = FixedArray<StageRun>(next.cells.size());
    std::size_t owner = 0;  // number among the owners of a stage
    for (std::size_t c = 0; c < cells.size(); ++c) {
      owner = is_first_holder(next.cells, c) ? 0 : owner + 1;
      make_cell(model, next.cells[c], owner, cells[c]);
      cells[c].front = &cells[c].layers.front();
      cells[c].back = &cells[c].layers.back();
    }
    for (std::size_t c = 0; c < cells.size(); ++c) {
      int const before = next.cells[c].before;
      if (before == Cell::none) continue;
      auto& producer = cells[before].layers.back();
      producer.y = cells[c].x;
      cells[c].dx = producer.dy;
    }
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      auto& rank = ranks[r];
      rank.number = static_cast<int>(r);
      rank.cells = cells.data();
      rank.begin = next.ranks[r].code.data();
      rank.end = rank.begin + next.ranks[r].code.size();
      rank.context.set_enqueues(model.memory != nullptr);
      if (model.options.record) rank.spans.reserve(next.ranks[r].code.size());
    }
  }

  /// Forgets what the step before has found.
  void begin_step(StepArguments const& asked) noexcept {
    arguments = asked;
    gradient_norm = 0;
    skipped = 0;
    for (EndOfStep& end : end_of_step) {
      end.updated = false;
      end.not_finite = 0;
    }
  }

  /// The copy that has an owner's gradients of layer `i` of a stage; null: they are in the memory
  /// of the sums.
  template <std::integral I>
  [[nodiscard]] GradientCopy const* copy_of(I stage, std::size_t owner, std::size_t i) const {
    for (std::size_t o = 1; o < storage[stage].size(); ++o) {
      GradientCopy const& copy = storage[stage][o].copies[i];
      if (owner == (copy.kept().of == KeptGradients::Of::first ? 0 : o)) return &copy;
    }
    return nullptr;
  }

  /// Takes over what the caller has written into copies of parameters.
  [[gnu::cold]] void take_back(ModelState& model) {
    if (model.grouped != nullptr) model.grouped->put_back(model);
    for (auto& layer : model.parameters) layer.take_back();
    for (std::size_t s = 0; s < storage.size(); ++s)
      for (auto& owner : storage[s])
        for (std::size_t i = 0; i < owner.copies.size(); ++i)
          owner.copies[i].take_values(model.parameters[model.first_layer[s] + i].stored());
  }

  /// Calls `visit(parameters)` for each layer that the program updates before all ranks have
  /// finished.
  template <class Visit> void each_updated_early(ModelState& model, Visit visit) const {
    for (std::size_t c = 0; program->training && c < program->cells.size(); ++c)
      if (is_first_holder(program->cells, c) && (program->cells[c].alone || !program->flushes))
        for (std::size_t const l : model.layers_of(program->cells[c].stage))
          visit(model.parameters[l]);
  }

  [[gnu::cold]] void zero_gradients(ModelState& model) noexcept {
    for (auto& layer : model.parameters) layer.zero_gradients();
    for (auto& owners : storage)
      for (auto& owner : owners)
        for (auto& copy : owner.copies) copy.zero();
  }

  /// The factor that scales all gradients down to Options::clip_norm, once each rank has finished.
  /// @param rank  that asks
  [[nodiscard]] double gradient_scale(ModelState const& model, int rank) noexcept {
    if (!model.options.clip_norm) return 1;
    // A device has found it, but only for what is pushed on the host: its updates find it there.
    double const norm = model.memory != nullptr ? gradient_norm : model.gradient_norm();
    if (rank == reporter) gradient_norm = norm;
    return norm > *model.options.clip_norm ? *model.options.clip_norm / norm : 1;
  }

  /// What a step with gradients that are not finite leaves out. Of a worker nothing but its own
  /// push, since the server may add those of others.
  [[nodiscard]] char const* left_out() const noexcept {
    return program->exchanges() ? "this worker pushed nothing" : no_update;
  }

  /// Says in which action a layer threw the exception with which the step ends.
  [[gnu::cold]] void find_failure(std::exception_ptr const& failure) noexcept {
    failed_at.clear();
    for (auto& rank : ranks) {
      try {
        if (rank.thrown && rank.thrown == failure)
          failed_at = text(name_of(*program, rank.number), " in ",
                           describe(*program, *rank.thrown_in), ", layer ", rank.context.layer());
      } catch (...) {  // no memory
      }
      rank.thrown = nullptr;
    }
  }

  /// Adds the memory of values and contexts.
  [[gnu::cold]] void add_memory(Memory& memory) const {
    for (auto const& owners : storage)
      for (auto const& owner : owners) {
        for (auto const& copy : owner.copies) {
          (copy.kept().arrive() ? memory.scratch : memory.parameters) += copy.bytes();
          memory.optimizer_state += copy.own_states().state_bytes();
        }
        memory.activations += owner.x.bytes() + owner.repeated_output.bytes();
        for (auto const& layer : owner.layers) {
          memory.activations += layer.y.bytes() + layer.saved.bytes();
          memory.gradients += layer.dy.bytes();
        }
        memory.gradients += owner.dx.bytes();
      }
    for (auto const& rank : ranks) memory.scratch += rank.context.scratch_bytes();
  }

  FixedArray<List<CellStorage>> storage;  // [stages][owners]
  Program const* program = nullptr;
  FixedArray<RankState> ranks;
  FixedArray<StageRun> cells;         // of the program
  FixedArray<EndOfStep> end_of_step;  // [ranks]
  ReplicaRun* replica_run = nullptr;
  GroupingRun grouping_run;
  GroupingChoice grouping;
  GroupingPeers grouping_peers;
  StepArguments arguments;
  double gradient_norm = 0;
  int reporter = 0;       // the rank that writes it
  int skipped = 0;        // updates that the step has left out
  std::string failed_at;  // where the last step that failed did; empty if no layer threw

 private:
  /// Whether a layer's repeated forwards are compared. They cannot be in the memory of a GPU.
  [[nodiscard]] bool checks_repeated(ModelState const& model, LayerRun const& layer) const {
    Options const& options = model.options;
    if (!options.recompute || !program->training || model.memory != nullptr) return false;
    if (options.check_recompute && layer.ops->digest == nullptr)
      raise(Errc::bad_configuration, "Options::check_recompute cannot compare the Output of layer ",
            layer.number,
            "; give its type a member fields() that returns a std::tie of tensors, vectors and "
            "numbers, or leave the option out");
    return (options.check_recompute || checks_recompute) && layer.ops->digest != nullptr;
  }

  /// The memory of an owner of a stage, made unless an earlier program needed it.
  [[gnu::cold]] CellStorage& storage_of(ModelState const& model, int stage, std::size_t owner) {
    auto& owners = storage[stage];
    IndexRange const layers = model.layers_of(stage);
    while (owners.size() <= owner) {
      CellStorage made;
      made.layers = FixedArray<LayerStorage>(layers.size());
      if (!owners.empty()) made.copies = FixedArray<GradientCopy>(layers.size());
      for (std::size_t i = 0; i < made.copies.size(); ++i) {
        made.layer_copies.push_back(model.layers[layers.first + i]);
        auto const& parameters = model.parameters[layers.first + i];
        made.copies[i].of(parameters, parameters.views(), parameters.stored());
      }
      owners.push_back(std::move(made));
    }
    return owners[owner];
  }

  [[gnu::cold]] void make_cell(ModelState& model, Cell const& need, std::size_t owner,
                               StageRun& cell) {
    CellStorage& own = storage_of(model, need.stage, owner);
    cell.layers.clear();
    cell.repeated_output = nullptr;
    EndOfStep& at_end = end_of_step[need.rank];
    cell.first = need.first();
    cell.last = need.last();
    cell.opens = need.opens;
    for (std::size_t i = 0; i < own.layers.size(); ++i) {
      std::size_t const l = model.layers_of(need.stage).first + i;
      LayerStorage& values = own.layers[i];
      LayerRun run;
      run.object = owner == 0 ? model.layers[l].object() : own.layer_copies[i].object();
      run.ops = &model.layers[l].ops();
      if (owner == 0)
        model.parameters[l].reserve_versions(need.versions);
      else if (need.versions > 1)
        own.copies[i].show_versions(model.parameters[l].views(), need.versions,
                                    model.parameters[l].count());
      run.parameter_count = model.parameters[l].count();
      run.parameters = owner == 0 ? model.parameters[l].views() : own.copies[i].views();
      run.number = model.number(l);
      bool const final_layer = i + 1 == own.layers.size();
      values.saved.provide(*run.ops->saved, need.kept_slots);
      if (!final_layer || cell.last)
        values.y.provide(*run.ops->output, need.kept_slots);
      else
        values.y.provide(*run.ops->output, need.y_slots);  // 0 if their reader has the slots
      values.dy.provide(*run.ops->output, final_layer ? need.dy_slots : need.inner_slots);
      if (final_layer && !cell.last && model.options.recompute)
        own.repeated_output.provide(*run.ops->output, 1);
      run.y = places(values.y, *run.ops->output);
      run.saved = places(values.saved, *run.ops->saved);
      run.dy = places(values.dy, *run.ops->output);
      if (checks_repeated(model, run)) {
        if (own.repeated.size() == 0) own.repeated = FixedArray<RepeatedForward>(own.layers.size());
        own.repeated[i].replace(run, need.rank, static_cast<std::size_t>(program->microbatches));
      }
      cell.layers.push_back(run);
      if (need.alone) continue;  // `apply` updates it
      if (owner == 0) {
        for (std::size_t p = 0; model.counted(l) && p < model.parameters[l].count(); ++p)
          at_end.squares.push_back({l, p});
        at_end.layers.push_back({l, {}});
      } else {
        at_end.clear.push_back(&own.copies[i]);
        end_of_step[program->cells[cells_of(*program, need.stage).first].rank].add.push_back(
            {&model.parameters[l], &own.copies[i]});
      }
    }
    SlotType const& input = *cell.layers.front().ops->input;
    own.x.provide(input, cell.first ? 1 : need.x_slots);
    (cell.first ? cell.dx : cell.x) = places(own.x, input);
    if (need.gathers_input) {
      own.dx.provide(input, need.dx_slots);
      cell.dx = places(own.dx, input);
    }
    if (own.repeated_output.count() != 0) cell.repeated_output = own.repeated_output[0];
  }
};

/// What ranks do at the end of a step, and before an update of one stage.
struct StepEnd {
  ModelState& model;
  Execution& run;

  /// Ends a rank's part of a step except for its updates: adds the gradients of other owners, adds
  /// up the squares for clipping, and looks for gradients that are not finite, which a device does
  /// by their squares.
  /// @param sums  [parameters] sums of squares in the memory of a device, if parameters are there
  void finish(int rank, double* sums = nullptr) const {
    EndOfStep& end = run.end_of_step[rank];
    bool const clips = model.options.clip_norm.has_value();
    for (Addition const& addition : end.add) addition.to->add({&addition.from, 1});
    for (Square const& one : end.squares) {
      LayerParameters& layer = model.parameters[one.layer];
      if (clips || (sums != nullptr && model.options.non_finite != NonFinite::ignore))
        layer.sum_squares(one.parameter,
                          sums != nullptr ? sums + model.parameters_before(one.layer) : nullptr,
                          one.range);
      if (!looks() || one.layer < end.not_finite) continue;
      // A sum of squares is finite only if all of its terms are; it may also overflow by itself.
      bool const finite =
          (clips && math::isfinite(layer.square_sums()[one.parameter])) ||
          layer.all_finite(one.parameter, layer.stored().gradients.data(), one.range);
      if (!finite) end.not_finite = static_cast<std::uint32_t>(one.layer) + 1;
    }
  }

  /// Once each rank has finished: whether all leave out their updates.
  /// @throws Error  not_finite, on every rank the same, if Options::non_finite says so
  [[nodiscard]] bool skips() const {
    auto const& ends = run.end_of_step;
    std::size_t found = 0;
    for (std::size_t r = 1; r < ends.size(); ++r)  // backward begins at the last layer
      if (ends[r].not_finite > ends[found].not_finite) found = r;
    bool const each = ends[found].not_finite == 0;
    bool const clips = model.options.clip_norm.has_value();
    if (each && (!looks() || !clips || math::isfinite(model.gradient_norm()))) return false;
    if (model.options.non_finite == NonFinite::skip) return true;
    if (!each) refuse(ends[found].not_finite - 1, static_cast<int>(found), nullptr);
    refuse_norm(model.steps, run.left_out());
  }

  /// Looks at gradients that are used, or pushed, before all ranks have theirs.
  /// @param apply   the update of one stage that uses them; null: they are pushed
  /// @param copies  [layers] on the host, if a device has the parameters; null: there are none
  /// @return        false if the update must be left out: NonFinite::skip
  /// @throws Error  not_finite
  [[nodiscard]] bool finite(IndexRange layers, int rank, Instruction const* apply = nullptr,
                            LayerParameters const* copies = nullptr) const {
    bool const part = apply != nullptr && apply->updates_part();
    bool const look = copies != nullptr ? model.options.non_finite != NonFinite::ignore : looks();
    for (std::size_t l = layers.last; look && l-- > layers.first;) {
      LayerParameters const& own = copies != nullptr ? copies[l] : model.parameters[l];
      ByteRange const range = part ? own.part(apply->part(), apply->parts()) : ByteRange{};
      if (own.all_finite(own.stored().gradients.data(), range)) continue;
      if (apply == nullptr || model.options.non_finite != NonFinite::skip) refuse(l, rank, apply);
      auto& found =
          run.end_of_step[rank].not_finite;  // the step is left out when all have finished
      found = std::max(found, static_cast<std::uint32_t>(l) + 1);
      return false;
    }
    return true;
  }

  /// A rank's part of the update.
  /// @param skips  leaves it out, and drops the gradients
  void update(int rank, bool skips) const {
    EndOfStep& end = run.end_of_step[rank];
    UpdateStep step{run.gradient_scale(model, rank), model.steps + 1};
    step.only_added = model.memory == nullptr;
    end.updated = model.shards_on_host() && !skips;
    for (LayerPart const& own : end.layers) {
      LayerParameters& layer = model.parameters[own.layer];
      if (skips) layer.zero_gradients(own.range);
      for (step.range = own.range; !skips && step.range.first < own.range.last;
           step.range.first = step.range.last) {
        // Saved in pieces, which are still in the cache when they are updated.
        step.range.last = model.shards_on_host() && model.optimizer.element_wise
                              ? std::min(step.range.first + saved_at_once, own.range.last)
                              : own.range.last;
        if (model.shards_on_host()) layer.copy_part(step.range, false);
        model.optimizer.update(model.optimizer.optimizer, layer, step);
      }
    }
  }

 private:
  static constexpr std::size_t saved_at_once = std::size_t{1} << 15U;  // bytes

  /// Whether gradients that are not finite are looked for.
  [[nodiscard]] bool looks() const noexcept {
    return model.options.non_finite != NonFinite::ignore && model.memory == nullptr;
  }
  /// @param apply  as for finite
  [[noreturn]] [[gnu::cold]] void refuse(std::size_t layer, int rank,
                                         Instruction const* apply) const {
    Program const& program = *run.program;
    std::string const which = text("a gradient of layer ", model.number(layer), " on rank ", rank);
    std::string when;
    if (apply != nullptr)
      when = text(program.flushes ? " in pass " : " in minibatch ", apply->update());
    else if (!program.exchanges())
      when = loss_not_finite();
    if (program.exchanges() && (!program.flushes || program.pushes_groups))
      raise(Errc::not_finite, which, " is not finite", when, ", so it was not pushed",
            not_finite_remedy);
    refuse_update(which, when, model.steps, run.left_out());
  }
  /// In words, the first microbatch whose loss is not finite either.
  [[nodiscard]] [[gnu::cold]] std::string loss_not_finite() const {
    int parts = 1;
    for (int const replicas : model.options.replicas.counts()) parts = std::max(parts, replicas);
    int const microbatches = run.program->microbatches;
    for (int m = 0; m < microbatches; ++m)
      for (int part = 0; part < parts; ++part)
        if (!math::isfinite(run.arguments.losses[part * microbatches + m])) return nor_is_loss(m);
    return {};
  }
};

}  // namespace stagger::detail
