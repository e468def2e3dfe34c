// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The transfer of values from GPU to GPU: their device memory, and everything else that
///         belongs to them.

#include <cstddef>
#include <optional>
#include <utility>

#include <stagger/core/list.hpp>
#include <stagger/core/portable.hpp>
#include <stagger/cuda/tensor.hpp>
#include <stagger/engine/slots.hpp>
#include <stagger/model/sequential.hpp>
#include <stagger/model/split.hpp>

namespace stagger::cuda {

/// How values of a type are sent. The library knows
///  - `cuda::Tensor`
///  - trivially copyable types without pointers, which stay on the host: they are copied as they
///    are once the stage that makes them has been called
///  - `std::optional` of types it knows
///  - types with a member `fields()`, const and not, that returns a `std::tie` of types it knows:
///    `auto fields() { return std::tie(values, mask); }`
///
/// Specialise it for a type that you cannot change: `write` and `read` transfer everything except
/// device memory, for which `read` allocates; `blocks` visits that memory, (void* data, std::size_t
/// bytes), in the same order at both ends.
template <class T> struct Wire {
  static constexpr bool exists = false;
};

namespace detail {
using stagger::detail::each_field;
}

template <class U> struct Wire<Tensor<U>> {
  static constexpr bool exists = true;
  static void write(ByteWriter& out, Tensor<U> const& value) {
    out.add<stagger::detail::TensorShape>(value);
  }
  static void read(ByteReader& in, Tensor<U>& value) {
    value.resize_like(in.take<stagger::detail::TensorShape>());
  }
  template <class Visit> static void blocks(Tensor<U>& value, Visit& visit) {
    visit(static_cast<void*>(value.data()), value.size() * sizeof(U));
  }
};

template <stagger::detail::Flat T> struct Wire<T> : Portable<T> {
  template <class Visit> static void blocks(T&, Visit&) {}
};

template <class U>
  requires(Wire<U>::exists && !stagger::detail::Flat<std::optional<U>>)
struct Wire<std::optional<U>> : stagger::detail::PortableOptional<Wire<U>, U> {
  template <class Visit> static void blocks(std::optional<U>& value, Visit& visit) {
    if (value) Wire<U>::blocks(*value, visit);
  }
};

template <stagger::detail::HasFields T>
  requires stagger::detail::Fields<Wire, decltype(std::declval<T&>().fields())>::exist
struct Wire<T> {
  static constexpr bool exists = true;
  static void write(ByteWriter& out, T const& value) {
    detail::each_field<cuda::Wire>(value,
                                   [&](auto wire, auto const& field) { wire.write(out, field); });
  }
  static void read(ByteReader& in, T& value) {
    detail::each_field<cuda::Wire>(value, [&](auto wire, auto& field) { wire.read(in, field); });
  }
  template <class Visit> static void blocks(T& value, Visit& visit) {
    detail::each_field<cuda::Wire>(value,
                                   [&](auto wire, auto& field) { wire.blocks(field, visit); });
  }
};

namespace detail {

/// The `Wire` of a type that is known only at run time; functions are null if values cannot be
/// sent.
struct WireType {
  stagger::detail::SlotType const* type = nullptr;
  void (*write)(ByteWriter&, void const* value) = nullptr;
  void (*read)(ByteReader&, void* value) = nullptr;
  void (*blocks)(void* value, List<Block>& all) = nullptr;  // appends those that are not empty
};

template <class T> constexpr WireType make_wire_type() {
  static_cast<void>(stagger::detail::require_fields<Wire, T>());
  WireType wire;
  wire.type = &stagger::detail::slot_type<T>;
  if constexpr (Wire<T>::exists) {
    wire.write = [](ByteWriter& out, void const* value) {
      Wire<T>::write(out, *static_cast<T const*>(value));
    };
    wire.read = [](ByteReader& in, void* value) { Wire<T>::read(in, *static_cast<T*>(value)); };
    wire.blocks = [](void* value, List<Block>& all) {
      auto visit = [&](void* data, std::size_t bytes) {
        if (bytes != 0) all.push_back({data, bytes});
      };
      Wire<T>::blocks(*static_cast<T*>(value), visit);
    };
  }
  return wire;
}

/// The table for the outputs of all layers.
template <class Types> struct WireTypes;
template <template <class...> class List, class... L> struct WireTypes<List<L...>> {
  static constexpr std::size_t count = 2 * sizeof...(L);
  static constexpr WireType table[count] = {
      make_wire_type<typename stagger::detail::Within<
          typename stagger::detail::LayerTraits<L>::Layer>::type>()...,
      make_wire_type<typename stagger::detail::LayerTraits<L>::Layer::Output>()...};
};

/// How values are sent between layers.
struct Wires {
  WireType const* table = nullptr;
  std::size_t count = 0;
  bool shapes_change = false;  ///< from step to step
};

/// The functions that send values of a type.
/// @param layer  number of the layer that makes them
/// @throws Error  bad_configuration for values that cannot be sent
[[nodiscard]] inline WireType const& wire_of(Wires const& wires,
                                             stagger::detail::SlotType const& type, int layer) {
  for (std::size_t i = 0; i < wires.count; ++i)
    if (wires.table[i].type == &type && wires.table[i].write != nullptr) return wires.table[i];
  raise(Errc::bad_configuration, "the output of layer ", layer,
        " cannot go to another GPU; make it a cuda::Tensor, give its type a member fields() "
        "that returns a std::tie of such, or specialise stagger::cuda::Wire for it");
}

}  // namespace detail
}  // namespace stagger::cuda
