// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The processes that a test was started with.

#include <mpi.h>

inline int processes() {
  int n = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &n);
  return n;
}
inline int process() {
  int n = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &n);
  return n;
}
