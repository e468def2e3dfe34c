// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A layer that members of a group can share, as the engine sees it, with its type erased.

#include <cstddef>
#include <cstdint>
#include <utility>

#include <stagger/core/columns.hpp>
#include <stagger/engine/slots.hpp>
#include <stagger/model/context.hpp>
#include <stagger/model/split.hpp>
#include <stagger/model/stage.hpp>

namespace stagger::detail {

struct LayerOps;

/// A layer whose input is joined from the members' parts. Either all columns pass through it, such
/// as the whole output of the model in front of the loss, or only its member's share of them.
template <class T> struct PutTogether {
  using Input = T;
  using Output = T;
  static constexpr bool element_wise = true;
  PutShare share{};

  void forward(Context&, T const& x, T& y, NothingSaved&) const { pass(share.forward, x, y); }
  void backward_input(Context&, T const&, T const& dy, T& dx, NothingSaved&) const {
    pass(share.backward, dy, dx);
  }

 private:
  void pass(bool own_columns, T const& from, T& to) const {
    if (!own_columns) {
      to = from;
      return;
    }
    std::size_t const rows = Rows<T>::count(from);
    std::size_t const all = Columns<T>::count(from);
    IndexRange const own = features_of(share.member, share.members, all);
    Columns<T>::resize(to, from, {rows, all});
    Columns<T>::copy(to, {0, own.first}, from, {0, own.first}, {rows, own.size()});
  }
};
template <class L> LayerOps const& ops_of();

template <class T> struct ColumnFunctions {
  using Of = Columns<T>;
  static std::size_t count(void const* value) { return Of::count(*static_cast<T const*>(value)); }
  static void resize(void* to, void const* like, Block block) {
    Of::resize(*static_cast<T*>(to), *static_cast<T const*>(like), block);
  }
  static void copy(void* to, Block at, void const* from, Block first, Block size) {
    Of::copy(*static_cast<T*>(to), at, *static_cast<T const*>(from), first, size);
  }
  static void take(void* to, std::size_t at, std::size_t rows, BlockSource const* sources,
                   std::size_t count) {
    Of::take(*static_cast<T*>(to), at, rows, sources, count);
  }
  static void* put_together(PutShare const& share) { return new PutTogether<T>{share}; }
  static std::uint64_t bytes(void const* value, Block block) {
    auto const& of = *static_cast<T const*>(value);
    std::uint64_t const elements = block.rows * block.columns;
    if constexpr (requires { sizeof(*of.data()); })
      return elements * sizeof(*of.data());
    else if (std::uint64_t const all = Rows<T>::count(of) * Of::count(of); all != 0)
      return byte_count(of) * elements / all;
    else
      return 0;
  }
};

template <class T>
inline constexpr ColumnOps column_ops{&ColumnFunctions<T>::count, &ColumnFunctions<T>::resize,
                                      &ColumnFunctions<T>::copy,  &ColumnFunctions<T>::take,
                                      &ColumnFunctions<T>::bytes, &ColumnFunctions<T>::put_together,
                                      &ops_of<PutTogether<T>>,    Columns<T>::on_stream};

/// The functions of a splittable or element-wise layer.
struct SplitOps {
  bool element_wise = false;
  bool by_inputs = false;
  std::size_t (*hidden)(void const* layer) = nullptr;  // null: it is not split by what is hidden
  std::size_t (*operations)(void const* layer) = nullptr;
  std::size_t (*inputs)(void const* layer) = nullptr;  // null: it cannot be split
  std::size_t (*outputs)(void const* layer) = nullptr;
  void* (*part)(void const* layer, int member, int members, SplitBy by) = nullptr;
  ColumnOps const* input = nullptr;
  ColumnOps const* output = nullptr;
  /// Makes the two layers that groups take it as; null: it is one.
  void (*divide)(void const* layer, void* (&made)[2], LayerOps const* (&ops)[2]) = nullptr;
};

template <class L> struct SplitFunctions {
  static std::size_t inputs(void const* layer) { return static_cast<L const*>(layer)->inputs(); }
  static std::size_t outputs(void const* layer) { return static_cast<L const*>(layer)->outputs(); }
  static std::size_t hidden(void const* layer) { return static_cast<L const*>(layer)->hidden(); }
  static std::size_t operations(void const* layer) {
    return static_cast<L const*>(layer)->operations();
  }
  static void divide(void const* layer, void* (&made)[2], LayerOps const* (&ops)[2]) {
    auto parts = static_cast<L const*>(layer)->divided();
    using First = decltype(parts.first);
    using Second = decltype(parts.second);
    ops[0] = &ops_of<First>();
    ops[1] = &ops_of<Second>();
    made[0] = new First(std::move(parts.first));
    made[1] = new Second(std::move(parts.second));
  }
  static void* part(void const* layer, int member, int members, SplitBy by) {
    return new L(static_cast<L const*>(layer)->part(member, members, by));
  }
};

template <class L> constexpr SplitOps make_split_ops() {
  constexpr bool columns = Columns<typename L::Input>::exist && Columns<typename L::Output>::exist;
  static_assert(
      columns,
      "stagger: a layer that members of a group can share has an Input and an Output with "
      "columns: a Tensor, or a type with columns(), resize_block(like, block), "
      "copy_block(at, from, first, size) and add_block(at, from, first, size)");
  SplitOps ops;
  if constexpr (columns) {
    ops.input = &column_ops<typename L::Input>;
    ops.output = &column_ops<typename L::Output>;
    if constexpr (ElementWiseLayer<L>) ops.element_wise = true;
    if constexpr (SplittableLayer<L>) {
      ops.inputs = &SplitFunctions<L>::inputs;
      ops.outputs = &SplitFunctions<L>::outputs;
      ops.part = &SplitFunctions<L>::part;
      if constexpr (requires { requires L::by_inputs; }) ops.by_inputs = true;
    }
    if constexpr (HiddenSplittableLayer<L>) {
      ops.hidden = &SplitFunctions<L>::hidden;
      ops.operations = &SplitFunctions<L>::operations;
    }
    if constexpr (DividedLayer<L>) ops.divide = &SplitFunctions<L>::divide;
  }
  return ops;
}

template <class L> inline constexpr SplitOps split_ops = make_split_ops<L>();

}  // namespace stagger::detail
