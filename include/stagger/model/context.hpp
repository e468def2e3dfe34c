// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The context of an action: parameters, gradients, scratch memory and randomness of a
///         stage.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <stagger/core/alignment.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/list.hpp>
#include <stagger/core/random.hpp>
#include <stagger/model/parameter.hpp>

namespace stagger {

namespace detail {
/// Throws the error for a layer that uses a parameter which its parameters() does not list.
/// @param owner  the layer to which it belongs; negative: none
[[noreturn]] [[gnu::cold]] [[gnu::noinline]] inline void refuse_parameter(std::string const& name,
                                                                          int owner, int layer) {
  if (owner < 0)
    raise(Errc::bad_configuration, "layer ", layer, " uses the parameter '", name,
          "', which its parameters() does not list; return it there, with std::tie");
  raise(Errc::bad_configuration, "layer ", layer, " uses the parameter '", name, "' of layer ",
        owner, "; give each layer a Parameter of its own");
}
[[noreturn]] [[gnu::cold]] [[gnu::noinline]] inline void refuse_values(std::string const& name,
                                                                       ElementType type) {
  bool const single = type == ElementType::f32;
  char const* const own = single ? "float" : "double";
  raise(Errc::mismatch, "the parameter '", name, "' has values of type ", own, ", not ",
        single ? "double" : "float", "; call values<", own, ">()");
}
}  // namespace detail

template <ParameterElement T> std::span<T> ParameterState::values() const {
  if (type != element_type_of<T>) [[unlikely]]
    detail::refuse_values(name, type);
  return {reinterpret_cast<T*>(value.data()), value.size() / sizeof(T)};
}

/// Scratch memory. After the largest demand between two calls of `reset` it allocates no more:
/// everything then comes from one block.
class Arena {
 public:
  /// Uninitialised memory for `count` elements, valid until `reset`.
  template <class T> [[nodiscard]] std::span<T> take(std::size_t count) {
    std::size_t const bytes = detail::aligned_bytes(count, sizeof(T));
    if (ended_) begin_round();
    if (blocks_.empty() || used_ + bytes > blocks_.back().bytes) add_block(bytes);
    std::byte* const memory = static_cast<std::byte*>(blocks_.back().memory.get()) + used_;
    used_ += bytes;
    total_ += bytes;
    return {reinterpret_cast<T*>(memory), count};
  }

  /// Frees everything for reuse. An engine calls it for every action, and few actions take memory,
  /// so the work is left to the next `take`.
  void reset() noexcept { ended_ = true; }

  /// Memory held, in bytes.
  [[nodiscard]] std::uint64_t bytes() const noexcept {
    std::uint64_t sum = 0;
    for (Block const& block : blocks_) sum += block.bytes;
    return sum;
  }

 private:
  struct Block {
    detail::AlignedMemory memory;
    std::size_t bytes = 0;
  };

  /// Replaces the blocks by a single one if several were needed since the last round.
  void begin_round() {
    if (blocks_.size() > 1) {
      blocks_.clear();
      add_block(total_);
    }
    used_ = 0;
    total_ = 0;
    ended_ = false;
  }

  void add_block(std::size_t bytes) {
    blocks_.push_back({detail::aligned_memory(bytes), bytes});
    used_ = 0;
  }

  List<Block> blocks_;
  std::size_t used_ = 0;   // bytes of the last block
  std::size_t total_ = 0;  // bytes since the last reset
  bool ended_ = false;     // reset was called, and nothing was taken since
};

/// A stage's view of the engine during one action: parameters, gradients, scratch memory, and which
/// layer, microbatch and step it works on.
///
/// One context belongs to one rank. A stage must not keep anything that it got from the context.
class Context {
 public:
  /// Current value of a parameter of this stage, [parameter.size()].
  /// @throws Error  bad_configuration for a parameter that the stage's `parameters()` does not list
  template <class T>
  [[nodiscard]] std::span<T const> operator[](Parameter<T> const& parameter) const {
    ParameterView const& view = view_of(parameter);
    return {static_cast<T const*>(view.value), view.size};
  }

  /// Gradient of a parameter of this stage, [parameter.size()]. Backward adds to it. A parameter
  /// whose gradient no backward of a step has asked for is not updated in that step, except on GPUs
  /// and by a parameter server to which gradients are pushed.
  /// @throws Error  as for its value
  template <class T> [[nodiscard]] std::span<T> gradient(Parameter<T> const& parameter) const {
    ParameterView const& view = view_of(parameter);
    view.note_added();
    return {static_cast<T*>(view.gradient), view.size};
  }

  /// Uninitialised, aligned memory for `count` elements, valid until the call of the stage's
  /// function returns. Allocates while the engine learns the sizes, never afterwards.
  template <class T = float> [[nodiscard]] std::span<T> scratch(std::size_t count) {
    return arena_.take<T>(count);
  }

  [[nodiscard]] int microbatch() const noexcept { return microbatch_; }
  [[nodiscard]] int layer() const noexcept { return layer_; }
  /// The number of optimizer steps before that of the current minibatch, also in a stream.
  [[nodiscard]] std::int64_t step() const noexcept {
    return minibatch_ == 0 ? step_ : step_ + microbatch_ / minibatch_;
  }

