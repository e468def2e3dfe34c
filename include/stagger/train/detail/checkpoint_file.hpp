// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The names of checkpoint files, and the search for them in a folder.

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

#include <stagger/core/checked_file.hpp>
#include <stagger/core/error.hpp>

namespace stagger::detail {

inline constexpr std::string_view checkpoint_prefix = "step-";
inline constexpr std::string_view checkpoint_suffix = ".stagger";

[[nodiscard]] inline std::string checkpoint_path(std::string const& folder, std::int64_t step) {
  std::string digits = std::to_string(step);
  if (digits.size() < 9) digits.insert(0, 9 - digits.size(), '0');
  return folder + "/" + std::string(checkpoint_prefix) + digits + std::string(checkpoint_suffix);
}

/// The step of a file that is named like a checkpoint; -1 for other names.
[[nodiscard]] inline std::int64_t step_of(std::string_view name) {
  if (!name.starts_with(checkpoint_prefix) || !name.ends_with(checkpoint_suffix)) return -1;
  if (name.size() <= checkpoint_prefix.size() + checkpoint_suffix.size()) return -1;
  char const* const end = name.data() + name.size() - checkpoint_suffix.size();
  std::int64_t step = 0;
  auto const [stop, error] = std::from_chars(name.data() + checkpoint_prefix.size(), end, step);
  return error == std::errc{} && stop == end ? step : -1;
}

/// The steps of all checkpoints in a folder, newest first.
[[nodiscard]] inline std::vector<std::int64_t> checkpoint_steps(std::string const& folder) {
  std::vector<std::int64_t> steps;
  for (std::string const& name : names_in(folder))
    if (std::int64_t const step = step_of(name); step >= 0) steps.push_back(step);
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

/// Keeps the checkpoint of `step` and the previous one, and removes the others and the temporary
/// files of killed processes. Files that cannot be removed stay, which does no harm.
inline void remove_other_checkpoints(std::string const& folder, std::int64_t step) {
  auto const names = names_in(folder);
  std::int64_t before = -1;
  for (std::string const& name : names)
    if (step_of(name) < step) before = std::max(before, step_of(name));
  std::string temporary(1, '.');
  temporary += checkpoint_prefix;
  for (std::string const& name : names) {
    std::int64_t const other = step_of(name);
    if ((other >= 0 && other != step && other != before) ||
        (name.starts_with(temporary) && name.ends_with(".tmp")))
      ::unlink(text(folder, "/", name).c_str());
  }
}

}  // namespace stagger::detail
