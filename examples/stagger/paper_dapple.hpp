// SPDX-License-Identifier: Apache-2.0
#pragma once
// DAPPLE's published plans beside those of this library.

#include <string>

namespace tool {

/// Table V of the paper: for each model and cluster, the published plan, and the plans and
/// estimates of the planners here.
/// @param profiles  folder with the authors' measured profiles; empty: stated figures only
[[nodiscard]] std::string paper_dapple(std::string const& profiles, bool json);

}  // namespace tool
