// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The nearest of several words, for errors that name what was probably meant.

#include <stagger/core/requirements.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stagger {

/// The number of edits (a letter inserted, deleted or replaced) that turn one word into another.
[[nodiscard]] [[gnu::cold]] inline std::size_t edit_distance(std::string_view a,
                                                             std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      std::size_t const replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

/// The word that takes the fewest edits, the first one of several; a word that begins with the
/// given one counts as one edit away.
/// @param known  a range of strings
/// @return empty where nothing is known
template <class Words>
[[nodiscard]] [[gnu::cold]] std::string nearest(std::string_view word, Words const& known) {
  std::string_view best;
  std::size_t least = 0;
  for (std::string_view const other : known) {
    bool const cut_short = other.size() > word.size() && other.substr(0, word.size()) == word;
    std::size_t const far = cut_short ? 1 : edit_distance(word, other);
    if (best.empty() || far < least) {
      best = other;
      least = far;
    }
  }
  return std::string(best);
}

}  // namespace stagger
