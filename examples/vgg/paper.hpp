// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   SplitBrain's tables, figures and claims: published, and as they come out here.

#include <string>

namespace vgg {

/// Computes all in virtual time.
[[nodiscard]] std::string claims_of_split_brain();

/// Throughput over memory, for groups of 1, 2, 4 and 8 of 8 ranks, as SVG: figure 7c.
[[nodiscard]] std::string trade_off_of_split_brain();

}  // namespace vgg
