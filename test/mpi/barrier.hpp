// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A barrier at which a process that hangs stays until the others have their error.

#include <mpi.h>

#include <chrono>
#include <thread>

/// Made by all processes together, to last as long as MPI; apart from all that the library sends.
class Barrier {
 public:
  Barrier() { MPI_Comm_dup(MPI_COMM_WORLD, &all_); }
  Barrier(Barrier const&) = delete;
  Barrier& operator=(Barrier const&) = delete;

  /// Returns once all processes have called it. It sleeps between two looks only so that the
  /// others have the core; how long decides nothing. The time limit of the test bounds the wait.
  void wait() const {
    MPI_Request come = MPI_REQUEST_NULL;
    MPI_Ibarrier(all_, &come);
    for (int all_here = 0; all_here == 0;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      MPI_Test(&come, &all_here, MPI_STATUS_IGNORE);
    }
  }

 private:
  MPI_Comm all_{};
};
