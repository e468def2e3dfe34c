// SPDX-License-Identifier: Apache-2.0
// mistake: build: no `-std=c++20`
// flags: -std=c++17
// expect-error: stagger: C\+\+20 is needed: compile with -std=c\+\+20
// see: packaging.md
#include <stagger/stagger.hpp>
