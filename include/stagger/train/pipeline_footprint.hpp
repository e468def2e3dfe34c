// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The memory of a pipeline before its first step, also where groups of ranks share layers.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/list.hpp>
#include <stagger/engine/append_layers.hpp>
#include <stagger/engine/layer.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/engine/slots.hpp>
#include <stagger/model/context.hpp>
#include <stagger/program/sections.hpp>
#include <stagger/train/footprint.hpp>
#include <stagger/train/trainer.hpp>

namespace stagger {
namespace detail {

/// Takes one microbatch through layers, forward and back, with one object for each value: those
/// that the ranks of a pipeline have, or those of one device. Where groups share layers, those of
/// every member take part, and what members exchange is put together in between.
class FootprintRun {
 public:
  [[gnu::cold]] explicit FootprintRun(ModelState& model)
      : FootprintRun(model.layers.data(), model.parameters, model.steps, model.options.seed,
                     model.grouped != nullptr ? &model : nullptr) {
    if (model.memory != nullptr) refuse(0);
    for (std::size_t l = 0; l < model.layers.size(); ++l)
      if (model.parameters[l].count() != 0 && model.parameters[l].values().empty()) refuse(l);
  }
  /// @param shared  the model, if groups share its layers
  [[gnu::cold]] FootprintRun(Layer const* layers, FixedArray<LayerParameters>& parameters,
                             std::int64_t steps, std::uint64_t seed,
                             ModelState const* shared = nullptr)
      : layers_(layers),
        parameters_(parameters),
        shared_(shared),
        x_(parameters.size()),
        y_(parameters.size()),
        dy_(parameters.size()),
        dx_(parameters.size()),
        saved_(parameters.size()),
        contexts_(parameters.size() + 1) {  // of the layers and the loss
    for (std::size_t l = 0; l < parameters.size(); ++l) {
      LayerOps const& ops = layers[l].ops();
      y_[l] = Slots(*ops.output, 1);
      dy_[l] = Slots(*ops.output, 1);
      saved_[l] = Slots(*ops.saved, 1);
    }
    for (auto& context : contexts_) context.begin_step(steps, seed, true);
    if (shared != nullptr) {
      auto const& sections = shared->grouped->ops->sections(*shared->grouped);
      members_ = sections.members;
      for (Section const& section : sections.chain) chain_.push_back(section);
    } else {
      chain_.push_back({});
    }
  }

  /// @param terms  of the target
  [[gnu::cold]] Footprint measure(void const* input, void const* loss, LossOps const& ops,
                                  void const* target, double terms) {
    Footprint result;
    result.layers.resize(parameters_.size());
    try {
      Slots whole = forward(input, result);
      for (std::size_t s = chain_.size(); s-- > 0;) {
        if (s + 1 == chain_.size())
          for (int m = 0; m < members(chain_[s]); ++m) {
            std::size_t const l = layers_of(chain_[s], m).last - 1;
            Context& context = contexts_[parameters_.size()];
            context.begin_action(nullptr, number(l), 0);
            ops.value_and_gradient(loss, context, y_[l][0], target, terms > 0 ? 1 / terms : 0,
                                   dy_[l][0]);
          }
        else
          give_back(chain_[s], whole);
        whole = backward(chain_[s]);
      }
    } catch (...) {
      for (auto& parameters : parameters_) parameters.zero_gradients();
      throw;
    }
    for (auto& parameters : parameters_) parameters.zero_gradients();
    count(result);
    return result;
  }

  /// Takes one microbatch forward alone. @return bytes of a row of each layer's output; where
  /// members have parts of it, of theirs. A value without rows counts as one row.
  [[gnu::cold]] List<std::uint64_t> row_bytes(void const* input) {
    Footprint unused;
    unused.layers.resize(parameters_.size());
    static_cast<void>(forward(input, unused));
    List<std::uint64_t> bytes;
    for (std::size_t l = 0; l < parameters_.size(); ++l) {
      SlotType const& type = *layers_[l].ops().output;
      std::size_t const rows = type.rows == nullptr ? 1 : type.rows(y_[l][0]);
      std::uint64_t const all =
          type.payload == nullptr ? type.payload_bytes : type.payload(y_[l][0]);
      bytes.push_back(rows == 0 ? 0 : all / rows);
    }
    return bytes;
  }

