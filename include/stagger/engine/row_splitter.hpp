// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Rows of a value whose type is erased, and columns of them: ranges, and copies.

#include <cstddef>

#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/list.hpp>
#include <stagger/engine/slots.hpp>

namespace stagger::detail {

/// Rows of one microbatch, [first, last).
struct RowRange {
  std::size_t first = 0;
  std::size_t last = 0;
  [[nodiscard]] std::size_t count() const noexcept { return last - first; }
  friend bool operator==(RowRange, RowRange) = default;
  /// The rows that are in both ranges; if there are none, an empty range.
  [[nodiscard]] RowRange common(RowRange other) const noexcept {
    std::size_t const begin = std::max(first, other.first);
    return {begin, std::max(begin, std::min(last, other.last))};
  }
};

/// How many rows a value has for each row of the model's input, since a layer may make several rows
/// of one; 0 if that is not a whole number.
[[nodiscard]] inline std::size_t rows_for_each(SlotType const& type, void const* value,
                                               std::size_t inputs) {
  std::size_t const rows = type.rows(value);
  return rows % inputs == 0 ? rows / inputs : 0;
}

/// Copies the rows `taken` of a value that has the rows `rows` to `to`.
/// @param each  result of rows_for_each
inline void take_rows(SlotType const& type, void* to, void const* from, RowRange rows,
                      RowRange taken, std::size_t each) {
  type.resize_rows(to, from, taken.count() * each);
  type.copy_rows(to, 0, from, (taken.first - rows.first) * each, taken.count() * each);
}

/// Which columns of a value are taken.
struct TakenColumns {
  ColumnOps const* ops = nullptr;  // null: all
  IndexRange of{};
  std::size_t all = 0;  // that the value has
  [[nodiscard]] bool some() const noexcept { return ops != nullptr && of.size() != all; }
};

/// Copies the rows, or a block of rows and columns, of a value that goes to another process, and
/// puts what is received back where it belongs. Keeps one object of each type.
class RowSplitter {
 public:
  /// @param rows   of the microbatch that `value` has
  /// @param taken  a part of them
  /// @return  an object with what is taken; null for all, and for a value whose rows do not go with
  ///          those of the microbatch
  [[nodiscard]] void const* split(SlotType const& type, void const* value, RowRange rows,
                                  RowRange taken, TakenColumns const& columns = {}) {
    if (taken.count() == 0 || (taken.count() == rows.count() && !columns.some())) return nullptr;
    std::size_t const each = rows_for_each(type, value, rows.count());
    if (each == 0) return nullptr;
    void* const part = object(type);
    if (!columns.some()) {
      take_rows(type, part, value, rows, taken, each);
      return part;
    }
    Block const size{taken.count() * each, columns.of.size()};
    columns.ops->resize(part, value, size);
    columns.ops->copy(part, {}, value, {(taken.first - rows.first) * each, columns.of.first}, size);
    return part;
  }
  /// Puts `part` back into a value of `rows`, where all else is unspecified.
  void put_back(SlotType const& type, void* value, RowRange rows, RowRange taken, void const* part,
                TakenColumns const& columns = {}) {
    std::size_t const each = type.rows(part) / taken.count();
    std::size_t const first = (taken.first - rows.first) * each;
    std::size_t const count = taken.count() * each;
    if (!columns.some()) {
      type.resize_rows(value, part, rows.count() * each);
      return type.copy_rows(value, first, part, 0, count);
    }
    columns.ops->resize(value, part, {rows.count() * each, columns.all});
    columns.ops->copy(value, {first, columns.of.first}, part, {}, {count, columns.of.size()});
  }
  /// The object of a type into which rows are copied and received.
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
