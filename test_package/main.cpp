// SPDX-License-Identifier: Apache-2.0
#include <stagger/version.hpp>

int version_seen_elsewhere();  // in other.cpp

int main() {
  constexpr int version = STAGGER_VERSION_MAJOR * 1000 + STAGGER_VERSION_MINOR;
  static_assert(version >= 1);
  return version == version_seen_elsewhere() ? 0 : 1;
}
