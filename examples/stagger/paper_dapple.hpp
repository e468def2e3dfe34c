// SPDX-License-Identifier: Apache-2.0
#pragma once
// DAPPLE's published plans beside ours.

#include <string>

namespace tool {

/// Table V of the paper: each model on each cluster, the published plan, and what the planners here
/// choose and estimate.
/// @param profiles  folder with the authors' measured profiles; empty: from stated figures alone
[[nodiscard]] std::string paper_dapple(std::string const& profiles, bool json);

}  // namespace tool
