// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Of a value that goes to differently replicated neighbours in another process: the rows
///         that they take.

#include <algorithm>
#include <cstddef>

#include <stagger/core/list.hpp>
#include <stagger/engine/detail/replica_run.hpp>
#include <stagger/engine/slots.hpp>

namespace stagger::detail {

/// Puts rows of values by themselves, and back where they came from. Keeps one object of each type.
class CutRows {
 public:
  /// @param rows   of the microbatch that `value` has
  /// @param taken  a part of them
  /// @return  an object with the rows that are taken; null for all, and for a value whose rows do
  ///          not go with those of the microbatch
  [[nodiscard]] void const* cut(SlotType const& type, void const* value, RowRange rows,
                                RowRange taken) {
    if (taken.count() == 0 || taken.count() == rows.count()) return nullptr;
    std::size_t const all = type.rows(value);
    if (all == 0 || all % rows.count() != 0) return nullptr;
    std::size_t const times = all / rows.count();
    void* const part = object(type);
    type.resize_rows(part, value, taken.count() * times);
    type.copy_rows(part, 0, value, (taken.first - rows.first) * times, taken.count() * times);
    return part;
  }
  /// The way back.
  void put(SlotType const& type, void* value, RowRange rows, RowRange taken, void const* part) {
    std::size_t const times = type.rows(part) / taken.count();
    type.resize_rows(value, part, rows.count() * times);
    type.copy_rows(value, (taken.first - rows.first) * times, part, 0, taken.count() * times);
  }
  [[nodiscard]] void* object(SlotType const& type) {
    for (Object& known : objects_)
      if (known.type == &type) return known.slot[0];
    objects_.push_back({&type, Slots(type, 1)});
    return objects_.back().slot[0];
  }

 private:
  struct Object {
    SlotType const* type = nullptr;
    Slots slot;
  };
  List<Object> objects_;
};

}  // namespace stagger::detail
