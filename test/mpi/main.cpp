// SPDX-License-Identifier: Apache-2.0
// Runs the tests of this folder as one rank of several. All ranks run the same cases in the same
// order; one that fails ends the job with a code that is not 0.

#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_session.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif

#include <stagger/mpi/session.hpp>

int main(int argc, char** argv) {
  stagger::mpi::Session const mpi;
  return Catch::Session().run(argc, argv);
}
