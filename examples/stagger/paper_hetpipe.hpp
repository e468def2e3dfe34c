// SPDX-License-Identifier: Apache-2.0
#pragma once
// HetPipe's tables 3 and 4 beside the results of this library.

#include <string>

namespace tool {

/// Table 3 of the paper (the devices of each virtual worker) and table 4 (images per second with
/// one to four kinds of GPU), with the published figures and those of the allocations and
/// partitions here.
[[nodiscard]] std::string paper_hetpipe(bool json);

}  // namespace tool
