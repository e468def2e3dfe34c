// SPDX-License-Identifier: Apache-2.0
#include <stagger/version.hpp>

int version_seen_elsewhere() { return STAGGER_VERSION_MAJOR * 1000 + STAGGER_VERSION_MINOR; }
