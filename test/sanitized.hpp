// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Whether a sanitizer watches. It brings an operator new of its own, which must not be mixed
/// with another, and makes a run 10 to 20 times slower: the same code on a share of the cases.

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer)
#define TEST_SANITIZED 1
#endif
#endif

#ifdef TEST_SANITIZED
inline constexpr bool sanitized = true;
#else
inline constexpr bool sanitized = false;
#endif
