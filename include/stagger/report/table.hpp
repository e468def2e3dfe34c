// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Small aligned tables as text.

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/report/format.hpp>
#include <stagger/report/utf8.hpp>

namespace stagger::report {

/// Rows of text under a header, printed in columns. A column of numbers is aligned to the right,
/// any other to the left.
///
///     schedule  step time  bubble
///     --------  ---------  ------
///     GPipe       33.0 ms  27.3 %
///
/// A cell is a number if it starts with one, a sign allowed ("12.3 ms", "+4.9 %"), or stands for a
/// missing one: "", "-", "nan".
class TextTable {
 public:
  /// @throws Error bad_configuration if there are no columns
  explicit TextTable(std::vector<std::string> header) : header_(std::move(header)) {
    if (header_.empty())
      raise(Errc::bad_configuration,
            "a table without columns cannot be printed; give one heading or more");
    clean(header_);
  }

  /// Adds a row; cells left out at its end are empty.
  /// @throws Error bad_configuration if the row has more cells than the table has columns
  TextTable& add(std::vector<std::string> cells) {
    if (cells.size() > header_.size()) {
      raise(Errc::bad_configuration, "a row of ", cells.size(), " cells does not fit a table of ",
            header_.size(), " columns; give every column a heading");
    }
    cells.resize(header_.size());
    clean(cells);
    rows_.push_back(std::move(cells));
    return *this;
  }

  /// The table as lines that end in LF, without trailing blanks. Columns are two blanks apart.
  [[nodiscard]] std::string str() const {
    std::size_t const columns = header_.size();
    std::vector<std::size_t> width(columns);
    std::vector<bool> number(columns);
    for (std::size_t c = 0; c < columns; ++c) {
      width[c] = characters(header_[c]);
      number[c] = !rows_.empty();
      for (auto const& row : rows_) {
        width[c] = std::max(width[c], characters(row[c]));
        number[c] = number[c] && is_number(row[c]);
      }
    }
    std::string out;
    line(out, header_, width, number);
    std::vector<std::string> rule;
    for (std::size_t const w : width) rule.emplace_back(w, '-');
    line(out, rule, width, number);
    for (auto const& row : rows_) line(out, row, width, number);
    return out;
  }

 private:
  /// A line break inside a cell would break the table.
  static void clean(std::vector<std::string>& cells) {
    for (std::string& cell : cells)
      for (char& c : cell) c = static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }

  [[nodiscard]] static bool is_number(std::string_view cell) {
    if (cell.empty() || cell == "-" || cell == "nan" || cell == "inf" || cell == "-inf")
      return true;
    if (cell.front() == '+' || cell.front() == '-') cell.remove_prefix(1);
    return !cell.empty() && cell.front() >= '0' && cell.front() <= '9';
  }

  static void line(std::string& out, std::vector<std::string> const& cells,
                   std::vector<std::size_t> const& width, std::vector<bool> const& number) {
    std::string text;
    for (std::size_t c = 0; c < cells.size(); ++c) {
      std::size_t const pad = width[c] - characters(cells[c]);
      if (c > 0) text += "  ";
      if (number[c]) text.append(pad, ' ');
      text += cells[c];
      if (!number[c]) text.append(pad, ' ');
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  }

  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace stagger::report
