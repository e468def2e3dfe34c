// SPDX-License-Identifier: Apache-2.0
// What the files beside this one leave out: the engine on a GPU, of CUDA or of its stand-in.
#include <stagger/cuda/separate.hpp>
