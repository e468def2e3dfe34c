// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Whether tests that sample take all cases instead: `./run test --full`.

#include <cstdlib>
#include <cstring>

inline bool full() {
  char const* const asked = std::getenv("STAGGER_FULL");
  return asked != nullptr && std::strcmp(asked, "1") == 0;
}
