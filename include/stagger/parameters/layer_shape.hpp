// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The parameters of a layer and their places in memory, without their values.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include <stagger/core/alignment.hpp>
#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/list.hpp>
#include <stagger/model/parameter.hpp>

namespace stagger::detail {

/// A parameter as a layer declares it, its element type erased.
struct ParameterDeclaration {
  std::string name;
  ElementType type = ElementType::f32;
  std::size_t size = 0;
  std::size_t rows = 0;  // of a matrix; 0: it is none
  bool decays = true;
  List<std::byte> initial;  // [size * element_bytes(type)]; empty if `fill` makes them
  struct Origin {
    std::uint64_t seed = 0;
    double scale = 1;
  } origin = {};
  ParameterPiece piece = {};  // the elements of a whole parameter, whose values `fill` makes
  void (*typed_fill)() = nullptr;
  void (*fill)(ParameterDeclaration const&, void* values) = nullptr;
};

/// Calls body.operator()<T>() with the type of the elements for T.
template <class Body> void with_type(ElementType type, Body body) {
  type == ElementType::f32 ? body.template operator()<float>() : body.template operator()<double>();
}

/// What the parameters of a layer are, and where each lies in the layer's memory.
class LayerShape {
 public:
  [[nodiscard]] std::size_t count() const noexcept { return declarations_.size(); }

  [[nodiscard]] ParameterDeclaration const& declaration(std::size_t i) const noexcept {
    return declarations_[i];
  }
  /// The declaration of a parameter, with first values from a copy of the layer's values.
  /// @param values  [bytes_of_values()]
  [[nodiscard]] [[gnu::cold]] ParameterDeclaration declaration(std::size_t i,
                                                               std::byte const* values) const {
    ParameterDeclaration d = declarations_[i];
    d.initial.assign(values + offsets_[i], value_bytes(i));
    d.fill = nullptr;
    return d;
  }
  /// Number of the layer in the model.
  [[nodiscard]] int number() const noexcept { return layer_; }
  /// Before the first hold(): the bytes that determine a parameter's first values, for comparison.
  [[nodiscard]] std::span<std::byte const> origin(std::size_t i) const noexcept {
    auto const& d = declarations_[i];
    if (d.fill != nullptr) return std::as_bytes(std::span(&d.origin, 1));
    return {d.initial.data(), d.initial.size()};
  }
  /// Values of one parameter, in bytes.
  [[nodiscard]] std::size_t value_bytes(std::size_t i) const noexcept {
    return declarations_[i].size * element_bytes(declarations_[i].type);
  }
  [[nodiscard]] [[gnu::cold]] ParameterShape shape(std::size_t i) const {
    return {text(layer_, ".", declarations_[i].name), declarations_[i].type, value_bytes(i),
            static_cast<int>(states_), declarations_[i].rows};
  }
  /// Where a parameter lies in the layer.
  [[nodiscard]] ByteRange range(std::size_t i) const noexcept {
    return {offsets_[i], offsets_[i] + value_bytes(i)};
  }

  /// Copies a piece of a parameter to its place in the whole, or from there.
  /// @param piece  [value_bytes(i)]
  /// @param whole  likewise of the whole
  [[gnu::cold]] void copy_piece(std::size_t i, std::byte* piece, std::byte* whole,
                                bool back) const noexcept {
    ParameterDeclaration const& d = declarations_[i];
    std::size_t const each = element_bytes(d.type);
    for (std::size_t e = 0; e < d.size; ++e) {
      std::byte* const here = piece + e * each;
      std::byte* const there = whole + d.piece.element(e) * each;
      std::memcpy(back ? here : there, back ? there : here, each);
    }
  }

  /// Values of the layer, in bytes.
  [[nodiscard]] std::size_t bytes_of_values() const noexcept { return size_; }

