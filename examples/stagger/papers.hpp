// SPDX-License-Identifier: Apache-2.0
#pragma once
// Published tables beside the results of this library.

#include <string>

namespace tool {

/// DAPPLE's table V: for each model and cluster, the published plan, and the plans and estimates of
/// the planners here.
/// @param profiles  folder with the authors' measured profiles; empty: stated figures only
[[nodiscard]] std::string paper_dapple(std::string const& profiles, bool json);

/// HetPipe's table 3 (the devices of each virtual worker) and table 4 (images per second with one to
/// four kinds of GPU), with the published figures and those of the allocations and partitions here.
[[nodiscard]] std::string paper_hetpipe(bool json);

}  // namespace tool
