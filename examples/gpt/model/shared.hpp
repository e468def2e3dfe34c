// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The types that these layers share with those of the other models, as names of this
/// namespace.

#include "layers/index.hpp"
#include "layers/initial.hpp"

namespace gpt {
using namespace layers;  // also of the further headers there that a file includes
}
