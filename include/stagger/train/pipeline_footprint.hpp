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
#include <stagger/train/one_device.hpp>
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
      : parameters_(parameters), contexts_(parameters.size() + 1) {  // of the layers and the loss
    require_measurable(layers, parameters.size());
    for (auto& context : contexts_) context.begin_step(steps, seed, true, 0, true);
    auto const add = [&](IndexRange own) {
      chain_.back().members.emplace_back(
          own, LayerLoop(layers + own.first, parameters.data() + own.first, own.size()));
    };
    if (shared == nullptr) {
      chain_.emplace_back();
      add({0, parameters.size()});
      return;
    }
    auto const& sections = shared->grouped->sections();
    for (Section const& section : sections.chain) {
      chain_.emplace_back(section);
      for (int m = 0; m < (section.grouped ? sections.members : 1); ++m)
        add(shared->layers_of(section.stage + m));
    }
  }

  /// @param terms  of the target
  [[gnu::cold]] Footprint measure(void const* input, void const* loss, LossOps const& ops,
                                  void const* target, double terms) {
    static_cast<void>(require_terms(terms, 0));
    Footprint result;
    result.layers.resize(parameters_.size());
    try {
      Slots whole = forward(input, result);
      for (Member& own : chain_.back().members) {
        std::size_t const last = own.layers.size() - 1;
        Context& context = contexts_[parameters_.size()];
        context.begin_action(nullptr, own.loop.parameters[last].number(), 0);
        ops.value_and_gradient(loss, context, own.loop.y[last][0], target,
                               terms > 0 ? 1 / terms : 0, own.loop.dy[last][0]);
      }
      for (std::size_t s = chain_.size(); s-- > 0;) {
        if (s + 1 != chain_.size()) give_back(chain_[s], whole);
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
    for (Part const& part : chain_)
      for (Member const& own : part.members)
        for (std::size_t i = 0; i < own.layers.size(); ++i) {
          SlotType const& type = *own.loop.layers[i].ops().output;
          void const* const y = own.loop.y[i][0];
          std::size_t const rows = type.rows == nullptr ? 1 : type.rows(y);
          bytes.push_back(rows == 0 ? 0 : type.message_bytes(y) / rows);
        }
    return bytes;
  }

 private:
  /// The layers of one member of a section.
  struct Member {
    Member(IndexRange own, LayerLoop made) : layers(own), loop(std::move(made)) {}
    IndexRange layers;
    LayerLoop loop;
    Slots x;
    [[nodiscard]] LayerOps const& front() const { return loop.layers[0].ops(); }
    [[nodiscard]] LayerOps const& back() const { return loop.layers[layers.size() - 1].ops(); }
  };
  struct Part {
    explicit Part(Section const& of = {}) : section(of) {}
    Section section;
    List<Member> members;
    // The columns of the input and of the output that a member has; null: all.
    [[nodiscard]] ColumnOps const* taken() const {
      bool const columns = section.takes == partition::Held::columns;
      return columns ? members[0].front().split->input : nullptr;
    }
    [[nodiscard]] ColumnOps const* given() const {
      bool const columns = section.gives == partition::Held::columns;
      return columns ? members[0].back().split->output : nullptr;
    }
  };

  [[noreturn]] [[gnu::cold]] void refuse(std::size_t layer) const {
    raise(Errc::bad_configuration, "the parameters of layer ", parameters_[layer].number(),
          " are in another process or on a GPU, where its memory cannot be measured; measure a "
          "pipeline on host::Threads");
  }

  /// Copies the part of a value between two layers that a member takes: its columns, or all of it.
  static void take(ColumnOps const* columns, SlotType const& type, Slots const& to,
                   Slots const& whole, std::size_t member, std::size_t members) {
    if (columns == nullptr) return type.assign(to[0], whole[0]);
    IndexRange const own =
        features_of(static_cast<int>(member), static_cast<int>(members), columns->count(whole[0]));
    std::size_t const rows = type.rows(whole[0]);
    columns->resize(to[0], whole[0], {rows, own.size()});
    columns->copy(to[0], {0, 0}, whole[0], {0, own.first}, {rows, own.size()});
  }
  /// Copies a member's part of a value to its place in the whole value.
  static void put(ColumnOps const* columns, SlotType const& type, Slots const& whole,
                  Slots const& from, std::size_t member, std::size_t& filled,
                  std::size_t features) {
    if (columns == nullptr) return member == 0 ? type.assign(whole[0], from[0]) : void();
    std::size_t const rows = type.rows(from[0]);
    std::size_t const own = columns->count(from[0]);
    if (member == 0) columns->resize(whole[0], from[0], {rows, features});
    columns->copy(whole[0], {0, filled}, from[0], {0, 0}, {rows, own});
    filled += own;
  }

  /// @return the model's output
  [[gnu::cold]] Slots forward(void const* input, Footprint& result) {
    SlotType const& type = *chain_[0].members[0].front().input;
    Slots whole(type, 1);
    type.assign(whole[0], input);
    for (Part& part : chain_) whole = forward(part, whole, result);
    return whole;
  }
  /// @return the output of all members, put together; if members give terms, those of member 0
  [[gnu::cold]] Slots forward(Part& part, Slots const& before, Footprint& result) {
    Slots after(*part.members[0].back().output, 1);
    std::size_t filled = 0;
    if (part.taken() != nullptr) arrived_.push_back(part.taken()->count(before[0]));
    for (std::size_t m = 0; m < part.members.size(); ++m) {
      Member& own = part.members[m];
      SlotType const& type = *own.front().input;
      own.x = Slots(type, 1);
      take(part.taken(), type, own.x, before, m, part.members.size());
      for (std::size_t i = 0; i < own.layers.size(); ++i) {
        own.loop.forward(contexts_[own.layers.first + i], i, own.x[0]);
        result.layers[own.layers.first + i].saved_forward = own.loop.saved[i].bytes();
      }
      put(part.given(), *own.back().output, after, own.loop.y[own.layers.size() - 1], m, filled,
          part.section.features);
    }
    return after;
  }

  /// Gives every member its part of the gradient of the output.
  [[gnu::cold]] void give_back(Part const& part, Slots const& gradient) {
    for (std::size_t m = 0; m < part.members.size(); ++m) {
      Member const& own = part.members[m];
      take(part.given(), *own.back().output, own.loop.dy[own.layers.size() - 1], gradient, m,
           part.members.size());
    }
  }

  /// @return the gradient of the input; if terms are added, that of member 0
  [[gnu::cold]] Slots backward(Part const& part) {
    SlotType const& type = *part.members[0].front().input;
    Slots before(type, 1);
    std::size_t filled = 0;
    for (std::size_t m = 0; m < part.members.size(); ++m) {
      Member const& own = part.members[m];
      for (std::size_t i = own.layers.size(); i-- > 0;)
        own.loop.backward(contexts_[own.layers.first + i], i, own.x[0]);
      put(part.taken(), type, before, own.loop.dx, m, filled,
          part.taken() == nullptr ? 0 : arrived_.back());
    }
    if (part.taken() != nullptr) arrived_.pop_back();
    return before;
  }

  [[gnu::cold]] void count(Footprint& result) {
    for (Part const& part : chain_)
      for (Member const& own : part.members)
        for (std::size_t i = 0; i < own.layers.size(); ++i) {
          LayerBytes& of = result.layers[own.layers.first + i];
          of.input = (i == 0 ? own.x : own.loop.y[i - 1]).bytes();
          of.input_gradient = (i == 0 ? own.loop.dx : own.loop.dy[i - 1]).bytes();
          of.output = own.loop.y[i].bytes();
          of.output_gradient = own.loop.dy[i].bytes();
          of.saved = own.loop.saved[i].bytes();
          of.scratch = scratch_of(contexts_[own.layers.first + i]);
          LayerParameters const& parameters = own.loop.parameters[i];
          of.parameters = parameters.values().size();
          for (std::size_t p = 0; p < parameters.count(); ++p)
            of.first_bytes.push_back(parameters.range(p).first);
        }
    for (Member const& own : chain_.back().members) {
      auto& scratch = result.layers[own.layers.last - 1].scratch;
      scratch = std::max(scratch, scratch_of(contexts_[parameters_.size()]));
    }
  }

  FixedArray<LayerParameters>& parameters_;
  FixedArray<Context> contexts_;  // [layers + 1]
  List<Part> chain_;              // of a model that is not shared: one for all layers
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
  auto const hold = train.hold();
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
    cuts.push_back(static_cast<int>(machine.model.first_layer[s]));
  return predicted_memory(train.program(rows.size()), cuts, machine.model.optimizer.states, rows,
                          std::forward<FootprintOf>(footprint));
}

}  // namespace stagger
