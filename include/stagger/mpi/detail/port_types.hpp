// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The functions by which a model's values are sent to other processes, with their types
///         erased.

#include <cstddef>
#include <utility>

#include <stagger/core/portable.hpp>
#include <stagger/engine/slots.hpp>
#include <stagger/model/sequential.hpp>
#include <stagger/model/split.hpp>

namespace stagger::mpi::detail {

using stagger::detail::LayerTraits;
using stagger::detail::slot_type;
using stagger::detail::SlotType;

/// The functions that send values of one type; null if these cannot be sent.
struct PortType {
  SlotType const* type = nullptr;
  void (*write)(ByteWriter&, void const* value) = nullptr;
  void (*read)(ByteReader&, void* value) = nullptr;
};

template <class T> constexpr PortType make_port_type() {
  PortType port;
  port.type = &slot_type<T>;
  if constexpr (Portable<T>::exists) {
    port.write = [](ByteWriter& out, void const* value) {
      Portable<T>::write(out, *static_cast<T const*>(value));
    };
    port.read = [](ByteReader& in, void* value) { Portable<T>::read(in, *static_cast<T*>(value)); };
  }
  return port;
}

/// The type of the value between the two layers by which groups replace a layer; for other layers,
/// the type of the output.
template <class L> struct Within {
  using type = typename L::Output;
};
template <DividedLayer L> struct Within<L> {
  using type = typename decltype(std::declval<L const&>().divided().first)::Output;
};

/// The types of the inputs and outputs of all layers.
template <class Types> struct PortTypes;
template <template <class...> class List, class... L> struct PortTypes<List<L...>> {
  static constexpr std::size_t count = 3 * sizeof...(L);
  static constexpr PortType table[count] = {
      make_port_type<typename LayerTraits<L>::Layer::Input>()...,
      make_port_type<typename Within<typename LayerTraits<L>::Layer>::type>()...,
      make_port_type<typename LayerTraits<L>::Layer::Output>()...};
};

}  // namespace stagger::mpi::detail
