// SPDX-License-Identifier: Apache-2.0
// mistake: build: `-D_GLIBCXX_DEBUG`
// flags: -D_GLIBCXX_DEBUG
// accepted: -D_GLIBCXX_ASSERTIONS
// expect-error: cannot be compiled with _GLIBCXX_DEBUG, .* define _GLIBCXX_ASSERTIONS instead
// see: packaging.md
#include <stagger/stagger.hpp>
