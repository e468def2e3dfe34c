// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A model as the engine holds it, independent of any schedule: layers, parameters, the
///         optimizer, and the number of steps taken.

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/list.hpp>
#include <stagger/core/math.hpp>
#include <stagger/engine/detail/grouped.hpp>
#include <stagger/engine/layer.hpp>
#include <stagger/engine/options.hpp>
#include <stagger/parameters/layer_parameters.hpp>
#include <stagger/parameters/optimizer_call.hpp>
#include <stagger/parameters/parameter_memory.hpp>
#include <stagger/program/program.hpp>

namespace stagger::detail {

[[noreturn]] [[gnu::cold]] inline void refuse_other_shares(int layer, int microbatches) {
  raise(Errc::bad_configuration, "the optimizer's state of layer ", layer,
        " is shared out to ranks, and a step of ", counted(microbatches, "microbatch"),
        " shares it out to others; take all steps with as many microbatches, or leave "
        "shard_optimizer out");
}

struct ModelState {
  [[gnu::cold]] ModelState(List<Layer> made, std::vector<int> const& cuts, Options const& chosen,
                           int states, ParameterMemory const& where, bool shared_out, bool whole,
                           Grouped const* divided)
      : device_memory(where),
        host_memory(where.host != nullptr ? *where.host : ParameterMemory{}),
        memory(where.allocate != nullptr ? &device_memory : nullptr),
        layers(std::move(made)),
        parameters(layers.size()),
        options(chosen),
        shards(shared_out),
        grouped(divided) {
    int turn = 0;
    for (std::size_t l = 0; l < layers.size(); ++l) {
      parameters[l].adopt(layers[l].ops().adopt_parameters(layers[l].object(), number(l)),
                          number(l), states, memory, shards, whole);
      parameters[l].set_turn(turn);
      if (parameters[l].count() != 0) ++turn;
    }
    for (int const cut : grouped != nullptr ? grouped->cuts : cuts)
      first_layer.push_back(static_cast<std::size_t>(cut));
    first_layer.push_back(layers.size());
  }
  /// Before anything asks for a part of a layer.
  [[gnu::cold]] void set_optimizer(OptimizerCall const& call) {
    optimizer = call;
    for (LayerParameters& layer : parameters)
      if (!call.element_wise) layer.keep_parameters_whole();
  }
  ModelState(ModelState const&) = delete;
  ModelState& operator=(ModelState const&) = delete;

