// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A description of the machine and the build.

#include <string>

namespace bench {

/// Processor, cores, compiler with its flags, peer, load and date, in one line.
[[nodiscard]] std::string machine();

}  // namespace bench
