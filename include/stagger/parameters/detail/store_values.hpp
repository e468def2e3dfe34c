// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The values of a layer that several workers train, and how pushes change them.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include <stagger/core/index_range.hpp>
#include <stagger/core/list.hpp>
#include <stagger/model/exchange.hpp>
#include <stagger/parameters/late_layers.hpp>
#include <stagger/parameters/layer_parameters.hpp>
#include <stagger/parameters/optimizer_call.hpp>
#include <stagger/parameters/parameter_memory.hpp>

namespace stagger::detail {

/// The rules by which a store adds pushes.
struct StoreRules {
  staleness::Pushes pushes = staleness::Pushes::changes;
  staleness::Adds adds = staleness::Adds::in_worker_order;
  OptimizerCall optimizer{};     ///< applied to gradients
  List<double> weights{};        ///< [workers] factors of gradients, or shares in the mean
  bool takes_over = false;       ///< whether those present take over weights of those who have gone
  bool log = false;              ///< whether events are recorded
  AddedRounds* added = nullptr;  ///< notified of each round of gradients, or null
};

/// What a step is about to overwrite. One serves all layers of which one at a time takes a step.
class StepBackup {
 public:
  void reserve(std::size_t bytes) {
    if (block_.size() < bytes) block_.make(nullptr, bytes);
  }
  void clear() noexcept { used_ = 0; }
  void keep(std::byte const* from, ByteRange part) {
    reserve(used_ + part.size());
    if (part.size() != 0) std::memcpy(block_.data() + used_, from + part.first, part.size());
    used_ += part.size();
  }
  /// Puts back the part that was kept last.
  void put_back(std::byte* to, ByteRange part) noexcept {
    used_ -= part.size();
    if (part.size() != 0) std::memcpy(to + part.first, block_.data() + used_, part.size());
  }

 private:
  ParameterBlock block_;
  std::size_t used_ = 0;  // bytes
};

/// Versions of a layer's values, its gradients, and its optimizer state.
class StoreValues {
 public:
  /// @param like   the layer's shape and first values
  /// @param rules  outlive this
  /// @param backup  which it shares with others, and which outlives this; null: it has its own
  [[gnu::cold]] StoreValues(LayerParameters const& like, StoreRules const& rules,
                            StepBackup* backup)
      : rules_(rules), backup_(backup != nullptr ? backup : &own_backup_) {
    List<ParameterDeclaration> declarations;
    for (std::size_t i = 0; i < like.count(); ++i)
      declarations.push_back(like.declaration(i, like.values().data()));
    bool const gradients = rules.pushes == staleness::Pushes::gradients;
    parameters_.adopt(std::move(declarations), like.number(),
                      gradients ? rules.optimizer.states : 0);
    if (!gradients) parameters_.release_gradients();
    backup_->reserve(bytes() + parameters_.state_bytes());
  }

  [[nodiscard]] LayerParameters& parameters() noexcept { return parameters_; }
  [[nodiscard]] LayerShape const& shape() const noexcept { return parameters_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return parameters_.bytes_of_values(); }
  [[nodiscard]] std::byte* version(std::size_t slot) const {
    return parameters_.stored().values[slot].data();
  }

  /// Adds one push to values that contain all earlier ones.
  /// @param from, to versions; all workers had the values of `from`
  /// @param part      of the layer, if gradients are pushed
  void add(std::byte const* pushed, std::size_t from, std::size_t to, double weight,
           ByteRange part = {}) {
    if (rules_.pushes != staleness::Pushes::gradients && from == to) keep(from, to, all());
    if (rules_.pushes == staleness::Pushes::gradients)
      parameters_.add_scaled(parameters_.stored().gradients.data(), pushed, weight, part);
    else if (rules_.pushes == staleness::Pushes::changes)
      parameters_.add_values(version(to), pushed);
    else
      parameters_.add_difference(version(to), pushed, version(from), weight);
  }
  /// Takes an optimizer step with the gradients that were added, and zeroes them. Where a number
  /// that it or an addition has written is not finite, values and state become those before.
  /// @param from, to  versions
  /// @param round     counted from 0 since the workers began
  /// @param part      part of the layer. If there are two parts, the end of the layer comes first;
  ///                  afterwards the gradients of the whole layer are there
  /// @return whether all is finite
  [[nodiscard]] bool step(std::size_t from, std::size_t to, std::int64_t round, ByteRange part) {
    if (rules_.added != nullptr && part.first == 0)
      rules_.added->add(ScoredLayer(parameters_, from, round));
    if (part.last == bytes()) ++steps_;
    if (rules_.pushes == staleness::Pushes::gradients) {
      keep(from, to, part);
      rules_.optimizer.update(rules_.optimizer.optimizer, parameters_, {1, steps_, from, to, part});
      if (part.last != bytes()) parameters_.zero_gradients();
    }
    bool finite = parameters_.all_finite(version(to), part);
    for (ParameterBlock const& state : parameters_.stored().states)
      if (state.size() != 0) finite = finite && parameters_.all_finite(state.data(), part);
    if (!finite) undo(from, to, part);
    return finite;
  }
  /// Writes or reads the optimizer's state.
  /// @param file  a StateWriter or a StateReader
  template <class File> void keep(File& file) {
    file.numbers(steps_);
    for (ParameterBlock const& state : parameters_.stored().states) file.block(state);
  }

 private:
  [[nodiscard]] ByteRange all() const { return {0, bytes()}; }
  /// Keeps what is overwritten: values only where they go to their own version.
  void keep(std::size_t from, std::size_t to, ByteRange part) {
    backup_->clear();
    for (ParameterBlock const& state : parameters_.stored().states)
      if (state.size() != 0) backup_->keep(state.data(), part);
    if (from == to) backup_->keep(version(to), part);
  }
  [[gnu::cold]] void undo(std::size_t from, std::size_t to, ByteRange part) {
    if (part.last == bytes()) --steps_;
    if (from == to)
      backup_->put_back(version(to), part);
    else
      std::memcpy(version(to) + part.first, version(from) + part.first, part.size());
    auto const& states = parameters_.stored().states;
    for (std::size_t s = states.size(); s-- > 0;)
      if (states[s].size() != 0) backup_->put_back(states[s].data(), part);
  }

  StoreRules const& rules_;
  LayerParameters parameters_;
  StepBackup own_backup_;
  StepBackup* backup_;
  std::int64_t steps_ = 0;
};

}  // namespace stagger::detail
