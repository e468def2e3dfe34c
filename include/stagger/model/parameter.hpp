// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Parameters: their declarations in stages, and views of them between two steps.

#include <stagger/core/requirements.hpp>

#include <array>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace stagger {

/// Element type of a parameter.
enum class ElementType : std::uint8_t { f32, f64 };

/// Size of one element, in bytes.
[[nodiscard]] constexpr std::size_t element_bytes(ElementType type) noexcept {
  return type == ElementType::f32 ? 4 : 8;
}

/// Some elements of a parameter: `runs` runs of `length` elements. The first run begins at `first`,
/// each further one `stride` elements after the previous one. In a weight [outputs][inputs], the
/// rows of some outputs are one run, and the columns of some inputs are as many runs as there are
/// outputs.
struct ParameterPiece {
  std::size_t first = 0;
  std::size_t length = 0;
  std::size_t stride = 0;
  std::size_t runs = 1;
  std::size_t whole = 0;  ///< elements of the whole parameter; Parameter::piece sets it

  [[nodiscard]] constexpr std::size_t size() const noexcept { return length * runs; }
  /// Where element i of the piece is in the whole. @pre i < size()
  [[nodiscard]] constexpr std::size_t element(std::size_t i) const noexcept {
    return first + i / length * stride + i % length;
  }
};

template <class T>
concept ParameterElement = std::same_as<T, float> || std::same_as<T, double>;

/// The `ElementType` of a C++ type.
template <ParameterElement T>
inline constexpr ElementType element_type_of =
    std::same_as<T, float> ? ElementType::f32 : ElementType::f64;

/// The declaration of a parameter: a name, a size, initial values. The engine owns the values (in
/// as many versions as the staleness model needs), the gradient and the optimizer's state; a stage
/// accesses them through its `Context`:
///
///     std::span<float const> w = context[weight];
///     std::span<float> dw = context.gradient(weight);   // add to it
///
/// @tparam T  float or double
template <class T = float> class Parameter {
  // A static_assert checks this, since a compiler would explain every part of a concept.
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>,
                "stagger: a Parameter has elements of type float or double; numbers of another "
                "type that are not trained are ordinary members of a stage");

 public:
  Parameter() = default;

  /// @param name     unique within its stage
  /// @param initial  [size] values before the first step
  /// @param decays   whether weight decay applies (usually not for biases and normalisation)
  Parameter(std::string name, std::vector<T> initial, bool decays = true)
      : name_(std::move(name)),
        initial_(std::move(initial)),
        size_(initial_.size()),
        decays_(decays) {}

  /// Sets all values before the first step. The same seed and scale must give the same values.
  using Fill = void (*)(std::span<T> values, std::uint64_t seed, double scale);

  /// A parameter whose values are computed where they are stored: over processes, each process
  /// computes only those of its own stages.
  /// @param size  number of values
  Parameter(std::string name, std::size_t size, Fill values, std::uint64_t from,
            double scale_by = 1, bool decays = true)
      : name_(std::move(name)),
        fill_(values),
        seed_(from),
        scale_(scale_by),
        size_(size),
        decays_(decays) {}

  /// Says that the values are a matrix, row by row, as optimizers such as optimizer::Muon ask:
  ///
  ///     Parameter<float> weight = Parameter("weight", std::move(values)).matrix(outputs);
  ///
  /// @param rows  of size() / rows values each; the pipeline refuses what does not divide size()
  [[nodiscard]] Parameter matrix(std::size_t rows) && {
    rows_ = rows;
    return std::move(*this);
  }

  // Out of line, since every type of a stage with a parameter moves and destroys it.
  Parameter(Parameter const&) = default;
  [[gnu::noinline]] Parameter(Parameter&&) noexcept = default;
  Parameter& operator=(Parameter const&) = default;
  Parameter& operator=(Parameter&&) noexcept = default;
  [[gnu::noinline]] ~Parameter() = default;

  [[nodiscard]] std::string const& name() const noexcept { return name_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] bool decays() const noexcept { return decays_; }
  /// Of a matrix; 0 if nobody has said that the values are one.
  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }

  /// The parameter of a member of a group: some elements of this one, with their initial values.
  /// <stagger/model/split.hpp>, which such a layer includes, defines it.
  /// @throws Error  bad_configuration for elements that this parameter does not have, or if an
  ///                engine has taken over the initial values
  [[nodiscard]] Parameter piece(ParameterPiece const& of) const;
  /// Which elements of a whole parameter these are; `whole` is 0 if this is not a piece.
  [[nodiscard]] ParameterPiece const& piece() const noexcept { return piece_; }

  /// Values before the first step; empty after an engine has taken them over, or if `fill` computes
  /// them.
  [[nodiscard]] std::vector<T> const& initial() const noexcept { return initial_; }

  /// For engines: moves the initial values out and stores the parameter's index in its layer,
  /// and the number of the layer, counted from the model's input.
  [[nodiscard]] [[gnu::cold]] std::vector<T> adopt(std::uint32_t index, int layer = 0) {
    place(index, layer);
    if (fill_ == nullptr) return std::exchange(initial_, {});
    std::vector<T> values(piece_.whole == 0 ? size_ : piece_.whole);
    fill_(values, seed_, scale_);
    for (std::size_t i = 0; i < size_ && piece_.whole != 0; ++i)
      values[i] = values[piece_.element(i)];  // never less than i
    values.erase(values.begin() + static_cast<std::ptrdiff_t>(size_), values.end());
    return values;
  }
  /// For engines that make the values later: stores only the index.
  void place(std::uint32_t index, int layer = 0) noexcept {
    index_ = index;
    layer_ = layer;
  }
  [[nodiscard]] Fill fill() const noexcept { return fill_; }  ///< null if initial() has the values
  [[nodiscard]] std::uint64_t seed() const noexcept { return seed_; }
  [[nodiscard]] double scale() const noexcept { return scale_; }

  /// Index in the stage's `parameters()`.
  [[nodiscard]] std::uint32_t index() const noexcept { return index_; }
  /// The layer whose `parameters()` lists it; -1 before an engine has taken it over.
  [[nodiscard]] int layer() const noexcept { return layer_; }

 private:
  std::string name_;
  std::vector<T> initial_;
  Fill fill_ = nullptr;
  std::uint64_t seed_ = 0;
  double scale_ = 1;
  std::size_t size_ = 0;
  std::size_t rows_ = 0;
  ParameterPiece piece_{};
  std::uint32_t index_ = 0;
  int layer_ = -1;
  bool decays_ = true;
};