 private:
  [[noreturn]] [[gnu::cold]] void refuse(std::size_t layer) const {
    raise(Errc::bad_configuration, "the parameters of layer ", number(layer),
          " are in another process or on a GPU, where its memory cannot be measured; measure a "
          "pipeline on host::Threads");
  }
  [[nodiscard]] int number(std::size_t layer) const noexcept {
    return shared_ != nullptr ? shared_->number(layer) : static_cast<int>(layer);
  }
  [[nodiscard]] int members(Section const& section) const noexcept {
    return section.grouped ? members_ : 1;
  }
  [[nodiscard]] IndexRange layers_of(Section const& section, int member) const noexcept {
    if (shared_ == nullptr) return {0, parameters_.size()};
    return shared_->layers_of(section.stage + member);
  }
  [[nodiscard]] LayerAction action(std::size_t l) const noexcept {
    return {layers_[l].object(), &layers_[l].ops(), parameters_[l].views(), number(l), 0};
  }

  /// Copies the part of a value between two layers that a member takes: its columns, or all of it.
  static void take(ColumnOps const* columns, SlotType const& type, Slots const& to,
                   Slots const& whole, int member, int members) {
    if (columns == nullptr) return type.assign(to[0], whole[0]);
    IndexRange const own = features_of(member, members, columns->count(whole[0]));
    std::size_t const rows = type.rows(whole[0]);
    columns->resize(to[0], whole[0], {rows, own.size()});
    columns->copy(to[0], {0, 0}, whole[0], {0, own.first}, {rows, own.size()});
  }
  /// Copies a member's part of a value to its place in the whole value.
  static void put(ColumnOps const* columns, SlotType const& type, Slots const& whole,
                  Slots const& from, int member, std::size_t& filled, std::size_t features) {
    if (columns == nullptr) return member == 0 ? type.assign(whole[0], from[0]) : void();
    std::size_t const rows = type.rows(from[0]);
    std::size_t const own = columns->count(from[0]);
    if (member == 0) columns->resize(whole[0], from[0], {rows, features});
    columns->copy(whole[0], {0, filled}, from[0], {0, 0}, {rows, own});
    filled += own;
  }
  [[nodiscard]] static ColumnOps const* taken(Section const& section, LayerOps const& front) {
    return section.takes == partition::Held::columns ? front.split->input : nullptr;
  }
  [[nodiscard]] static ColumnOps const* given(Section const& section, LayerOps const& back) {
    return section.gives == partition::Held::columns ? back.split->output : nullptr;
  }

  /// @return the model's output
  [[gnu::cold]] Slots forward(void const* input, Footprint& result) {
    SlotType const& type = *layers_[0].ops().input;
    Slots whole(type, 1);
    type.assign(whole[0], input);
    for (Section const& section : chain_) whole = forward(section, whole, result);
    return whole;
  }
  /// @return the output of all members, put together; if members give terms, those of member 0
  [[gnu::cold]] Slots forward(Section const& section, Slots const& before, Footprint& result) {
    Slots after;
    std::size_t filled = 0;
    for (int m = 0; m < members(section); ++m) {
      IndexRange const layers = layers_of(section, m);
      LayerOps const& front = layers_[layers.first].ops();
      LayerOps const& back = layers_[layers.last - 1].ops();
      x_[layers.first] = Slots(*front.input, 1);
      dx_[layers.first] = Slots(*front.input, 1);
      take(taken(section, front), *front.input, x_[layers.first], before, m, members(section));
      if (m == 0 && section.takes == partition::Held::columns)
        arrived_.push_back(front.split->input->count(before[0]));
      for (std::size_t const l : layers) {
        forward_layer(contexts_[l], action(l), input_of(layers, l)[0], y_[l][0], saved_[l][0]);
        result.layers[l].saved_forward = saved_[l].bytes();
      }
      if (m == 0) after = Slots(*back.output, 1);
      put(given(section, back), *back.output, after, y_[layers.last - 1], m, filled,
          section.features);
    }
    return after;
  }

  /// Gives every member its part of the gradient of the output.
  [[gnu::cold]] void give_back(Section const& section, Slots const& gradient) {
    for (int m = 0; m < members(section); ++m) {
      std::size_t const l = layers_of(section, m).last - 1;
      LayerOps const& back = layers_[l].ops();
      take(given(section, back), *back.output, dy_[l], gradient, m, members(section));
    }
  }