  /// The intersection of a part of the layer with a parameter, in bytes from the parameter's first.
  [[nodiscard]] ByteRange within(std::size_t i, ByteRange range) const noexcept {
    auto const from_first = [&](std::size_t byte) {
      return byte <= offsets_[i] ? 0 : std::min(value_bytes(i), byte - offsets_[i]);
    };
    return {from_first(range.first), from_first(range.last)};
  }

  /// Likewise without the gaps between parameters, as values are sent.
  [[nodiscard]] std::size_t sent_bytes() const noexcept {
    std::size_t sum = 0;
    for (std::size_t i = 0; i < count(); ++i) sum += value_bytes(i);
    return sum;
  }

  /// Adds values, or changes, of the layer to others, element by element.
  /// @param sum, more  [bytes_of_values()]
  void add_values(std::byte* sum, std::byte const* more) const noexcept {
    each_element(sum, {}, [](auto to, auto from) { return to + from; }, more);
  }
  /// Adds as add_values() does to a part of the layer; `more` is multiplied by `scale`.
  void add_scaled(std::byte* sum, std::byte const* more, double scale,
                  ByteRange part = {}) const noexcept {
    each_element(
        sum, part, [scale]<class T>(T to, T from) { return to + static_cast<T>(scale) * from; },
        more);
  }
  /// Adds the difference `more` - `less`, multiplied by `scale`.
  void add_difference(std::byte* sum, std::byte const* more, std::byte const* less,
                      double scale) const noexcept {
    each_element(
        sum, {},
        [scale]<class T>(T to, T plus, T minus) {
          return to + static_cast<T>(scale) * (plus - minus);
        },
        more, less);
  }

  /// Multiplies all elements. @param values  [bytes_of_values()]
  void scale_values(std::byte* values, double scale) const noexcept {
    each_element(values, {}, [scale]<class T>(T value) { return static_cast<T>(scale) * value; });
  }

  /// Whether all elements of a part of the layer are finite. @param values  [bytes_of_values()]
  [[nodiscard]] bool all_finite(std::byte const* values, ByteRange part = {}) const noexcept {
    bool finite = true;
    for (std::size_t i = 0; i < count() && finite; ++i) finite = all_finite(i, values, part);
    return finite;
  }
  /// The same of one parameter.
  [[nodiscard]] bool all_finite(std::size_t i, std::byte const* values,
                                ByteRange part = {}) const noexcept {
    auto const [first, last] = within(i, part);
    std::span const bytes(values + offsets_[i] + first, last - first);
    return declarations_[i].type == ElementType::f32
               ? finite_elements<std::uint32_t, 0x7f800000U>(bytes)
               : finite_elements<std::uint64_t, 0x7ff0000000000000U>(bytes);
  }

  /// From now on parts consist of whole parameters, since the optimizer is not element_wise.
  void keep_parameters_whole() noexcept { whole_parameters_ = true; }
  /// Part `part` of `parts`. It depends on the layer alone, not on what it is grouped with.
  [[nodiscard]] ByteRange part(std::size_t part, std::size_t parts) const noexcept {
    if (!whole_parameters_) return part_of(size_, part, parts);
    return part_of({offsets_.data(), offsets_.size()}, size_, turn_, part, parts);
  }
  /// @param turn  how many layers before it have parameters: see part_of
  void set_turn(int turn) noexcept { turn_ = turn; }
  /// The same of a layer with values of this many bytes.
  [[nodiscard]] static ByteRange part_of(std::size_t bytes, std::size_t part,
                                         std::size_t parts) noexcept {
    std::size_t const units = bytes / alignment_bytes;
    return {units * part / parts * alignment_bytes, units * (part + 1) / parts * alignment_bytes};
  }
  /// Likewise of whole parameters: equal parts, each end of which is moved to the nearest border.
  /// The largest part goes to another replica in the next layer, since most layers have a large
  /// weight and small parameters beside it.
  /// @param firsts  [parameters] the first byte of each, from 0
  /// @param turn    of the layer, among those with parameters
  [[nodiscard]] static ByteRange part_of(std::span<std::size_t const> firsts, std::size_t bytes,
                                         int turn, std::size_t part, std::size_t parts) noexcept {
    auto const border = [&](std::size_t at) {
      auto const away = [at](std::size_t byte) { return byte < at ? at - byte : byte - at; };
      std::size_t nearest = bytes;
      for (std::size_t const first : firsts)
        if (away(first) <= away(nearest)) nearest = first;
      return nearest;
    };
    ByteRange const even = part_of(bytes, (part + static_cast<unsigned>(turn)) % parts, parts);
    return {border(even.first), border(even.last)};
  }

