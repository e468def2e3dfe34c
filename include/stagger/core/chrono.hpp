// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Clocks and durations. libstdc++'s <chrono> includes <sstream>, and from g++ 13 on
///         <format>, which every pipeline would have to compile.

#include <stagger/core/requirements.hpp>

#include <cstddef>  // defines __GLIBCXX__

#if defined(__GLIBCXX__) && __has_include(<bits/chrono.h>)
#include <bits/chrono.h>
#else
#include <chrono>
#endif
