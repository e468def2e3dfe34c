// SPDX-License-Identifier: Apache-2.0
// The engine for GPUs, compiled once for all files of this program.
#include <stagger/cuda/separate.hpp>
