// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The algorithms on iterators. libstdc++'s <algorithm> also includes those on ranges,
///         which every pipeline would have to compile.

#include <stagger/core/requirements.hpp>

#include <cstddef>  // defines __GLIBCXX__

#if defined(__GLIBCXX__) && __has_include(<bits/stl_algo.h>)
#include <bits/stl_algo.h>
#else
#include <algorithm>
#endif
