// SPDX-License-Identifier: Apache-2.0
// mistake: build: `-fno-exceptions`
// flags: -fno-exceptions
// expect-error: compile without -fno-exceptions
// see: packaging.md
#include <stagger/stagger.hpp>