  /// Whether a parameter has elements in a part of the layer.
  [[nodiscard]] bool overlaps(std::size_t i, ByteRange range) const noexcept {
    return offsets_[i] < range.last && offsets_[i] + value_bytes(i) > range.first;
  }
  /// Whether the parameter's last elements are in a part of the layer.
  [[nodiscard]] bool ends_in(std::size_t i, ByteRange range) const noexcept {
    return offsets_[i] + value_bytes(i) <= range.last;
  }

 private:
  /// Elements that a loop goes over at once: of a trip count that is a constant, -O2 makes vector
  /// code, which is as fast as memory.
  static constexpr std::size_t at_once = 256;

  /// Whether no element has all bits of the exponent set.
  template <class Bits, Bits exponent>
  [[nodiscard]] static bool finite_elements(std::span<std::byte const> values) noexcept {
    std::size_t const size = values.size() / sizeof(Bits);
    Bits infinite = 0;
    auto const look_at = [&](std::size_t e) {
      Bits bits;
      std::memcpy(&bits, values.data() + e * sizeof bits, sizeof bits);
      infinite |= (bits & exponent) == exponent ? Bits{1} : Bits{0};
    };
    std::size_t at = 0;
    for (; size - at >= at_once; at += at_once)
      for (std::size_t e = 0; e < at_once; ++e) look_at(at + e);
    for (; at < size; ++at) look_at(at);
    return infinite == 0;
  }

  template <class T, class Add, class... Source>
  static void each_of(std::size_t size, Add add, std::byte* sum, Source const*... source) noexcept {
    auto const change = [&](std::size_t first, std::size_t count) {
      T* __restrict const to = reinterpret_cast<T*>(sum) + first;
      for (std::size_t i = 0; i < count; ++i)
        to[i] = add(to[i], reinterpret_cast<T const*>(source)[first + i]...);
    };
    std::size_t at = 0;
    for (; size - at >= at_once; at += at_once) change(at, at_once);
    change(at, size - at);
  }
  template <class Add, class... Source>
  void each_element(std::byte* sum, ByteRange part, Add add,
                    Source const*... source) const noexcept {
    for (std::size_t i = 0; i < count(); ++i) {
      auto const [first, last] = within(i, part);
      std::size_t const at = offsets_[i] + first;
      std::size_t const bytes = last - first;
      with_type(declarations_[i].type,
                [&]<class T>() { each_of<T>(bytes / sizeof(T), add, sum + at, source + at...); });
    }
  }

 protected:
  void declare(List<ParameterDeclaration> declarations, int layer, int states) {
    declarations_ = std::move(declarations);
    layer_ = layer;
    states_ = static_cast<std::size_t>(states);
    for (auto const& d : declarations_) {
      offsets_.push_back(size_);
      size_ += aligned(d.size * element_bytes(d.type));
    }
  }

  List<ParameterDeclaration> declarations_;
  List<std::size_t> offsets_;  // [parameters] bytes
  std::size_t size_ = 0;       // size of one version of the values, in bytes
  int layer_ = 0;
  int turn_ = 0;
  std::size_t states_ = 0;         // of the optimizer, for each parameter
  bool whole_parameters_ = false;  // whether nobody updates a part of one
};

}  // namespace stagger::detail
