// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   std::min, std::max, copying, filling, comparing and heaps: the part of <algorithm> that
///         every pipeline needs. core/algorithm.hpp has more, and takes longer to compile.

#include <stagger/core/requirements.hpp>

#include <cstddef>  // defines __GLIBCXX__

#if defined(__GLIBCXX__) && __has_include(<bits/stl_algobase.h>) && __has_include(<bits/stl_heap.h>)
#include <bits/stl_algobase.h>
#include <bits/stl_heap.h>
#else
#include <algorithm>
#endif
