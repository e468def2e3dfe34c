// SPDX-License-Identifier: Apache-2.0
#pragma once
// HetPipe's tables 3 and 4 beside ours.

#include <string>

namespace tool {

/// Table 3 of the paper, the devices of each virtual worker, and table 4, images a second with more
/// and more kinds of GPU: the published figures, and what the allocations and partitions here give.
[[nodiscard]] std::string paper_hetpipe(bool json);

}  // namespace tool
