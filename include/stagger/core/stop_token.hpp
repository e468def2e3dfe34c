// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Stop tokens, by which a caller cancels a step: those of the standard library if it has
///         them, otherwise equivalents, since libc++ 19 has none without -fexperimental-library.

#include <stagger/core/requirements.hpp>

#include <version>

#ifdef __cpp_lib_jthread
#include <stop_token>
#else
#include <stagger/core/detail/stop_token.hpp>
#endif

namespace stagger {

#ifdef __cpp_lib_jthread
using std::nostopstate;
using std::nostopstate_t;
using std::stop_callback;
using std::stop_source;
using std::stop_token;
#else
using detail::stopping::nostopstate;
using detail::stopping::nostopstate_t;
using detail::stopping::stop_callback;
using detail::stopping::stop_source;
using detail::stopping::stop_token;
#endif

}  // namespace stagger
