// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The compiler options that stagger requires or refuses: one message each, before any
///         other error. docs/packaging.md says why. The header included after each message
///         does not exist, so that compilation ends there and no further error follows.

#if __cplusplus < 202002L
#error "stagger: C++20 is needed: compile with -std=c++20"
#include <compile with -std=c++20>
#endif

#ifndef __cpp_exceptions
#error "stagger: every error is reported by an exception: compile without -fno-exceptions"
#include <compile without -fno-exceptions>
#endif

#ifdef _GLIBCXX_DEBUG
#error \
    "stagger: cannot be compiled with _GLIBCXX_DEBUG, whose std::vector is no constant expression: define _GLIBCXX_ASSERTIONS instead"
#include <define _GLIBCXX_ASSERTIONS instead of _GLIBCXX_DEBUG>
#endif

#if (defined(__FAST_MATH__) || __FINITE_MATH_ONLY__) && !defined(STAGGER_ALLOW_FAST_MATH)
#error \
    "stagger: -ffast-math and -ffinite-math-only break bit-identical results and checks for NaN: compile without them, or define STAGGER_ALLOW_FAST_MATH to give up both"
#include <compile without -ffast-math>
#endif