  /// In a stream: how many microbatches make a minibatch; 0 in a step, whose microbatches all
  /// belong to one minibatch. A kernel that draws random numbers adds microbatch() /
  /// microbatches_per_minibatch() to the step that it is given.
  [[nodiscard]] int microbatches_per_minibatch() const noexcept { return minibatch_; }

  /// The row of the microbatch at which this action's rows begin; it is 0 except on replicas of a
  /// stage. Randomness for each row should depend on random_seed() and first_row() + row, so that
  /// it does not depend on the number of replicas.
  [[nodiscard]] std::size_t first_row() const noexcept {
    if (layer_offsets_ != nullptr) return layer_offsets_[layer_].first_rows[microbatch_];
    return first_rows_ == nullptr ? 0 : first_rows_[microbatch_];
  }

  /// The column of the layer's whole input at which this action's input begins. It is 0 except if
  /// the members of a group have different columns: for element-wise layers and for parts of layers
  /// that are split by inputs.
  [[nodiscard]] std::size_t first_column() const noexcept {
    return layer_offsets_ == nullptr ? 0 : layer_offsets_[layer_].first_column;
  }

  /// False during evaluation and prediction: dropout and the like must be off.
  [[nodiscard]] bool training() const noexcept { return training_; }

  /// Whether this forward repeats that of the same microbatch (activation recomputation). It must
  /// give the same bits, so whatever a stage keeps itself, such as a running mean, must have been
  /// changed in the first forward alone.
  [[nodiscard]] bool recomputes() const noexcept { return recomputes_; }

  /// Whether a Profiler runs the layer only to measure it; no parameter changes then.
  [[nodiscard]] bool profiles() const noexcept { return profiles_; }

  /// Seed for this action's randomness. It depends only on the seed of the run, the step, the
  /// microbatch's number in the minibatch and the layer, so the numbers are the same with
  /// recomputation, for every partition, number of threads and length of streams.
  [[nodiscard]] std::uint64_t random_seed() const noexcept {
    int const microbatch = minibatch_ == 0 ? microbatch_ : microbatch_ % minibatch_;
    return random_bits(seed_,
                       {static_cast<std::uint64_t>(step()), static_cast<std::uint64_t>(microbatch),
                        static_cast<std::uint64_t>(layer_)});
  }

  /// For engines: starts a step.
  /// @param step       optimizer steps taken before this one
  /// @param minibatch  in a stream: microbatches of a minibatch; 0: all belong to one minibatch
  /// @param profiles   whether layers are only measured
  void begin_step(std::int64_t step, std::uint64_t seed, bool training, int minibatch = 0,
                  bool profiles = false) noexcept {
    step_ = step;
    minibatch_ = minibatch;
    seed_ = seed;
    training_ = training;
    recomputes_ = false;
    profiles_ = profiles;
  }

  /// For engines: whether functions of layers only enqueue their work, so that what they write may
  /// not be looked at when they return.
  void set_enqueues(bool enqueues) noexcept { enqueues_ = enqueues; }
  [[nodiscard]] bool enqueues() const noexcept { return enqueues_; }

  /// For engines: whether the forwards that follow repeat earlier ones.
  void set_recomputes(bool recomputes) noexcept { recomputes_ = recomputes; }

  /// For engines: starts an action on a layer (counted from the model's input) for a microbatch.
  void begin_action(ParameterView const* parameters, int layer, int microbatch) noexcept {
    parameters_ = parameters;
    layer_ = layer;
    microbatch_ = microbatch;
    release_scratch();
  }

  /// For engines: frees scratch memory between two functions of one action.
  void release_scratch() noexcept { arena_.reset(); }

  /// For engines: where the rows of each microbatch begin, [microbatches]; null: at 0.
  void set_first_rows(std::size_t const* first_rows) noexcept { first_rows_ = first_rows; }

  /// For one layer: where the rows of each microbatch begin, [microbatches], and the first column.
  struct LayerOffset {
    std::size_t const* first_rows = nullptr;
    std::size_t first_column = 0;
  };
  /// For engines: the same for each layer, [layers], if layers differ; null: as set_first_rows
  /// says.
  void set_layer_offsets(LayerOffset const* offsets) noexcept { layer_offsets_ = offsets; }

  /// For engines: scratch memory held, in bytes.
  [[nodiscard]] std::uint64_t scratch_bytes() const noexcept { return arena_.bytes(); }

 private:
  template <class T> ParameterView const& view_of(Parameter<T> const& parameter) const {
    if (parameter.layer() != layer_) [[unlikely]]
      detail::refuse_parameter(parameter.name(), parameter.layer(), layer_);
    return parameters_[parameter.index()];
  }

  ParameterView const* parameters_ = nullptr;   // [parameters of the layer]
  std::size_t const* first_rows_ = nullptr;     // [microbatches]
  LayerOffset const* layer_offsets_ = nullptr;  // [layers]
  std::int64_t step_ = 0;
  std::uint64_t seed_ = 0;
  int layer_ = 0;
  bool training_ = true;
  bool recomputes_ = false;
  bool profiles_ = false;
  bool enqueues_ = false;
  int microbatch_ = 0;  // not beside layer_: g++ would join the two stores through vector registers
  int minibatch_ = 0;   // in a stream: microbatches of a minibatch
  Arena arena_;
};

}  // namespace stagger