/// The memory of one parameter during an action.
struct ParameterView {
  void* value = nullptr;     ///< [size] the version this action must see
  void* gradient = nullptr;  ///< [size] sum over the microbatches so far
  std::size_t size = 0;
  std::atomic<bool>* added =
      nullptr;  ///< set when a stage asks for the gradient; null: nobody asks

  /// Notes that a stage adds to the gradient. Owners of a stage share the flag: one that is set
  /// already is only read.
  void note_added() const noexcept {
    if (added != nullptr && !added->load(std::memory_order_relaxed))
      added->store(true, std::memory_order_relaxed);
  }
};

/// One parameter between two steps: what a checkpoint stores. The memory belongs to the engine.
struct ParameterState {
  std::string name;  ///< "layer.parameter", layers counted from the model's input
  ElementType type = ElementType::f32;
  std::span<std::byte> value;
  std::array<std::span<std::byte>, 2> state;  ///< the optimizer's; empty if it keeps fewer

  /// The values as numbers. <stagger/model/context.hpp> defines it.
  /// @tparam T      float or double, as `type` says
  /// @throws Error  mismatch for the other one
  template <ParameterElement T> [[nodiscard]] std::span<T> values() const;
};

/// The name, type and size of a parameter, without its values.
struct ParameterShape {
  std::string name;  ///< as in ParameterState
  ElementType type = ElementType::f32;
  std::size_t bytes = 0;              ///< of the values, and of each state
  int states = 0;                     ///< how many the optimizer keeps
  std::optional<std::size_t> rows{};  ///< of a matrix, 0: it is none; nothing: unknown
};

}  // namespace stagger