  /// @return the gradient of the input; if terms are added, that of member 0
  [[gnu::cold]] Slots backward(Section const& section) {
    Slots before;
    std::size_t filled = 0;
    for (int m = 0; m < members(section); ++m) {
      IndexRange const layers = layers_of(section, m);
      LayerOps const& front = layers_[layers.first].ops();
      for (std::size_t l = layers.last; l-- > layers.first;)
        backward_layer(contexts_[l], action(l), {}, input_of(layers, l)[0], dy_[l][0],
                       l == layers.first ? dx_[l][0] : dy_[l - 1][0], saved_[l][0]);
      if (m == 0) before = Slots(*front.input, 1);
      ColumnOps const* const columns = taken(section, front);
      put(columns, *front.input, before, dx_[layers.first], m, filled,
          columns == nullptr ? 0 : arrived_.back());
    }
    if (section.takes == partition::Held::columns) arrived_.pop_back();
    return before;
  }

  [[nodiscard]] Slots const& input_of(IndexRange layers, std::size_t l) const noexcept {
    return l == layers.first ? x_[l] : y_[l - 1];
  }

  [[gnu::cold]] void count(Footprint& result) {
    for (Section const& section : chain_)
      for (int m = 0; m < members(section); ++m) {
        IndexRange const layers = layers_of(section, m);
        for (std::size_t const l : layers) {
          LayerBytes& of = result.layers[l];
          of.input = input_of(layers, l).bytes();
          of.input_gradient = l == layers.first ? dx_[l].bytes() : dy_[l - 1].bytes();
          of.output = y_[l].bytes();
          of.output_gradient = dy_[l].bytes();
          of.saved = saved_[l].bytes();
          of.scratch = scratch_of(contexts_[l]);
          of.parameters = parameters_[l].values().size();
        }
        if (&section != &chain_[chain_.size() - 1]) continue;
        auto& scratch = result.layers[layers.last - 1].scratch;
        scratch = std::max(scratch, scratch_of(contexts_[parameters_.size()]));
      }
  }

  Layer const* layers_;  // [layers]
  FixedArray<LayerParameters>& parameters_;
  ModelState const* shared_;  // null: no groups share layers
  int members_ = 1;
  List<Section> chain_;           // of a model that is not shared: one for all layers
  FixedArray<Slots> x_;           // [layers] of those that begin a section
  FixedArray<Slots> y_, dy_;      // [layers]
  FixedArray<Slots> dx_;          // as x_
  FixedArray<Slots> saved_;       // [layers]
  FixedArray<Context> contexts_;  // [layers + 1]
  List<std::size_t> arrived_;     // features, of sections that take columns
};

}  // namespace detail

/// The memory that one microbatch occupies in the layers that the ranks of a pipeline have, by
/// stage of its programs. Where groups of ranks share layers, each member's part or copy has its
/// own. Takes no step; parameters stay as they are.
/// @param loss    that the pipeline was given
/// @throws Error  bad_configuration where parameters are not in this process' memory; what a layer
///                throws
template <class In, class Out, class Optimizer, class Loss, bool synchronous, class Device>
[[nodiscard]] Footprint footprint(Trainer<In, Out, Optimizer, Loss, synchronous, Device>& train,
                                  Loss const& loss, In const& input,
                                  typename Loss::Target const& target) {
  train.settle();
  detail::FootprintRun run(train.machine().model);
  Footprint result =
      run.measure(&input, &loss, detail::make_loss_ops<Loss, Out>(), &target, loss.terms(target));
  result.target = byte_count(target);
  return result;
}

/// What `Trainer::memory` will return after two steps, of a pipeline that has taken none: byte for
/// byte, as the function for programs. Groups of ranks may share its layers.
///
/// @code
///     std::map<std::size_t, Footprint> known;
///     Memory const memory = predicted_memory(train, rows, [&](std::size_t n) -> Footprint const& {
///       auto const found = known.find(n);
///       return found != known.end() ? found->second
///                                   : known[n] = footprint(train, loss, inputs(n), targets(n));
///     });
/// @endcode
/// @param rows       [microbatches] of the model's input
/// @param footprint  Footprint const&(std::size_t rows)
template <class Train, class FootprintOf>
[[nodiscard]] Memory predicted_memory(Train& train, std::span<std::size_t const> rows,
                                      FootprintOf&& footprint) {
  detail::Machine const& machine = train.machine();
  std::vector<int> cuts;
  for (std::size_t s = 1; s < machine.model.stages(); ++s)
    cuts.push_back(static_cast<int>(machine.first_layers()[s]));
  return predicted_memory(train.program(rows.size()), cuts, machine.model.optimizer.states, rows,
                          std::forward<FootprintOf>(footprint));
}

}  // namespace stagger
