// SPDX-License-Identifier: Apache-2.0
// Runs the tests of this folder as one rank of several: MPI is there for as long as they run. All
// ranks run the same cases in the same order; one that fails ends the job with a code that is not
// 0.

#if STAGGER_CATCH2 >= 3
#include <catch2/reporters/catch_reporter_event_listener.hpp>
#include <catch2/reporters/catch_reporter_registrars.hpp>
#else
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include <catch2/catch.hpp>
namespace Catch {
using EventListenerBase = TestEventListenerBase;
}
#endif

#include <optional>

#include <stagger/mpi/session.hpp>

namespace {

#ifndef THREADS
#define THREADS serialized
#endif

struct WithMpi : Catch::EventListenerBase {
  using Catch::EventListenerBase::EventListenerBase;
  void testRunStarting(Catch::TestRunInfo const&) override {
    mpi_.emplace(stagger::mpi::Threads::THREADS);
  }
  void testRunEnded(Catch::TestRunStats const&) override { mpi_.reset(); }

 private:
  std::optional<stagger::mpi::Session> mpi_;
};

}  // namespace

CATCH_REGISTER_LISTENER(WithMpi)