  /// Whether each replica adds up the squares of its part of a layer, and saves the part before its
  /// update, which a failure undoes. On a device the first holder adds up squares, and no update is
  /// undone.
  [[nodiscard]] bool shards_on_host() const noexcept { return shards && memory == nullptr; }
  [[nodiscard]] std::size_t stages() const noexcept { return first_layer.size() - 1; }
  template <std::integral I> [[nodiscard]] IndexRange layers_of(I stage) const noexcept {
    return {first_layer[stage], first_layer[stage + 1]};
  }
  /// The layers of a group, counted over the whole model.
  [[nodiscard]] IndexRange layers_of(GradientGroup const& group) const noexcept {
    IndexRange const stage = layers_of(group.stage);
    auto const lowest = static_cast<std::size_t>(group.lowest);
    auto const highest = static_cast<std::size_t>(group.highest);
    return {stage.first + lowest, std::min(stage.first + highest + 1, stage.last)};
  }
  /// Bytes of the values of several layers, and so of their gradients.
  [[nodiscard]] std::uint64_t bytes_of(IndexRange several) const noexcept {
    std::uint64_t bytes = 0;
    for (std::size_t const l : several) bytes += parameters[l].sent_bytes();
    return bytes;
  }
  /// Shows every parameter to the caller, in layer order.
  [[gnu::cold]] void append_states(std::vector<ParameterState>& states, bool own) {
    shown = memory != nullptr || shards || grouped != nullptr;
    if (grouped != nullptr) return grouped->append_states(*this, states, own);
    for (auto& layer : parameters) own ? layer.append_own(states) : layer.append_states(states);
  }
  /// Makes every layer of the engine ready to be shown, each member's part of a shared one too.
  [[gnu::cold]] void show_layers() {
    put_back_wholes();
    std::vector<ParameterState> states;
    for (auto& layer : parameters) layer.append_states(states);
    shown = true;
  }
  /// Takes over what the caller has written into layers that groups share, if they were shown.
  [[gnu::cold]] void put_back_wholes() {
    if (shown && grouped != nullptr) grouped->put_back(*this);
  }
  /// The number of the user's layer that engine layer `layer` is, or is a part of.
  [[nodiscard]] int number(std::size_t layer) const noexcept {
    return grouped != nullptr ? grouped->layers[layer].number : static_cast<int>(layer);
  }
  /// Whether its gradients count: false for a further copy of the same layer.
  [[nodiscard]] bool counted(std::size_t layer) const noexcept {
    return grouped == nullptr || grouped->layers[layer].counted;
  }
  /// Stages of the schedule's table. Groups of ranks may run one as several stages of the program.
  [[nodiscard]] int table_stages() const noexcept {
    return grouped != nullptr ? grouped->table_stages : static_cast<int>(stages());
  }
  [[nodiscard]] int table_stage(int stage) const noexcept {
    return grouped != nullptr ? grouped->table_stage[stage] : stage;
  }
  /// The layers that the user gave.
  [[nodiscard]] std::size_t model_layers() const noexcept {
    return grouped != nullptr ? grouped->model_layers : layers.size();
  }
  [[nodiscard]] std::size_t parameters_before(std::size_t layer) const noexcept {
    std::size_t count = 0;
    for (std::size_t l = 0; l < layer; ++l) count += parameters[l].count();
    return count;
  }
  [[nodiscard]] std::size_t parameter_count() const noexcept {
    return parameters_before(layers.size());
  }
  /// The optimizer step of a stage that updates alone.
  /// @param updates  how many of its updates count as one of `steps`
  [[nodiscard]] UpdateStep update_step(Instruction const& in, int updates = 1) const noexcept {
    UpdateStep step{1, steps * updates + 1 + static_cast<std::int64_t>(in.update()), in.version,
                    in.next_version};
    step.only_added = memory == nullptr;
    return step;
  }
  /// The optimizer step of one layer alone, or of a part of it. If the run fails later, or leaves out
  /// all updates, the values from before it are restored.
  /// @param drops  the gradients are not used
  void apply(LayerParameters& layer, UpdateStep const& step, bool drops) const {
    if (!drops) return optimizer.update(optimizer.optimizer, layer, step);
    auto const& values = layer.stored().values;
    std::size_t const bytes = step.range.size_before(values[step.from].size());
    if (step.from != step.to && bytes != 0)
      std::memcpy(values[step.to].at(step.range.first), values[step.from].at(step.range.first),
                  bytes);
    layer.zero_gradients(step.range);
  }
  /// Likewise of all layers of a stage.
  void apply(Instruction const& in, int updates, bool drops) {
    for (std::size_t const l : layers_of(in.stage)) {
      apply(parameters[l], update_step(in, updates), drops);
      parameters[l].clear_added();
    }
  }

  /// 2-norm of all gradients whose squares were added up.
  [[nodiscard]] double gradient_norm() const noexcept {
    double sum = 0;  // added by parameter in layer order, so that cuts do not matter
    for (auto const& layer : parameters)
      for (double const square_sum : layer.square_sums()) sum += square_sum;
    return detail::math::sqrt(sum);
  }

  /// Keeps something for as long as there are parameters.
  void keep(std::shared_ptr<void const> thing) noexcept { kept = std::move(thing); }

  std::shared_ptr<void const> kept;
  ParameterMemory device_memory;
  ParameterMemory host_memory;    // of copies, if a device has the parameters
  ParameterMemory const* memory;  // null: parameters lie on the host
  List<Layer> layers;
  FixedArray<LayerParameters> parameters;  // [layers]
  List<std::size_t> first_layer{0};        // [stages + 1], the last: the number of layers
  Options options;
  bool shards;
  std::shared_ptr<Grouped const> division;  // null: no group was asked for
  Grouped const* grouped;                   // the same if any layer is shared
  FixedArray<LayerParameters> host_copies;  // of an exchange with a server that has ended
  FixedArray<ShownWhole> shown_wholes;      // then: copies for the caller
  OptimizerCall optimizer;
  bool shown = false;                  // the caller may have written into a copy
  std::atomic<std::int64_t> steps{0};  // other threads may read it during a step
};

}  // namespace stagger::detail
